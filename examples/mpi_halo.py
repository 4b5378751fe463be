"""Smooth a field that is cut into strips, a GPU a rank, with halos and a sum over MPI.

    mpiexec -n 2 python examples/mpi_halo.py

The strips are PyCUDA's arrays, with a kernel of PyCUDA's days; the sum is CuPy's. By default what
MPI sends and receives lies in page-locked memory; with an MPI that is CUDA-aware, say so:

    mpiexec -n 2 python examples/mpi_halo.py --device-buffers
"""

from __future__ import annotations

import argparse

import cupy
import cupyx
import numpy as np
from mpi4py import MPI
from pycuda import gpuarray

import bridge

SOURCE = """
__global__ void smooth(double *out, const double *u, int columns)
{
    int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const double *row = u + (blockIdx.x + 1) * columns + column;
    out[blockIdx.x * columns + column] = row[-columns] / 4 + row[0] / 2 + row[columns] / 4;
}
"""


def mpi_buffer(array, device_buffers):
    """Return what MPI is given for a device array: the array, or page-locked memory to stage it.

    It is for the user to say: Open MPI tells if it is CUDA-aware by MPIX_Query_cuda_support, MPICH
    by MPIX_GPU_query_support, both in C only; the key that MPI 4.1 has for it is missing in most.
    """
    return array if device_buffers else cupyx.empty_pinned(array.shape, array.dtype)


def before_mpi(array, buffer):
    """Have what was queued on `array` done, and in `buffer`: MPI knows no streams."""
    x = bridge.as_cupy(array)  # CuPy's current stream is behind PyCUDA's now
    if buffer is not array:
        x.get(out=buffer, blocking=False)
    cupy.cuda.get_current_stream().synchronize()


def after_mpi(array, buffer):
    """Have what MPI wrote to `buffer` in `array`, for work that is queued from now on."""
    if buffer is not array:
        bridge.as_cupy(array).set(buffer, stream=cupy.cuda.get_current_stream())


class Halo:
    """One row to send and one to receive, in the same direction around the ring of ranks."""

    def __init__(self, comm, edge, to, ghost, source, device_buffers):
        self.comm, self.to, self.source = comm, to, source
        self.edge, self.sent = edge, mpi_buffer(edge, device_buffers)
        self.ghost, self.received = ghost, mpi_buffer(ghost, device_buffers)

    def exchange(self):
        before_mpi(self.edge, self.sent)  # also: nothing reads the ghost row any more
        self.comm.Sendrecv(self.sent, self.to, recvbuf=self.received, source=self.source)
        after_mpi(self.ghost, self.received)


def run(comm, strip, steps, device_buffers):
    """Smooth a rank's strip; return it, and the sum over all ranks."""
    rows, columns = strip.shape
    above, below = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    smooth = bridge.SourceModule(SOURCE).get_function("smooth")

    u = gpuarray.zeros((rows + 2, columns), np.float64)  # with a ghost row at either end
    x = bridge.as_cupy(u)  # the same memory
    x[1:-1] = cupy.asarray(strip)
    new = cupy.empty(strip.shape)
    halos = (
        Halo(comm, u[1], above, u[rows + 1], below, device_buffers),
        Halo(comm, u[rows], below, u[0], above, device_buffers),
    )
    for _ in range(steps):
        for halo in halos:
            halo.exchange()
        smooth(new, u, columns, block=128, grid=(rows, (columns + 127) // 128))
        x[1:-1] = new

    total = x[1:-1].sum()
    buffer = mpi_buffer(total, device_buffers)
    before_mpi(total, buffer)
    comm.Allreduce(MPI.IN_PLACE, buffer)
    after_mpi(total, buffer)
    return x[1:-1].get(), float(total)


def smoothed(field, steps):
    """Do the same in NumPy, on one piece."""
    for _ in range(steps):
        field = np.roll(field, 1, axis=0) / 4 + field / 2 + np.roll(field, -1, axis=0) / 4
    return field


def main():
    """Run on this rank's GPU, check, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("columns", nargs="?", type=int, default=1000)
    parser.add_argument("--device-buffers", action="store_true", help="the MPI is CUDA-aware")
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    rows, steps = 6, 10
    field = np.random.default_rng(0).random((rows * comm.size, options.columns))
    mine = slice(rows * comm.rank, rows * (comm.rank + 1))

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this machine
    device = here.rank % cupy.cuda.runtime.getDeviceCount()
    with bridge.primary_context(device):
        strip, total = run(comm, field[mine], steps, options.device_buffers)

    expected = smoothed(field, steps)
    np.testing.assert_allclose(strip, expected[mine], rtol=1e-12)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-12)
    how = "device buffers" if options.device_buffers else "staged"
    line = f"rank {comm.rank} of {comm.size}, device {device}, {how}: sum {total:.6f}"
    lines = comm.gather(line)
    if comm.rank == 0:
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()

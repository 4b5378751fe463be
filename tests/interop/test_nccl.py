"""NCCL works on arrays of both libraries, in one process and in one process a GPU."""

import warnings

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import pointer_of
from gpus import GPUS, PACKAGE_MISSING
from pycuda import gpuarray

import bridge

N = min(GPUS, 4)
SIZE = 100_000
TOTAL = N * (N + 1) // 2  # of what the ranks send: 1, 2, ...


@pytest.fixture(scope="module")
def nccl():
    """NCCL as CuPy has it; it warns where the library is missing."""
    if GPUS < 2:
        pytest.skip(PACKAGE_MISSING + "a second GPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    if not nccl.available:
        pytest.skip(PACKAGE_MISSING + "NCCL")
    return nccl


@pytest.fixture(scope="module")
def communicators(nccl):
    """A communicator for each device, all in this process."""
    made = nccl.NcclCommunicator.initAll(N)
    yield made
    for communicator in made:
        communicator.destroy()


@pytest.fixture
def on_each(communicators):
    """Call a function with each rank, in the context of its device; return the results."""

    def on_each(function, *lists, streams=(cupy.cuda.Stream.null,) * N):
        results = []
        for rank, stream, *values in zip(range(N), streams, *lists, strict=True):
            with bridge.primary_context(rank), stream:
                results.append(function(rank, *values))
        return results

    return on_each


@pytest.fixture
def all_reduce(nccl, communicators, on_each):
    """Queue the sum of all ranks' float32 arrays, on CuPy's current stream of each device."""

    def all_reduce(sent, received, **streams):
        def queue(rank, sent, received):
            arrays, stream = (sent, received), cupy.cuda.get_current_stream()
            arguments = *map(pointer_of, arrays), SIZE, nccl.NCCL_FLOAT32, nccl.NCCL_SUM
            communicators[rank].allReduce(*arguments, stream.ptr)

        nccl.groupStart()
        try:
            on_each(queue, sent, received, **streams)
        finally:
            nccl.groupEnd()

    return all_reduce


KINDS = {
    "GPUArray": lambda value: gpuarray.to_gpu(np.full(SIZE, value, np.float32)),
    "cupy": lambda value: cupy.full(SIZE, value, np.float32),
    "as_cupy": lambda value: bridge.as_cupy(KINDS["GPUArray"](value)),
    "as_pycuda": lambda value: bridge.as_pycuda(KINDS["cupy"](value)),
}


@pytest.mark.parametrize("receive", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("send", KINDS.values(), ids=KINDS)
def test_all_reduce_in_one_process(send, receive, on_each, all_reduce):
    sent = on_each(lambda rank: send(rank + 1))
    received = on_each(lambda rank: receive(-1))
    all_reduce(sent, received)

    found = on_each(lambda rank, *arrays: [array.get() for array in arrays], sent, received)
    for rank, (of_sent, of_received) in enumerate(found):
        assert (of_sent == rank + 1).all()
        assert (of_received == TOTAL).all()


SLOW = """
extern "C" __global__ void fill(float *x, float value, int n, int milliseconds)
{
    for (int i = 0; i < milliseconds; i++) __nanosleep(1000000);
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
}
"""


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "control"])
def test_all_reduce_is_ordered_with_pycudas_stream(ordered, on_each, all_reduce, compile_kernel):
    """The control reads before the slow kernel has written: -1 of each rank."""
    # Non-blocking ones of both libraries, which CUDA orders with nothing.
    streams = on_each(lambda rank: cupy.cuda.Stream(non_blocking=True))
    own = on_each(lambda rank: drv.Stream(1))
    fills = on_each(lambda rank: compile_kernel(SLOW, "fill"))  # PyCUDA's: nothing is ordered
    sources = on_each(lambda rank: KINDS["GPUArray"](0))
    received = on_each(lambda rank: cupy.zeros(SIZE, np.float32))

    def fill(rank, fill, source, stream, value, milliseconds):
        numbers = np.float32(value), np.int32(SIZE), np.int32(milliseconds)
        fill(source, *numbers, block=(256, 1, 1), stream=stream)
        return bridge.as_cupy(source, stream=stream if ordered else -1)

    def run(values, milliseconds):
        views = on_each(fill, fills, sources, own, values, [milliseconds] * N, streams=streams)
        all_reduce(views, received, streams=streams)
        sums = on_each(lambda rank, x: x.get(), received, streams=streams)
        on_each(lambda rank: drv.Context.synchronize())
        return sums

    on_each(lambda rank: drv.Context.synchronize())
    run([-1] * N, 0)  # the first time, modules are loaded and connections set up
    sums = run(range(1, N + 1), 300)
    np.testing.assert_array_equal(sums, np.full((N, SIZE), TOTAL if ordered else -N, np.float32))


ONE_PROCESS_A_GPU = """
import multiprocessing, sys
import numpy as np, cupy, bridge
from cupy.cuda import nccl
from pycuda import gpuarray

def work(ranks, unique_id, rank):
    with bridge.primary_context(rank):
        communicator = nccl.NcclCommunicator(ranks, unique_id, rank)
        a = gpuarray.to_gpu(np.full(1000, rank + 1, np.float32))
        b = bridge.as_pycuda(cupy.empty(1000, np.float32))
        stream = cupy.cuda.get_current_stream()
        communicator.allReduce(
            int(a.gpudata), int(b.gpudata), 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
        )
        np.testing.assert_array_equal(b.get(), np.full(1000, ranks * (ranks + 1) // 2, "f4"))
        communicator.destroy()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    unique_id = nccl.get_unique_id()
    ranks = int(sys.argv[1])
    processes = [context.Process(target=work, args=(ranks, unique_id, r)) for r in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""


def test_all_reduce_in_one_process_a_gpu(nccl, tmp_path, python):
    path = tmp_path / "script.py"
    path.write_text(ONE_PROCESS_A_GPU)
    use = f"runpy.run_path({str(path)!r}, run_name='__main__')"
    done = python(f"import runpy, sys; sys.argv[1:] = ['{N}']; {use}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[0] * N}\n", "")

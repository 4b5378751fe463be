"""Waves on a membrane that is cut into slabs of rows, one for each GPU.

The kernel is that of notebook 02, as PyCUDA's users wrote it, but for two things that it has
learnt: how many rows there are, and that a field may have more points than an int counts.  A slab
has its own rows and, above and below, a copy of the neighbour's next row: the halo.  Each step is
the kernel over all rows, then the exchange of the halos, in this order on one stream: nothing
overlaps, so that a step's time is the sum of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cupy
import numpy as np
from pycuda import gpuarray

import bridge

KERNEL = """
__global__ void wave_step(
    float *next, const float *now, const float *before, float c2, int n, int rows)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= rows - 1) return;
    const long long i = (long long)y * n + x;
    const float laplace = now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4.0f * now[i];
    next[i] = 2.0f * now[i] - before[i] + c2 * laplace;
}
"""
C2 = np.float32(0.25)
BLOCK = (32, 8, 1)
EVERY = 50  # steps from one energy to the next
CHECKED = 200  # steps whose energies are compared, and which are the warm-up
APART = 64  # rows and columns from one compared point to the next

# Waves of about a hundred points that stand still at first, everywhere on the membrane: what goes
# wrong at a cut shows within a few steps.
_ripples = cupy.ElementwiseKernel(
    "int64 first, int64 rows, int64 columns",
    "float32 u",
    """
    const long long y = first + i / columns, x = i % columns;
    u = sinpif(y / (rows - 1.0f)) * sinpif(x / (columns - 1.0f)) * sinf(0.06f * y + 0.04f * x);
    """,
    "ripples",
)


@cupy.fuse()
def _density(now: Any, before: Any, right: Any, below: Any) -> Any:
    """Return the energy of each point: of its motion, and of the slopes beside it."""
    return (now - before) ** 2 + C2 * ((right - now) ** 2 + (below - now) ** 2)


class Way(NamedTuple):
    """How a program holds three fields, and how its kernel makes the next one of the others."""

    fields: tuple[Any, Any, Any]
    step: Callable[[Any, Any, Any], None]
    address: Callable[[Any], int]
    in_cupy: Callable[[Any], Any]


def both_libraries(shape: tuple[int, int]) -> Way:
    """Hold GPUArrays, and run PyCUDA's kernel."""
    allocate = bridge.pycuda_allocator()
    before, now, after = (gpuarray.empty(shape, np.float32, allocator=allocate) for _ in range(3))
    kernel = bridge.SourceModule(KERNEL).get_function("wave_step")
    rows, columns = (np.int32(n) for n in shape)
    grid = _grid(shape)

    def step(after: Any, now: Any, before: Any) -> None:
        kernel(after, now, before, C2, columns, rows, block=BLOCK, grid=grid)

    return Way((before, now, after), step, lambda a: int(a.gpudata), bridge.as_cupy)


def cupy_alone(shape: tuple[int, int]) -> Way:
    """Hold CuPy's arrays, and run the kernel as CuPy's own."""
    before, now, after = (cupy.empty(shape, np.float32) for _ in range(3))
    kernel = cupy.RawKernel(f'extern "C" {KERNEL}', "wave_step")
    rows, columns = (np.int32(n) for n in shape)
    grid = _grid(shape)

    def step(after: Any, now: Any, before: Any) -> None:
        kernel(grid, BLOCK, (after, now, before, C2, columns, rows))

    return Way((before, now, after), step, lambda x: x.data.ptr, lambda x: x)


def _grid(shape: tuple[int, int]) -> tuple[int, int, int]:
    return -(-shape[1] // BLOCK[0]), -(-shape[0] // BLOCK[1]), 1


WAYS = {"both libraries": both_libraries, "CuPy alone": cupy_alone}
WITHOUT = "without halos"  # the first of these, timed where no GPU waits for another


class Alone:
    """The exchange of a GPU that has no neighbours."""

    def halos(self, address: int, rows: int, columns: int) -> None:
        """Do nothing: the rows above and below are the membrane's edge."""

    def total(self, address: int) -> None:
        """Do nothing: the sum is the whole one."""


class Nccl:
    """The exchange by NCCL, on CuPy's current stream; one process of each rank.

    Parameters
    ----------
    size, rank : int
        Of how many processes this is which.
    uid : object
        What `unique_id` returned in one of them.
    """

    def __init__(self, size: int, rank: int, uid: Any) -> None:
        nccl = _nccl()
        self._nccl = nccl
        self._link = nccl.NcclCommunicator(size, uid, rank)
        self._above = rank - 1 if rank else None
        self._below = rank + 1 if rank + 1 < size else None

    def halos(self, address: int, rows: int, columns: int) -> None:
        """Send the outer ones of a slab's own rows, and get the neighbours' into its halos."""
        nccl, link, row = self._nccl, self._link, 4 * columns
        stream = cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        if self._above is not None:
            link.send(address + row, columns, nccl.NCCL_FLOAT32, self._above, stream)
            link.recv(address, columns, nccl.NCCL_FLOAT32, self._above, stream)
        if self._below is not None:
            last = address + rows * row
            link.send(last, columns, nccl.NCCL_FLOAT32, self._below, stream)
            link.recv(last + row, columns, nccl.NCCL_FLOAT32, self._below, stream)
        nccl.groupEnd()

    def total(self, address: int) -> None:
        """Replace a float32 by its sum over all ranks."""
        stream = cupy.cuda.get_current_stream().ptr
        kind, add = self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM
        self._link.allReduce(address, address, 1, kind, add, stream)

    def close(self) -> None:
        """Let go of the link when all its work is done."""
        cupy.cuda.get_current_stream().synchronize()
        self._link.destroy()

    def abort(self) -> None:
        """Let go of the link at once, since this rank has failed."""
        self._link.abort()


def unique_id() -> Any:
    """Return what the ranks of one exchange find each other by."""
    with bridge.primary_context():
        return _nccl().get_unique_id()


def nccl_version() -> str:
    """Return NCCL's version."""
    number = int(_nccl().get_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _nccl() -> Any:
    from cupy.cuda import nccl

    if not nccl.available:
        raise ImportError(
            "CuPy finds no NCCL, by which the halos go: install nvidia-nccl-cu13 or -cu12"
        )
    return nccl


class Waves:
    """One slab of a membrane.

    Parameters
    ----------
    way : Way
        For fields of the slab's own rows and two more.
    exchange : Alone, Nccl or what has their two methods
    first : int
        The membrane's row that is the slab's own first one.
    rows : int
        Of the whole membrane.
    """

    def __init__(self, way: Way, exchange: Any, first: int, rows: int) -> None:
        self.way = way
        self.exchange = exchange
        self._place = first, rows
        self.start()

    def start(self) -> None:
        """Begin anew: the ripples, at rest."""
        self.fields = self.way.fields
        first, rows = self._place
        for field in self.fields:
            # Its own rows are numbered from 1 on, between the membrane's two edges.
            _ripples(first, rows + 2, field.shape[1], self.way.in_cupy(field))

    def run(self, steps: int) -> Any:
        """Take some steps; return the whole membrane's energies, one for each 50 steps."""
        way, exchange = self.way, self.exchange
        energies = cupy.zeros(steps // EVERY, np.float32)
        for number in range(1, steps + 1):
            before, now, after = self.fields
            way.step(after, now, before)
            exchange.halos(way.address(after), after.shape[0] - 2, after.shape[1])
            self.fields = now, after, before
            if number % EVERY == 0:
                one = energies[number // EVERY - 1 :][:1]
                one[...] = energy(way.in_cupy(after), way.in_cupy(now))
                exchange.total(one.data.ptr)
        return energies

    def rows(self) -> Any:
        """Return the slab's own rows."""
        return self.way.in_cupy(self.fields[1])[1:-1]

    def seconds_a_step(self, steps: int) -> float:
        """Take some steps, begun at the same time on all GPUs; return how long one took here."""
        together = cupy.zeros(1, np.float32)
        self.exchange.total(together.data.ptr)
        together.get()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        self.run(steps)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / steps


def energy(now: Any, before: Any) -> Any:
    """Return the energy of a slab's own rows, on the GPU.

    The fields are taken as one long row, so that each operand is contiguous: a row's last point has
    the next row's first one to its right, and both are on the edge, where nothing moves.
    """
    n = now.shape[1]
    flat, old = now.ravel(), before.ravel()
    parts = flat[n:-n], old[n:-n], flat[n + 1 : 1 - n], flat[2 * n :]
    return _density(*parts).sum() / 2


@dataclass(frozen=True)
class Case:
    """A membrane; how often its steps are timed, 0: only the result is wanted; how many at once."""

    rows: int
    columns: int
    rounds: int
    steps: int


def work(rank: int, size: int, uid: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Do all cases on this process's GPU, as one rank of `size`.

    Returns
    -------
    list of dict
        For each case `energies` and `points` of the checked steps, and `seconds` a step of each
        round: each a dict with a value for each way, and the last one also `WITHOUT` halos.
    """
    with bridge.primary_context():
        exchange = Nccl(size, rank, uid) if size > 1 else Alone()
        try:
            found = []
            for case in cases:
                found.append(_one_case(case, rank, size, exchange))
                cupy.get_default_memory_pool().free_all_blocks()
        except BaseException:
            if size > 1:
                exchange.abort()
            raise
        if size > 1:
            exchange.close()
        return found


def _one_case(case: Case, rank: int, size: int, exchange: Any) -> dict[str, Any]:
    rows, rest = divmod(case.rows, size)
    if rest or rows % APART:
        raise ValueError(
            f"waves: {case.rows} rows cannot be cut into {size} slabs of a multiple of {APART} rows"
        )

    def slab(name: str, exchange: Any) -> Waves:
        return Waves(WAYS[name]((rows + 2, case.columns)), exchange, rank * rows, case.rows)

    energies, points, slabs = {}, {}, {}
    for name in WAYS if case.rounds else ["CuPy alone"]:
        slabs[name] = slab(name, exchange)
        energies[name] = slabs[name].run(CHECKED).get()
        points[name] = cupy.ascontiguousarray(slabs[name].rows()[::APART, ::APART]).get()
    if case.rounds and size > 1:
        slabs[WITHOUT] = slab("both libraries", Alone())
        slabs[WITHOUT].run(CHECKED)
    seconds: dict[str, list[float]] = {name: [] for name in slabs}
    for turn in range(case.rounds):
        for name in reversed(slabs) if turn % 2 else slabs:  # none is always the one after another
            seconds[name].append(slabs[name].seconds_a_step(case.steps))
    return {"energies": energies, "points": points, "seconds": seconds}

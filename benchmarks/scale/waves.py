"""Waves on a membrane that is cut into slabs of rows, one for each GPU.

The kernel is that of notebook 02, as PyCUDA's users wrote it, with two changes: it takes the number
of rows, and a field may have more points than an int counts.  A slab has its own rows and, above
and below, a copy of the neighbour's next row: the halo.  Each step is the kernel over all rows,
then the exchange of the halos, in this order on one stream: nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np
from pycuda import gpuarray

import bridge
from benchmarks.scale.cluster import START, results
from benchmarks.scale.exchange import exchange, unique_id

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
LIMIT = 90  # seconds after which the ranks count as stuck

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
    numbers, grid = _launch(shape)

    def step(after: Any, now: Any, before: Any) -> None:
        kernel(after, now, before, *numbers, block=BLOCK, grid=grid)

    return Way((before, now, after), step, lambda a: int(a.gpudata), bridge.as_cupy)


def cupy_alone(shape: tuple[int, int]) -> Way:
    """Hold CuPy's arrays, and run the kernel as CuPy's own."""
    before, now, after = (cupy.empty(shape, np.float32) for _ in range(3))
    kernel = cupy.RawKernel(f'extern "C" {KERNEL}', "wave_step")
    numbers, grid = _launch(shape)

    def step(after: Any, now: Any, before: Any) -> None:
        kernel(grid, BLOCK, (after, now, before, *numbers))

    return Way((before, now, after), step, lambda x: x.data.ptr, lambda x: x)


def _launch(shape: tuple[int, int]) -> tuple[Any, tuple[int, int, int]]:
    """Return the numbers that the kernel takes, and its grid."""
    rows, columns = shape
    grid = -(-columns // BLOCK[0]), -(-rows // BLOCK[1]), 1
    return (C2, np.int32(columns), np.int32(rows)), grid


WAYS = {"both libraries": both_libraries, "CuPy alone": cupy_alone}


class Waves:
    """One slab of a membrane of so many rows, which begins with the ripples, at rest.

    The slab's own rows begin with the membrane's row `first`; the fields have two more.
    """

    def __init__(self, way: Way, exchange: Any, first: int, rows: int) -> None:
        self.way = way
        self.exchange = exchange
        self.fields = way.fields
        for field in self.fields:
            # Its own rows are numbered from 1 on, between the membrane's two edges.
            _ripples(first, rows + 2, field.shape[1], way.in_cupy(field))

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


class Found(NamedTuple):
    """The energies of the checked steps, heights after them, and the seconds a step by round."""

    energies: Any
    points: Any
    seconds: Any


Shape = tuple[int, int]  # of a whole membrane


def work(
    rank: int, size: int, uid: Any, shapes: list[Shape], ways: list[str], rounds: int, steps: int
) -> list[dict[str, Found]]:
    """Do each membrane's part on this process's GPU, as one of `size` ranks: by way, what it gave.

    Without rounds, only the checked steps are taken.
    """
    found = []
    with bridge.primary_context(), exchange(size, rank, uid) as link:
        for shape in shapes:
            found.append(_one_slab(shape, rank, size, link, ways, rounds, steps))
            cupy.get_default_memory_pool().free_all_blocks()
    return found


def _one_slab(
    shape: Shape, rank: int, size: int, link: Any, ways: list[str], rounds: int, steps: int
) -> dict[str, Found]:
    rows, rest = divmod(shape[0], size)
    if rest or rows % APART:
        raise ValueError(
            f"waves: {shape[0]} rows cannot be cut into {size} slabs of a multiple of {APART} rows"
        )
    found, slabs = {}, {}
    for name in ways:
        slab = slabs[name] = Waves(WAYS[name]((rows + 2, shape[1])), link, rank * rows, shape[0])
        energies = slab.run(CHECKED).get()
        own = slab.way.in_cupy(slab.fields[1])[1:-1]
        points = cupy.ascontiguousarray(own[::APART, ::APART]).get()
        found[name] = Found(energies, points, [])
    for turn in range(rounds):
        for name in reversed(slabs) if turn % 2 else slabs:  # none is always the one after another
            found[name].seconds.append(slabs[name].seconds_a_step(steps))
    return found


def measure(
    client: Any, addresses: list[str], shapes: list[Shape], ways: list[str], rounds: int, steps: int
) -> list[dict[str, Found]]:
    """Let a worker for each GPU take part in all membranes; return what each way gave, of each."""
    size, uid = len(addresses), None
    if size > 1:
        first = client.submit(unique_id, workers=addresses[:1], pure=False)
        uid = results(client, [first], START, "NCCL's unique id")[0]
    tasks = [
        client.submit(
            work, rank, size, uid, shapes, ways, rounds, steps,
            workers=[address], allow_other_workers=False, pure=False,
        )
        for rank, address in enumerate(addresses)
    ]  # fmt: skip
    ranks = results(client, tasks, LIMIT, f"waves on {size} GPUs")
    return [together(parts) for parts in zip(*ranks, strict=True)]


def together(parts: tuple[dict[str, Found], ...]) -> dict[str, Found]:
    """Join the ranks' parts of a membrane: a step takes as long as on the slowest GPU."""
    found = {}
    for name in parts[0]:
        energies, points, seconds = zip(*(part[name] for part in parts), strict=True)
        found[name] = Found(energies, np.concatenate(points), np.max(seconds, axis=0))
    return found


def compare(found: dict[str, Found], expected: Found, where: str) -> None:
    """Raise AssertionError unless a membrane's waves are those of CuPy alone on one GPU."""
    for name, (energies, points, _) in found.items():
        of = f"of {where}, {name}"
        for values in energies:  # each rank has the sum of all
            np.testing.assert_allclose(values, expected.energies[0], 1e-4, err_msg=f"energies {of}")
        np.testing.assert_allclose(points, expected.points, atol=1e-5, err_msg=f"heights {of}")

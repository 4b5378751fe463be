"""Write what was measured as a page of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.measure import Timing
from benchmarks.scale import all_reduce, frames, waves

OURS, THEIRS = "both libraries", "CuPy alone"


class Row(NamedTuple):
    """What a workload took on some GPUs, in seconds, by way; and within its tasks."""

    gpus: int
    timings: Mapping[str, Timing]
    tasks: Mapping[str, Timing] | None = None


class Curve(NamedTuple):
    """One workload on several numbers of GPUs, the first of which is 1."""

    title: str
    is_weak: bool  # the work grows with the GPUs
    rows: list[Row]


def timings(seconds: Mapping[str, Any]) -> dict[str, Timing]:
    """Return the timings of ways that took turns."""
    turns = object()
    return {name: Timing([float(s) for s in some], turns) for name, some in seconds.items()}


def table(curve: Curve, unit: str, scale: float) -> str:
    """Write a curve as a table."""
    columns = ["GPUs", unit, "spread", "speed-up", "efficiency", f"CuPy alone, {unit}"]
    columns.append("of CuPy alone")
    if curve.rows[0].tasks:
        columns += ["in the tasks", "of CuPy alone"]
    lines = [
        f"### {'Weak' if curve.is_weak else 'Strong'} scaling: {curve.title}\n",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    alone = curve.rows[0].timings[OURS].median
    for gpus, found, tasks in curve.rows:
        ours, theirs = found[OURS], found[THEIRS]
        efficiency = alone / ours.median / (1 if curve.is_weak else gpus)
        lines.append(
            f"| {gpus} | {ours.median * scale:.3f} | {ours.spread * scale:.3f} | "
            f"{efficiency * gpus:.2f} | {efficiency:.2f} | {theirs.median * scale:.3f} | "
            f"{ours.over(theirs):.3f} |"
        )
        if tasks:
            ratio = tasks[OURS].over(tasks[THEIRS])
            lines[-1] += f" {tasks[OURS].median * scale:.3f} | {ratio:.3f} |"
    return "\n".join(lines)


def all_reduce_table(found: Mapping[int, Mapping[str, Timing]], gpus: int) -> str:
    """Write the bandwidths in GB/s, and those of PyCUDA's arrays as multiples of CuPy's.

    The bus bandwidth is that of NCCL's own tests, which compares with what the hardware can do:
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    cupys, kept, each = all_reduce.CUPY, all_reduce.KEPT, all_reduce.EACH
    lines = [
        f"| float32, a GPU | {cupys}, GB/s | {kept}, GB/s | of CuPy's | {each}, GB/s | of CuPy's |",
        "|---|---|---|---|---|---|",
    ]
    for nbytes, ways in found.items():
        cells = [f"{nbytes >> 20} MiB"]
        for name, timing in ways.items():
            sent = nbytes * 2 * (gpus - 1) / gpus
            cells.append(f"{sent / timing.median / 1e3:.1f}")  # from bytes a us
            if name != cupys:
                cells.append(f"{ways[cupys].over(timing):.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(
    machine: Mapping[str, str],
    plan: Any,
    of_waves: list[Curve],
    of_frames: list[Curve],
    all_reduces: str | None,
) -> str:
    """Return the page, in Markdown."""
    height, width = plan.shape
    where = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
    parts = [
        "# Several GPUs",
        "One Dask worker process for each GPU. Times are medians of rounds, in each of which both "
        "ways take their turn. *Spread* is the distance of the quartiles. *Speed-up* and "
        "*efficiency* are of both libraries, against themselves on one GPU. *Of CuPy alone* is "
        "the median of the rounds' multiples, with the same number of GPUs. `make scaling` "
        "measures your machine.",
        f"| | |\n|---|---|\n{where}",
        "## Waves",
        "A PyCUDA kernel on `GPUArray`s, which `bridge.SourceModule` compiled. After each step, "
        "NCCL sends the outer rows to the neighbours, from the same memory and on the same stream; "
        f"nothing overlaps. Every {waves.EVERY} steps CuPy computes the energy, and NCCL sums it "
        f"over all GPUs. Events on each GPU time {plan.steps} steps, in {plan.rounds} rounds, and "
        "the slowest GPU counts. Energies and heights were those of one GPU, each time.",
        *(table(curve, "ms a step", 1e3) for curve in of_waves),
        "## Frames",
        f"Frames of {width} x {height} float32, made on the GPU from a seed: two PyCUDA kernels on "
        f"a `GPUArray`, CuPy's Gaussian filter, its maximum. {frames.BATCH} frames are a task. The "
        f"time is that of `client.map` and of gathering all results, in {plan.turns} rounds. *In "
        "the tasks* is the time within the tasks of one GPU. The rest is Dask's.",
        *(table(curve, "s", 1) for curve in of_frames),
    ]
    if all_reduces:
        parts += [
            "## All-reduce by NCCL",
            "Bus bandwidth (bytes / time x 2 (n - 1) / n for n GPUs) between CUDA events, medians "
            f"of {all_reduce.ROUNDS} rounds. One process drives all GPUs, one after another, on "
            "CuPy's current stream. CuPy's arrays, and views of GPUArrays that are kept, are sent "
            "under `cupy.cuda.Device`. To convert two arrays for each call and GPU takes "
            "`bridge.primary_context`. *Of CuPy's* is the multiple of the bandwidth of CuPy's "
            "arrays.",
            all_reduces,
        ]
    return "\n\n".join(parts) + "\n"

"""Measure several GPUs: ``python -m benchmarks.scale [--gpus 1 2 4] [--quick]``.

Needs Dask and its package distributed, and NCCL from two GPUs on.  1, 2 and 4 GPUs take two to
three minutes.  Writes ``results/scale.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from benchmarks.report import machine
from benchmarks.scale import all_reduce, frames, waves
from benchmarks.scale.cluster import START, cluster, results
from benchmarks.scale.exchange import version
from benchmarks.scale.page import Curve, Row, all_reduce_table, page, timings


class Plan(NamedTuple):
    """How much is measured."""

    sides: tuple[int, int]  # of the membranes cut into ever smaller slabs
    weak: tuple[int, int]  # rows and columns of the slab that each GPU has, whatever their number
    steps: int  # of a round
    rounds: int
    turns: int  # rounds of the frames, of which each is short
    frames: int  # in all, or for each GPU
    shape: tuple[int, int]  # of a frame


FULL = Plan((16384, 32768), (16384, 16384), 100, 9, 21, 800, (2160, 3840))
QUICK = Plan((4096, 8192), (4096, 4096), 50, 3, 3, 160, (2160, 3840))


def measure(gpus: list[int], plan: Plan) -> str:
    """Measure with each number of GPUs, of which the first is 1; return the page."""
    where = {**machine(), **_more(gpus[-1])}
    bandwidths = None
    with cluster(gpus[-1]) as (client, addresses):
        if gpus[-1] > 1:
            asked = client.submit(version, workers=addresses[:1])
            where["NCCL"] = results(client, [asked], START, "NCCL's version")[0]
        of_waves = measure_waves(client, addresses, gpus, plan)
        of_frames = measure_frames(client, addresses, gpus, plan)
    if gpus[-1] > 1:
        bandwidths = all_reduce_table(all_reduce.measure(gpus[-1]), gpus[-1])
        print("all-reduce: the sums are right", flush=True)
    return page(where, plan, of_waves, of_frames, bandwidths)


def measure_waves(client: Any, addresses: list[str], gpus: list[int], plan: Plan) -> list[Curve]:
    """Measure each membrane, and compare its waves with those of CuPy alone on one GPU."""
    rows, columns = plan.weak
    curves = [Curve(f"{side} x {side} in all", False, []) for side in plan.sides]
    curves.append(Curve(f"{rows} x {columns} a GPU", True, []))
    shapes = {n: [*((side, side) for side in plan.sides), (rows * n, columns)] for n in gpus}
    different = list(dict.fromkeys(shape for some in shapes.values() for shape in some))
    alone = waves.measure(client, addresses[:1], different, ["CuPy alone"], 0, 0)
    expected = dict(zip(different, alone, strict=True))
    for n in gpus:
        different = list(dict.fromkeys(shapes[n]))
        found = waves.measure(
            client, addresses[:n], different, list(waves.WAYS), plan.rounds, plan.steps
        )
        taken = {}
        for shape, ways in zip(different, found, strict=True):
            where = f"{shape[0]} x {shape[1]} on {n} GPUs"
            waves.compare(ways, expected[shape]["CuPy alone"], where)
            taken[shape] = timings({name: one.seconds for name, one in ways.items()})
        for curve, shape in zip(curves, shapes[n], strict=True):
            curve.rows.append(Row(n, taken[shape]))
        print(f"waves on {n}: the energies and heights are those of one GPU", flush=True)
    return curves


def measure_frames(client: Any, addresses: list[str], gpus: list[int], plan: Plan) -> list[Curve]:
    """Measure the frames; their brightest spots must be those of one GPU."""
    strong = Curve(f"{plan.frames} frames in all", False, [])
    weak = Curve(f"{plan.frames} frames a GPU", True, [])
    spots: list[float] = []
    for n in gpus:
        rows = {}
        for number in dict.fromkeys((plan.frames, plan.frames * n)):
            seconds, within, found = frames.measure(
                client, addresses[:n], number, plan.turns, plan.shape
            )
            spots = spots or found
            np.testing.assert_allclose(found[: len(spots)], spots, rtol=1e-6)
            rows[number] = Row(n, timings(seconds), timings(within))
        strong.rows.append(rows[plan.frames])
        weak.rows.append(rows[plan.frames * n])
        print(f"frames on {n}: the brightest spots are those of one GPU", flush=True)
    return [strong, weak]


def _more(gpus: int) -> dict[str, str]:
    """Say of the machine what matters to several GPUs."""
    import distributed

    runtime = cupy.cuda.runtime
    pairs = [(i, j) for i in range(gpus) for j in range(gpus) if i != j]
    reach = all(runtime.deviceCanAccessPeer(i, j) for i, j in pairs)
    name = runtime.getDeviceProperties(0)["name"].decode()
    return {
        "GPU": f"{gpus} x {name}" if gpus > 1 else name,
        "peer access": "between all of them" if pairs and reach else "not between all of them",
        "Dask": distributed.__version__,
    }


def main() -> None:
    """Measure, print the page and write it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--gpus", type=int, nargs="+", metavar="N", help="e.g. 2 4; 1 always is")
    parser.add_argument("--quick", action="store_true", help="smaller, and fewer rounds")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    there = cupy.cuda.runtime.getDeviceCount()
    gpus = sorted({1, *(options.gpus or [n for n in (2, 4, 8) if n <= there])})
    if gpus[0] < 1 or gpus[-1] > there:
        parser.error(f"--gpus: {gpus[-1]}; CUDA sees {there}")
    text = measure(gpus, QUICK if options.quick else FULL)
    print(f"\n{text}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "scale.md").write_text(text)


if __name__ == "__main__":
    main()

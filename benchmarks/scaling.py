"""Measure several GPUs: ``python -m benchmarks.scaling [--gpus 1 2 4] [--quick]``.

Two workloads on Dask, one worker process for each GPU: waves whose halos go by NCCL, in one long
task for each GPU, and batches of 4K frames, in many short ones.  Each with both libraries, and with
CuPy alone, in turn.  Needs the packages dask and distributed, and NCCL from two GPUs on; 1, 2 and 4
GPUs take two to three minutes.  Writes ``scaling.json``, ``scaling.md`` and ``scaling.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from benchmarks import batches, scaling_tables, waves
from benchmarks.measure import Timing
from benchmarks.report import machine


class Plan(NamedTuple):
    """How much is measured."""

    sides: tuple[int, int]  # of the membranes cut into ever smaller slabs
    weak: tuple[int, int]  # rows and columns of the slab that each GPU has, whatever their number
    thin: tuple[int, ...]  # rows of the slabs that 8, 64 and 512 GPUs would have of the largest
    steps: int  # of a round; of the thin ones ten times as many
    rounds: int
    turns: int  # rounds of the frames, of which each is short
    frames: int  # in all, or for each GPU
    shape: tuple[int, int]


FULL = Plan((16384, 32768), (16384, 16384), (4096, 512, 64), 100, 9, 21, 800, batches.FRAME)
QUICK = Plan((4096, 8192), (4096, 4096), (1024, 128), 50, 3, 3, 160, batches.FRAME)

# Seconds after which a phase counts as stuck: as it is where a rank failed and others wait for it.
START, WAVES, FRAMES = 60, 90, 60


@contextlib.contextmanager
def cluster(gpus: int) -> Iterator[tuple[Any, list[str]]]:
    """Start a worker process of one thread for each GPU; yield Dask's client, their addresses."""
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster

    # A worker that died is not replaced: the others would wait for it in NCCL.
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    workers = {}
    for number in range(gpus):
        device = visible[number] if visible else str(number)
        options = {
            "host": "127.0.0.1",
            "nthreads": 1,
            "memory_limit": 0,  # none: Dask would set it by a memory size that may yet grow
            "env": {"CUDA_VISIBLE_DEVICES": device},
            "silence_logs": logging.ERROR,
        }
        workers[number] = {"cls": Nanny, "options": options}
    scheduler = {
        "cls": Scheduler,
        "options": {"dashboard": False, "host": "127.0.0.1", "port": 0},
    }
    with (
        SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR) as started,
        Client(started, timeout=START) as client,
    ):
        client.wait_for_workers(gpus, timeout=START)
        yield client, [started.workers[number].worker_address for number in range(gpus)]


def end_workers_when_told_to_stop() -> None:
    """Let SIGTERM raise, as Ctrl-C does: then `cluster` ends its workers, which leave nothing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def results(client: Any, futures: list[Any], limit: float, what: str) -> list[Any]:
    """Return what tasks returned; raise the first error of one, or TimeoutError."""
    from distributed import TimeoutError as Late, as_completed

    try:
        for future in as_completed(futures, timeout=limit):
            if future.status != "finished":
                future.result()  # raises
    except Late:
        states = ", ".join(future.status for future in futures)
        raise TimeoutError(f"{what}: no end within {limit} s; the tasks are {states}") from None
    found: list[Any] = client.gather(futures)
    return found


def measure_waves(
    client: Any, addresses: list[str], plan: Plan, gpus: list[int]
) -> list[dict[str, Any]]:
    """Return what each membrane's steps took on these GPUs, and the results to be compared."""
    size = len(addresses)
    thin = [(rows, max(plan.sides)) for rows in plan.thin]
    sizes = {(side, side): plan.steps for side in plan.sides}
    sizes[plan.weak[0] * size, plan.weak[1]] = plan.steps
    for rows, columns in thin:
        sizes.setdefault((rows * size, columns), 10 * plan.steps)
    cases = [waves.Case(*shape, plan.rounds, steps) for shape, steps in sizes.items()]
    if size == 1:  # and what the larger ones are compared with
        slabs = [plan.weak, *thin]
        larger = [(rows * number, columns) for rows, columns in slabs for number in gpus]
        cases += [waves.Case(*shape, 0, 0) for shape in dict.fromkeys(larger) if shape not in sizes]
    uid = None
    if size > 1:
        first = client.submit(waves.unique_id, workers=addresses[:1], pure=False)
        uid = results(client, [first], START, "NCCL's unique id")[0]
    tasks = [
        client.submit(
            waves.work, rank, size, uid, cases,
            workers=[address], allow_other_workers=False, pure=False,
        )
        for rank, address in enumerate(addresses)
    ]  # fmt: skip
    ranks = results(client, tasks, WAVES, f"waves on {size} GPUs")
    return [_together(case, parts) for case, *parts in zip(cases, *ranks, strict=True)]


def _together(case: waves.Case, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Make one of what the ranks say of a case: a step takes as long as on the slowest GPU."""
    names, timed = parts[0]["energies"], parts[0]["seconds"]
    return {
        "gpus": len(parts),
        "rows": case.rows,
        "columns": case.columns,
        "energies": {name: [part["energies"][name] for part in parts] for name in names},
        "points": {name: np.concatenate([p["points"][name] for p in parts]) for name in names},
        "seconds": {name: np.max([p["seconds"][name] for p in parts], axis=0) for name in timed},
    }


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise AssertionError unless a membrane's waves are those of CuPy alone on one GPU."""
    for name, energies in found["energies"].items():
        where = f"{found['rows']} x {found['columns']} on {found['gpus']} GPUs, {name}"
        for rank, values in enumerate(energies):
            np.testing.assert_allclose(
                values, expected["energies"]["CuPy alone"][0], rtol=1e-4,
                err_msg=f"energies of {where}, rank {rank}",
            )  # fmt: skip
        np.testing.assert_allclose(
            found["points"][name], expected["points"]["CuPy alone"], atol=1e-5,
            err_msg=f"heights of {where}",
        )  # fmt: skip


def measure_frames(
    client: Any, addresses: list[str], frames: int, plan: Plan
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
    """Return what all frames took in each round, each way; without Dask; the brightest spots."""
    from distributed import TimeoutError as Late, wait

    number = batches.BATCH
    seeds = [list(range(k, min(k + number, frames))) for k in range(0, frames, number)]
    seconds: dict[str, list[float]] = {name: [] for name in batches.WAYS}
    within: dict[str, list[float]] = {name: [] for name in batches.WAYS}
    spots: dict[str, list[float]] = {}
    ways = list(batches.WAYS)
    for turn in range(plan.turns + 1):
        ways.reverse()  # neither is always the one after the other
        for way in ways:
            start = time.perf_counter()
            futures = client.map(
                batches.batch, seeds, way=way, shape=plan.shape,
                workers=addresses, allow_other_workers=False, pure=False,
            )  # fmt: skip
            try:
                wait(futures, timeout=FRAMES)
            except Late:
                text = f"{frames} frames on {len(addresses)} GPUs: no end within {FRAMES} s"
                raise TimeoutError(text) from None
            parts = client.gather(futures)
            took = time.perf_counter() - start
            del futures
            spots[way] = [spot for found, _ in parts for spot in found]
            if turn:  # the first one is the warm-up
                seconds[way].append(took)
                within[way].append(sum(task for _, task in parts) / len(addresses))
    np.testing.assert_allclose(spots["both libraries"], spots["CuPy alone"], rtol=1e-6)
    return seconds, within, spots["CuPy alone"]


def row(seconds: dict[str, Any], **what: int) -> dict[str, Any]:
    """Return a row of ``scaling.json``: median, spread and rounds of each way, and the ratio."""
    turns = object()
    timings = {n: Timing([float(s) for s in samples], turns) for n, samples in seconds.items()}
    ways = {
        name: {"median": timing.median, "spread": timing.spread, "samples": timing.samples}
        for name, timing in timings.items()
    }
    ratio = timings["both libraries"].over(timings["CuPy alone"])
    return {**what, "ratio": ratio, "seconds": ways}


def measure(gpus: list[int], plan: Plan, folder: Path) -> None:
    """Measure with each number of GPUs; write ``scaling.json`` anew after each part."""
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {text}", flush=True)

    found: dict[str, Any] = {
        "machine": {**machine(), **_more(gpus[-1])},
        "plan": {**plan._asdict(), "every": waves.EVERY, "batch": batches.BATCH},
        "waves": [],
        "frames": [],
    }
    expected: dict[tuple[int, int], dict[str, Any]] = {}
    spots: list[float] = []
    with cluster(gpus[-1]) as (client, addresses):
        say(f"{gpus[-1]} workers")
        if gpus[-1] > 1:
            asked = client.submit(waves.nccl_version, workers=addresses[:1])
            found["machine"]["NCCL"] = results(client, [asked], START, "NCCL's version")[0]
        for size in gpus:
            for case in measure_waves(client, addresses[:size], plan, gpus):
                shape = case["rows"], case["columns"]
                compare(case, expected.setdefault(shape, case))
                if len(case["seconds"]) > 1:
                    what = {"gpus": size, "rows": shape[0], "columns": shape[1]}
                    found["waves"].append(row(case["seconds"], **what))
            _save(found, folder)
            say(f"waves on {size}: the energies and heights are those of one GPU")
            for frames in dict.fromkeys((plan.frames, plan.frames * size)):
                seconds, within, bright = measure_frames(client, addresses[:size], frames, plan)
                spots = spots or bright
                np.testing.assert_allclose(bright[: len(spots)], spots, rtol=1e-6)
                all_in = row(seconds, gpus=size, frames=frames)
                found["frames"].append({**all_in, "tasks": row(within)})
            _save(found, folder)
            say(f"frames on {size}: the brightest spots are those of one GPU")
    say("done")


def _save(found: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")


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
    """Measure, and write the tables and the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--gpus", type=int, nargs="+", metavar="N", help="e.g. 2 4; 1 always is")
    parser.add_argument("--quick", action="store_true", help="smaller, and fewer rounds")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    there = cupy.cuda.runtime.getDeviceCount()
    gpus = sorted({1, *(options.gpus or [n for n in (2, 4, 8) if n <= there])})
    if gpus[0] < 1 or gpus[-1] > there:
        parser.error(f"--gpus: {gpus[-1]}; CUDA sees {there}")
    end_workers_when_told_to_stop()
    measure(gpus, QUICK if options.quick else FULL, options.output)
    scaling_tables.write(options.output)


if __name__ == "__main__":
    main()

"""Time small calls beside each other, so that a ratio is worth more than either number."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Microseconds a call: the median of the rounds, and the distance of the quartiles."""

    median: float
    spread: float


def measure(
    calls: dict[str, Callable[[], Any]], rounds: int = 31, repeat: int = 2000
) -> dict[str, Timing]:
    """Time each call in turn, round after round, so that all see the same machine."""
    for call in calls.values():
        _once(call, repeat // 10 + 1)
    gc.collect()
    gc.disable()
    try:
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                samples[name].append(_once(call, repeat))
    finally:
        gc.enable()
    timings = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4)
        timings[name] = Timing(median, high - low)
    return timings


def _once(call: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat * 1e6


def table(title: str, timings: dict[str, Timing], subject: str, goals: dict[str, float]) -> str:
    """Write a Markdown table: each call, its time, and `subject` as a multiple of it."""
    rows = [
        f"\n### {title}\n",
        f"| call | us | spread | {subject} is | goal |",
        "|---|---|---|---|---|",
    ]
    for name, timing in timings.items():
        ratio = timings[subject].median / timing.median
        goal = (
            f"<= {goals[name]:.2f}{'' if ratio <= goals[name] else ' MISSED'}"
            if name in goals
            else ""
        )
        row = f"| {name} | {timing.median:.2f} | {timing.spread:.2f} |"
        rows.append(f"{row} {'' if name == subject else f'{ratio:.2f} of it'} | {goal} |")
    return "\n".join(rows)

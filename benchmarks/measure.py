"""Time small calls beside each other, so that a ratio is worth more than either number."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cupy


class Timing(NamedTuple):
    """The median of the rounds, and the distance of the quartiles."""

    median: float
    spread: float


def measure(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 31, repeat: int = 2000
) -> dict[str, Timing]:
    """Time each call in turn, round after round, so that all see the same machine: CPU us a call.

    The GPU is idle when a round begins.
    """
    return _rounds(calls, rounds, repeat, _on_cpu)


def measure_gpu(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 15, repeat: int = 10
) -> dict[str, Timing]:
    """Time each call in turn, round after round, between events on the stream: GPU us a call."""
    return _rounds(calls, rounds, repeat, _on_gpu)


def _rounds(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    repeat: int,
    once: Callable[[Callable[[], Any], int], float],
) -> dict[str, Timing]:
    for call in calls.values():
        once(call, repeat // 10 + 1)
    gc.collect()
    gc.disable()
    try:
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                samples[name].append(once(call, repeat))
    finally:
        gc.enable()
    return {name: timing(values) for name, values in samples.items()}


def timing(samples: list[float]) -> Timing:
    """Sum up the rounds of one call."""
    low, median, high = statistics.quantiles(samples, n=4)
    return Timing(median, high - low)


def _on_cpu(call: Callable[[], Any], repeat: int) -> float:
    cupy.cuda.runtime.deviceSynchronize()
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat * 1e6


def _on_gpu(call: Callable[[], Any], repeat: int) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(repeat):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / repeat * 1e3

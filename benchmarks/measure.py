"""Time small calls beside each other, so that a ratio is worth more than either number."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import cupy

import bridge


@dataclass(frozen=True)
class Timing:
    """What the rounds of one call took.

    Those of calls that took turns in the same rounds have the same object in `rounds`.
    """

    samples: list[float]
    rounds: object = None

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The distance of the quartiles."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return high - low

    def over(self, other: Timing) -> float:
        """Return the median as a multiple of the other's: round by round, where they took turns.

        A machine that is slower for a while, as one that others use too, is so for both.
        """
        if self.rounds is None or self.rounds is not other.rounds:
            return self.median / other.median
        pairs = zip(self.samples, other.samples, strict=True)
        return statistics.median(one / another for one, another in pairs)

    def __add__(self, other: Timing) -> Timing:
        """Return the rounds' sums, of calls that took turns."""
        pairs = zip(self.samples, other.samples, strict=True)
        return Timing([one + another for one, another in pairs], self.rounds)


class Loop(NamedTuple):
    """A call that is repeated in C."""

    run: Callable[[int], Any]

    def __call__(self) -> None:
        """Call once."""
        self.run(1)


def measure(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 31, repeat: int = 2000
) -> dict[str, Timing]:
    """Time each call in turn, round after round, so that all see the same machine: CPU us a call.

    The GPU is idle when a round begins.
    """
    return _rounds(calls, rounds, repeat, on_cpu)


def measure_threads(call: Callable[[], Any], count: int = 100_000) -> dict[str, Timing]:
    """Time calls shared out to four threads, and the same on one: us a call."""

    def work(number: int) -> None:
        with bridge.primary_context():
            for _ in range(number):
                call()

    def together(number: int) -> float:
        workers = [threading.Thread(target=work, args=(count // number,)) for _ in range(number)]
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return (time.perf_counter() - start) / count * 1e6

    together(4)
    samples: dict[str, list[float]] = {"4 threads": [], "1 thread": []}
    for _ in range(15):
        for name, found in samples.items():
            found.append(together(int(name[0])))
    return {name: Timing(found, samples) for name, found in samples.items()}


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
    return {name: Timing(values, samples) for name, values in samples.items()}


def on_cpu(call: Callable[[], Any], repeat: int) -> float:
    """Return the CPU us a call, begun with an idle GPU."""
    cupy.cuda.runtime.deviceSynchronize()
    start = time.perf_counter()
    if isinstance(call, Loop):
        call.run(repeat)
    else:
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

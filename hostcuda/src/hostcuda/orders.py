"""Run a program in several orders of its queued work, and name the work that races.

CUDA leaves open when queued work runs, beyond what streams, events and the host's waits order.  A
program whose output depends on it has a race.  Which two pieces of work race is found in the traces
of two runs with different outputs: they are not ordered, touch the same bytes, at least one changes
them, and the runs had them in different orders.
"""

from __future__ import annotations

import difflib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MOST_SHOWN = 3  # pairs


class Range(NamedTuple):
    """Bytes of a block."""

    block: int
    size: int  # of the block
    first: int
    end: int


class Work(NamedTuple):
    """A piece of queued work, as one run had it."""

    number: int  # in the order of the calls, with those that have no name, such as fences
    place: int  # in the order of execution
    stream: int
    name: str
    clock: dict[int, int]  # stream -> the last work on it that comes before
    reads: list[Range]  # what it may read
    writes: list[Range]  # what it changed

    @property
    def exact_reads(self) -> list[Range]:
        """What it certainly reads: a kernel reads what it likes from its pointers on."""
        return [] if self.name.startswith("kernel ") else self.reads


class Run(NamedTuple):
    """One run of the program."""

    order: str
    output: str
    status: int
    work: list[Work]  # in the order of the calls


def compare(program: list[str], count: int, seed: int) -> int:
    """Run a program in `count` orders; print what differs; return the exit status, 1 for a race.

    `program` are arguments of ``python -m hostcuda``.
    """
    orders = ["latest", "earliest", *(f"random:{seed + i}" for i in range(count - 2))]
    first, again = (_run(program, "latest") for _ in range(2))
    if (first.output, first.status) != (again.output, again.status):
        print(_difference(first, again), file=sys.stderr)
        print(
            "hostcuda: two runs in the same order differ (times? random numbers? addresses?), so "
            "that orders cannot be compared: let the program print the same each time",
            file=sys.stderr,
        )
        return 1
    sys.stdout.write(first.output)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for other in pool.map(lambda order: _run(program, order), orders[1:]):
            if (first.output, first.status) != (other.output, other.status):
                print(_difference(first, other), file=sys.stderr)
                print(_explain(first, other), file=sys.stderr)
                pool.shutdown(cancel_futures=True)
                return 1
    failed = f"; the program fails in each, with exit status {first.status}" if first.status else ""
    print(f"hostcuda: the same output in {len(orders)} orders{failed}", file=sys.stderr)
    return first.status


def _run(program: list[str], order: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        variables = {"HOSTCUDA_ORDER": order, "HOSTCUDA_TRACE": str(trace)}
        done = subprocess.run(
            [sys.executable, "-m", "hostcuda", *program],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        work = _read(trace.read_text()) if trace.exists() else []
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as in a shell
    return Run(order, done.stdout, status, work)


def _read(trace: str) -> list[Work]:
    """Return the work of a trace, in the order of the calls."""
    found: list[Work] = []
    for line in trace[: trace.rfind("\n") + 1].splitlines():  # a crash may cut the last line
        kind, *fields = line.split(" ", 3 if line.startswith("work ") else -1)
        if kind == "work":
            number, stream = map(int, fields[:2])
            work = Work(number, len(found), stream, fields[2], {}, [], [])
            found.append(work)
        elif kind == "after":
            work.clock[int(fields[0])] = int(fields[1])
        else:
            block, size, start, length = map(int, fields)
            ranges = work.reads if kind == "read" else work.writes
            ranges.append(Range(block, size, start, start + length))
    return sorted(found)


def _difference(one: Run, other: Run) -> str:
    lines = difflib.unified_diff(
        one.output.splitlines(),
        other.output.splitlines(),
        f"order {one.order}, exit status {one.status}",
        f"order {other.order}, exit status {other.status}",
        lineterm="",
        n=0,
    )
    return "\n".join(itertools.islice(lines, 20)) or (
        f"hostcuda: exit status {one.status} in order {one.order}, {other.status} in {other.order}"
    )


def _explain(one: Run, other: Run) -> str:
    """Name the pairs of work that race, the earliest first; those that may, if none is sure."""
    pairs = list(_races(one, other))
    unsure = all(is_unsure for is_unsure, _ in pairs)
    texts = list(dict.fromkeys(text for is_unsure, text in pairs if is_unsure == unsure))
    if not texts:
        return (
            "hostcuda: no two pieces of work are found that race: perhaps the host reads or "
            "changes page-locked or managed memory while work uses it, or a kernel reads through a "
            "pointer that lies in memory"
        )
    shown = [f"hostcuda: a race: {text}" for text in texts[:MOST_SHOWN]]
    if more := len(texts) - len(shown):
        shown.append(f"hostcuda: and {more} more pairs")
    return "\n".join(shown)


def _named(stream: int) -> str:
    return "the default stream" if stream == 1 else f"stream {stream}"


def _races(one: Run, other: Run) -> Iterator[tuple[bool, str]]:
    """Yield pairs of work; True with those that race only if a kernel reads what it may."""
    # The same calls, until one run does otherwise.
    pairs = zip(one.work, other.work, strict=False)
    both = list(itertools.takewhile(lambda pair: pair[0].name == pair[1].name, pairs))
    for (b, b_there), (a, a_there) in ((j, i) for n, j in enumerate(both) for i in both[:n]):
        if a.stream == b.stream or b.clock.get(a.stream, 0) >= a.number:
            continue  # ordered
        if (a_there.place > b_there.place) == (a.place > b.place):
            continue
        by_a, by_b = a.writes + a_there.writes, b.writes + b_there.writes
        names = f"{a.name} (on {_named(a.stream)}) and {b.name} (on {_named(b.stream)}) are not"
        if common := _common(by_a, by_b + b.exact_reads) or _common(by_b, a.exact_reads):
            yield False, f"{names} ordered, and both use {common}"
        elif common := _common(by_a, b.reads) or _common(by_b, a.reads):
            yield True, f"{names} ordered, and may both use {common}"


def _common(ranges: list[Range], others: list[Range]) -> str:
    """Describe the bytes of the first block that two lists of ranges share; "" if there is none."""
    shared = [
        Range(one.block, one.size, max(one.first, other.first), min(one.end, other.end))
        for one, other in itertools.product(ranges, others)
        if one.block == other.block and max(one.first, other.first) < min(one.end, other.end)
    ]
    shared = [common for common in shared if common.block == shared[0].block]
    if not shared:
        return ""
    first, end = min(common.first for common in shared), max(common.end for common in shared)
    end = min(-(-end // 4) * 4, shared[0].size)  # of numbers, often only some bytes change
    return f"bytes {first // 4 * 4} to {end} of a block of {shared[0].size}"

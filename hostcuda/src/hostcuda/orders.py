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
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

DAMAGED = 70  # the exit status where checks find something, and outputs are the same
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
    reads: list[Range]
    writes: list[Range]
    notes: dict[str, str]  # "caller": the line of the program; "hash": of what was written

    def __str__(self) -> str:
        """Return its name, and where the program queued it."""
        caller = self.notes.get("caller")
        return f"{self.name} of {caller}" if caller else self.name


class Run(NamedTuple):
    """One run of the program."""

    order: str
    output: str
    status: int
    work: list[Work]  # in the order of the calls; empty if the run was not traced
    findings: list[str]
    report: str = ""  # pytest's, of the tests that failed: it has times and addresses

    @property
    def result(self) -> tuple[str, int]:
        """What runs are compared by: not by addresses in the driver's own messages."""
        output = re.sub(r"(?m)(^hostcuda: kernel .* at )0x\w+,", r"\1an address,", self.output)
        return output, self.status


def compare(program: list[str], count: int, seed: int) -> int:
    """Run a program in `count` orders; print what differs; return the exit status, 1 for a race.

    `program` are arguments of ``python -m hostcuda``.  Only runs that are explained are traced.
    """
    orders = ["earliest", *(f"random:{seed + i}" for i in range(count - 2))]
    first, traced = _run(program, "latest"), _run(program, "latest", trace=True)
    if first.result != traced.result:
        print(_difference(first, traced), file=sys.stderr)
        print(
            "hostcuda: two runs in the same order differ (times? random numbers? addresses?), so "
            "that orders cannot be compared: let the program print the same each time",
            file=sys.stderr,
        )
        return 1
    sys.stdout.write(first.output + first.report)
    for finding in dict.fromkeys(traced.findings):
        print(f"hostcuda: {finding}", file=sys.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for other in pool.map(lambda order: _run(program, order), orders):
            if first.result != other.result:
                pool.shutdown(wait=False, cancel_futures=True)
                print(_difference(first, other), other.report, sep="\n", file=sys.stderr)
                print(_explain(program, traced, other), file=sys.stderr)
                return 1
    failed = f"; the program fails in each, with exit status {first.status}" if first.status else ""
    print(f"hostcuda: the same output in {count} orders{failed}", file=sys.stderr)
    return first.status or DAMAGED * bool(traced.findings)


def _run(program: list[str], order: str, trace: bool = False) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder, "trace"), Path(folder, "report")
        report.touch()
        variables = {"HOSTCUDA_ORDER": order, "HOSTCUDA_TRACE": str(path) if trace else ""}
        variables |= {"HOSTCUDA_CHECK": str(int(trace)), "HOSTCUDA_REPORT": str(report)}
        done = subprocess.run(
            [sys.executable, "-m", "hostcuda", *program],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        work, findings = _read(path.read_text()) if path.exists() else ([], [])
        reported = report.read_text()
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as in a shell
    return Run(order, done.stdout, status, work, findings, reported)


def _read(trace: str) -> tuple[list[Work], list[str]]:
    """Return the work of a trace, in the order of the calls, and what checks found."""
    found: list[Work] = []
    findings = []
    for line in trace[: trace.rfind("\n") + 1].splitlines():  # a crash may cut the last line
        kind, _, text = line.partition(" ")
        if kind == "work":
            number, stream, name = text.split(" ", 2)
            work = Work(int(number), len(found), int(stream), name, {}, [], [], {})
            found.append(work)
        elif kind == "found":
            findings.append(text)
        elif kind == "after":
            on, last = map(int, text.split())
            work.clock[on] = last
        elif kind in ("read", "write"):
            block, size, start, length = map(int, text.split())
            ranges = work.reads if kind == "read" else work.writes
            ranges.append(Range(block, size, start, start + length))
        else:
            work.notes[kind] = text
    return sorted(found, key=lambda work: work[:2]), findings


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


def _explain(program: list[str], one: Run, other: Run) -> str:
    """Name the pairs of work that race, the earliest first; or the kernel whose threads do."""
    kind, _, seed = other.order.partition(":")
    if kind == "random":
        threads = _run(program, f"latest:{int(seed) + 1}", trace=True)
        if threads.result != one.result:
            return _explain_threads(one, threads)
    texts = list(dict.fromkeys(_races(one, _run(program, other.order, trace=True))))
    if not texts:
        return (
            "hostcuda: no two pieces of work are found that race: perhaps the host reads or "
            "changes page-locked or managed memory while work uses it"
        )
    shown = [f"hostcuda: a race: {text}" for text in texts[:MOST_SHOWN]]
    if more := len(texts) - len(shown):
        shown.append(f"hostcuda: and {more} more pairs")
    return "\n".join(shown)


def _explain_threads(one: Run, other: Run) -> str:
    """Name the first kernel that wrote something else with its threads in another order."""
    pairs = zip(one.work, other.work, strict=False)
    changed = (a for a, b in pairs if a.notes.get("hash") != b.notes.get("hash"))
    return (
        f"hostcuda: the order of threads and blocks in {next(changed, 'a kernel')} makes the "
        "difference, also where queued work keeps its order: is a barrier missing? or are floats "
        "added by atomics, or texts printed by several threads?"
    )


def _named(stream: int) -> str:
    return "the default stream" if stream == 1 else f"stream {stream}"


def _races(one: Run, other: Run) -> Iterator[str]:
    """Describe pairs of work that are not ordered, and that the runs had in different orders."""
    # The same calls, until one run does otherwise.
    pairs = zip(one.work, other.work, strict=False)
    both = list(itertools.takewhile(lambda pair: pair[0].name == pair[1].name, pairs))
    for (b, b_there), (a, a_there) in ((j, i) for n, j in enumerate(both) for i in both[:n]):
        if a.stream == b.stream or b.clock.get(a.stream, 0) >= a.number:
            continue  # ordered
        if (a_there.place > b_there.place) == (a.place > b.place):
            continue
        by_a, by_b = a.writes + a_there.writes, b.writes + b_there.writes
        of_a, of_b = a.reads + a_there.reads, b.reads + b_there.reads
        if common := _common(by_a, by_b + of_b) or _common(by_b, of_a):
            yield (
                f"{a} (on {_named(a.stream)}) and {b} (on {_named(b.stream)}) are not ordered, and "
                f"both use {common}"
            )


def _common(ranges: list[Range], others: list[Range]) -> str:
    """Describe the bytes of the first block that two lists of ranges share; "" if there is none."""
    shared: list[Range] = []
    left, right = _joined(ranges), _joined(others)
    while left and right:
        one, other = left[-1], right[-1]
        first, end = max(one.first, other.first), min(one.end, other.end)
        if one.block == other.block and first < end:
            shared.append(Range(one.block, one.size, first, end))
        (left if (one.block, one.first) > (other.block, other.first) else right).pop()
    shared = [common for common in shared if common.block == shared[-1].block]
    if not shared:
        return ""
    first, end = min(common.first for common in shared), max(common.end for common in shared)
    return f"bytes {first} to {end} of a block of {shared[0].size}"


def _joined(ranges: list[Range]) -> list[Range]:
    """Sort ranges, and join those that overlap."""
    found: list[Range] = []
    for one in sorted(ranges):
        if found and found[-1].block == one.block and one.first <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, one.end))
        else:
            found.append(one)
    return found

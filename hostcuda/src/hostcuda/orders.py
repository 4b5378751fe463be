"""Run a program in several orders of its queued work, threads and blocks, and compare its output.

CUDA leaves open when queued work runs, beyond what streams, events and the host's waits order.  A
program whose output depends on it has a race.  The pairs of work that nothing orders are what
``--check`` finds, in one of the runs.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

DAMAGED = 70  # the exit status where checks find something, and outputs are the same


class Run(NamedTuple):
    """One run of the program."""

    order: str
    output: str
    status: int
    findings: list[str]  # of checks
    report: str = ""  # pytest's, of the tests that failed: it has times and addresses

    @property
    def result(self) -> tuple[str, int]:
        """What runs are compared by: not by addresses and callers in the driver's own messages."""
        output = re.sub(r"(?m)(^hostcuda: kernel .* at )0x\w+,", r"\1an address,", self.output)
        output = re.sub(r"(?m)(^hostcuda: kernel .*) that .* allocated( and)?", r"\1", output)
        return output, self.status


def compare(program: list[str], count: int, seed: int) -> int:
    """Run a program in `count` orders; print what differs; return the exit status, 1 for a race.

    `program` are arguments of ``python -m hostcuda``.
    """
    orders = ["earliest", *(f"random:{seed + i}" for i in range(count - 2))]
    first, checked = _run(program, "latest"), _run(program, "latest", check=True)
    for finding in dict.fromkeys(checked.findings):
        print(f"hostcuda: {finding}", file=sys.stderr)
    if first.result != checked.result:
        print(_difference(first, checked), file=sys.stderr)
        print(
            "hostcuda: two runs in the same order differ (times? random numbers? addresses?), so "
            "that orders cannot be compared: let the program print the same each time",
            file=sys.stderr,
        )
        return 1
    sys.stdout.write(first.output + first.report)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for other in pool.map(lambda order: _run(program, order), orders):
            if first.result != other.result:
                pool.shutdown(wait=False, cancel_futures=True)
                print(_difference(first, other), other.report, sep="\n", file=sys.stderr)
                print(
                    "hostcuda: the order of work, threads or blocks makes the difference: see what "
                    "--check finds, above"
                    if checked.findings
                    else "hostcuda: the order makes the difference, and --check finds no race: are "
                    "floats added by atomics, or texts printed by several threads? Or does the "
                    "host use page-locked or managed memory while work uses it?",
                    file=sys.stderr,
                )
                return 1
    failed = f"; the program fails in each, with exit status {first.status}" if first.status else ""
    print(f"hostcuda: the same output in {count} orders{failed}", file=sys.stderr)
    return first.status or DAMAGED * bool(checked.findings)


def _run(program: list[str], order: str, check: bool = False) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        findings, report = Path(folder, "findings"), Path(folder, "report")
        findings.touch()
        report.touch()
        variables = {"HOSTCUDA_ORDER": order, "HOSTCUDA_CHECK": str(int(check))}
        variables |= {"HOSTCUDA_FINDINGS": str(findings), "HOSTCUDA_REPORT": str(report)}
        done = subprocess.run(
            [sys.executable, "-m", "hostcuda", *program],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        found, reported = findings.read_text().splitlines(), report.read_text()
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as in a shell
    return Run(order, done.stdout, status, found, reported)


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

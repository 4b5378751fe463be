"""Running a program and its edited copy, and comparing what they print."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_MOST = 20  # lines of a difference that are shown


def compare(program: Path, copy: Path, arguments: Sequence[str]) -> bool:
    """Run a program and its copy, print how their output differs, and return whether it is equal.

    It is not if the two fail, also if they do so alike.
    The program runs by Python alone.  If that fails, because nvcc is missing for example, it runs
    by ``python -m bridge run``.  Lines that differ between two runs of the program are ignored.
    """
    before: list[str] = []
    original = _run([str(program), *arguments])
    if failed := _failure(original):
        print(f"compare: {program} fails by Python alone ({failed}); now by python -m bridge run")
        before = ["-m", "bridge", "run"]
        original = _run([*before, str(program), *arguments])
        if failed := _failure(original):
            print(f"compare: {program} fails, so there is nothing to compare: {failed}")
            return False
    edited = _run([str(copy), *arguments])
    if failed := _failure(edited):
        print(f"compare: {copy} fails: {failed}")
        return False
    status = original.returncode
    if edited.returncode != status:
        print(f"compare: the exit status is {status} before and {edited.returncode} after")
        return False
    old, new = original.stdout.splitlines(), edited.stdout.splitlines()
    changing = set[int]()
    if old != new:
        again = _run([*before, str(program), *arguments]).stdout.splitlines()
        if len(old) == len(again) == len(new):
            changing = {n for n, line in enumerate(old) if line != again[n]}
    for number in changing:
        new[number] = old[number]
    if old != new:
        difference = [*difflib.unified_diff(old, new, str(program), str(copy), "", "", 0, "")]
        print("compare: they print different lines", *difference[:_MOST], sep="\n")
        return False
    if status:
        print(
            f"compare: both print the same (lines: {len(old)}), and both fail: exit status {status}"
        )
        return False
    if not old:
        print(f"compare: nothing is printed, so only the exit status {status} is compared")
        return True
    ignored = f", but for {len(changing)} that differ in each run" if changing else ""
    print(f"compare: both print the same (lines: {len(old)}{ignored}), exit status {status}")
    return True


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python, on the host driver if this process does, and with this `bridge`."""
    folder = Path(__file__).parents[3]
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    if folder.name not in ("site-packages", "dist-packages"):
        path.append(str(folder))
    return subprocess.run(
        [sys.executable, *_host_driver(), *command],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )


def _host_driver() -> list[str]:
    hostcuda = sys.modules.get("hostcuda")
    if hostcuda is None or not hostcuda.installed():
        return []
    import pycuda.driver as drv

    drv.init()
    return ["-m", "hostcuda", "--devices", str(drv.Device.count())]


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return the first line of the error that ended a process, or ""."""
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    _, traceback, last = done.stderr.rpartition("Traceback (most recent call last)")
    lines = [line for line in last.splitlines()[1:] if line and not line.startswith(" ")]
    return lines[0] if done.returncode and traceback and lines else ""

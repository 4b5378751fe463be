"""Each kernel of `cases` gives the numbers that CUDA's documents promise."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import cases
import known
import pytest


class Refused(AssertionError):
    """The host driver refused the kernel by name."""


class Wrong(AssertionError):
    """The kernel gave another number, or printed another text."""


class Error(AssertionError):
    """The kernel ended in an error, ended its process, or did not end."""


KINDS = {"refused": Refused, "wrong": Wrong, "error": Error}
KNOWN = (known.REFUSED, Refused), (known.WRONG, Wrong), (known.ERROR, Error)


def parameters():
    for area in cases.AREAS:
        for name in (f"{area}.{name}" for name in cases.load(area)):
            reasons = [(names[name], kind) for names, kind in KNOWN if name in names]
            marks = [
                pytest.mark.xfail(reason=reason, raises=kind, strict=True)
                for reason, kind in reasons
            ]
            yield pytest.param(name, marks=marks, id=name)


@functools.cache
def results(area):
    """Run an area's kernels in another process: they may end it."""
    command = [sys.executable, "-m", "hostcuda"]
    command += [str(Path(__file__).with_name("table.py")), "--json", area]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name: (kind, text) for name, kind, text in lines}


@pytest.mark.parametrize("name", parameters())
def test_a_kernel_gives_the_numbers_of_cudas_documents(name):
    kind, text = results(name.partition(".")[0])[name]
    if kind != "right":
        raise KINDS[kind](text)


def test_known_kernels_exist():
    names = {f"{area}.{name}" for area in cases.AREAS for name in cases.load(area)}
    listed = [name for names, _ in KNOWN for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= names

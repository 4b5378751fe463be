"""Each kernel of `cases` gives the numbers that CUDA's documents promise."""

import json
import subprocess
import sys
from pathlib import Path

import cases
import known
import pytest


class RefusedError(AssertionError):
    """The host driver refused the kernel by name."""


class WrongError(AssertionError):
    """The kernel gave another number, or printed another text."""


class EndedError(AssertionError):
    """The kernel ended in an error, ended its process, or did not end."""


KINDS = {"refused": RefusedError, "wrong": WrongError, "error": EndedError}
KNOWN = (
    (known.REFUSED, RefusedError),
    (known.WRONG, WrongError),
    (known.ERROR, EndedError),
)


def parameters():
    for area in cases.AREAS:
        for name in (f"{area}.{name}" for name in cases.load(area)):
            reasons = [(names[name], kind) for names, kind in KNOWN if name in names]
            marks = [
                pytest.mark.xfail(reason=reason, raises=kind, strict=True)
                for reason, kind in reasons
            ]
            yield pytest.param(name, marks=marks, id=name)


@pytest.fixture(scope="module")
def results(request):
    """Run the areas of the collected tests in another process: they may end it."""
    calls = [item.callspec.id for item in request.session.items if hasattr(item, "callspec")]
    areas = {call.partition(".")[0] for call in calls}.intersection(cases.AREAS)
    command = [sys.executable, "-m", "hostcuda", str(Path(__file__).with_name("table.py"))]
    done = subprocess.run([*command, "--json", *areas], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name: (kind, text) for name, kind, text in lines}


@pytest.mark.parametrize("name", [*parameters()])
def test_a_kernel_gives_the_numbers_of_cudas_documents(name, results):
    kind, text = results[name]
    if kind != "right":
        raise KINDS[kind](text)


def test_known_kernels_exist():
    names = {f"{area}.{name}" for area in cases.AREAS for name in cases.load(area)}
    listed = [name for names, _ in KNOWN for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= names

"""Each kernel of `cases` gives the numbers that CUDA's documents promise."""

import json
import re
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


def run(areas, *options):
    """Run areas in another process, which they may end; return results and what was printed."""
    command = [sys.executable, "-m", "hostcuda", *options, Path(__file__).with_name("table.py")]
    done = subprocess.run([*command, "--json", *areas], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name: (kind, text) for name, kind, text in lines}, done.stderr


@pytest.fixture(scope="module")
def results(request):
    """Run the areas of the collected tests."""
    calls = [item.callspec.id for item in request.session.items if hasattr(item, "callspec")]
    return run({call.partition(".")[0] for call in calls}.intersection(cases.AREAS))[0]


@pytest.mark.parametrize("name", [*parameters()])
def test_a_kernel_gives_the_numbers_of_cudas_documents(name, results):
    kind, text = results[name]
    if kind != "right":
        raise KINDS[kind](text)


RACY = {"k_one_thread_of_many"}


def test_threads_in_another_order_are_right_and_checks_find_nothing():
    found, printed = run([], "--check", "--order", "random", "--seed", "1")
    assert {name for name, (kind, _) in found.items() if kind != "right"} == {
        *known.REFUSED,
        *known.WRONG,
        *known.ERROR,
    }
    found = re.findall(r"kernel (\w+), .*(?:nothing has written|no barrier between)", printed)
    assert {*found} == RACY


def test_known_kernels_exist():
    names = {f"{area}.{name}" for area in cases.AREAS for name in cases.load(area)}
    listed = [name for names, _ in KNOWN for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= names


def test_functions_are_compared_with_saved_ones(tmp_path):
    import numpy as np

    program = Path(__file__).with_name("functions_table.py")
    command = [sys.executable, "-m", "hostcuda", program, "--kinds", "half"]
    subprocess.run([*command, "--save", tmp_path / "saved.npz"], check=True)
    saved = dict(np.load(tmp_path / "saved.npz"))
    saved["half: hsin"][7] += 1  # stands for a GPU's other number
    np.savez(tmp_path / "other.npz", **saved)
    command += ["--compare", tmp_path / "other.npz"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| half: hsin | 1 of 65536 | " in text
    assert "15 functions are equal" in text

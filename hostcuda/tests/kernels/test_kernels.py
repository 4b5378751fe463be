"""Each kernel of `cases` gives the numbers that CUDA's documents promise."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cases
import cupy
import pytest

# In these areas threads meet: they run in a random order, with all checks. The others run as a
# program does; `make nightly` runs each area in both ways.
CHECKED = {"masks", "exits", "atomics", "memory", "waits", "groups", "cub", "errors", "algorithms"}
WAYS = {"plain": (), "checked": ("--check", "--order", "random", "--seed", "1")}
RACY = {"k_one_thread_of_many"}


def areas_of(way):
    both = "BRIDGE_NIGHTLY" in os.environ
    return [area for area in cases.AREAS if both or (area in CHECKED) == (way == "checked")]


@functools.cache
def run(way, *areas):
    """Run areas in another process, which they may end; return results and what was printed."""
    command = [sys.executable, "-m", "hostcuda", *WAYS[way], Path(__file__).with_name("table.py")]
    done = subprocess.run([*command, "--json", *areas], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name: (kind, text) for name, kind, text in lines}, done.stderr


@pytest.mark.parametrize(
    ("way", "area", "name"),
    [(way, area, name) for way in WAYS for area in areas_of(way) for name in cases.load(area)],
)
def test_a_kernel_gives_the_numbers_of_cudas_documents(way, area, name, request):
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    collected = {call["area"] for call in calls if call.get("way") == way}
    found, _ = run(way, *(area for area in areas_of(way) if area in collected))
    if cases.load(area)[name].cooperative and cupy.__version__ < "14":
        pytest.skip("CuPy 13 links such kernels")
    assert found[f"{area}.{name}"] == ("right", "")


def test_checks_find_nothing_in_right_kernels():
    _, printed = run("checked", *areas_of("checked"))
    findings = "nothing has written|no barrier between|nothing orders|at another one|no part in it"
    assert {*re.findall(rf"kernel (\w+), .*(?:{findings})", printed)} == RACY


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


def test_random_programs_of_ptx_are_compared_with_saved_ones(tmp_path):
    import numpy as np

    saved = tmp_path / "saved.npz"
    program = Path(__file__).parents[1] / "random_ptx.py"
    command = [sys.executable, "-m", "hostcuda", program, "--jobs", "1"]
    subprocess.run([*command, "--programs", "3", "--save", saved], check=True)
    results = dict(np.load(saved))
    results["results"][1, 5] += 1  # stands for a GPU's other number
    np.savez(saved, **results)
    done = subprocess.run([*command, "--compare", saved], capture_output=True, text=True)
    assert "| 1 of " in done.stdout, done.stderr
    assert "1 instructions of " in done.stdout

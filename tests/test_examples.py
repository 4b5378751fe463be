"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import re

import cupy
import numpy as np
import pytest
from conftest import ROOT

ENGINES = {"dask_blocks", "mpi_halo", "ray_actor"}  # see test_engines.py
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem not in ENGINES)


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_a_script(path, python):
    use = f"runpy.run_path({str(path)!r}, run_name='__main__')"
    done = python(f"import sys, runpy; sys.argv[1:] = ['5000']; {use}")
    assert (done.returncode, done.stderr) == (0, "")


DEMO = "import runpy; runpy.run_path('tools/demo.py', run_name='__main__')"


def test_the_demo_does_what_it_says_and_fails_where_a_step_does_not(python):
    done = python(DEMO)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\nall steps did what they say\n" in done.stdout
    spoil = "plain = bridge.as_cupy; bridge.as_cupy = lambda a: plain(a, stream=-1)"
    done = python(f"import cupy, bridge; {spoil}\n{DEMO}")
    assert (done.returncode, done.stderr) == (1, "FAILED: not (stale == 0 and right == 1)\n")


@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", [1, 255, 256, 4097, 10_000])
def test_scale_unroll_is_right_at_any_size(factor, n):
    x = cupy.arange(n, dtype=np.float32)
    y = load("scale_unroll").scale_unroll(factor)(x, 0.5)
    np.testing.assert_array_equal(y.get(), x.get() / 2)


def test_scale_unroll_keeps_the_fastest(capsys):
    fastest = load("scale_unroll").main(5000)
    out = capsys.readouterr().out
    times = {int(k): float(ms) for k, ms in re.findall(r"unroll +(\d+): ([\d.]+) ms", out)}
    assert list(times) == [1, 2, 4, 8, 16]
    (best,) = re.findall(r"fastest: unroll (\d+)", out)
    assert times[int(best)] == min(times.values())
    assert fastest(cupy.ones(3, np.float32), 2).tolist() == [2, 2, 2]

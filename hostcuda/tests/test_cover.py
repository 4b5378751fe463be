"""``--cover``: which lines of CUDA C ran, in lcov's form."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = """extern "C" __global__ void scale(float *x, float a, int n) {
  int i = threadIdx.x;

  if (i >= n)
    return;
  if (a < 0) {
    x[i] = -1;
    x[i + 1] = 4;
  } else
    x[i] *= a;
}
"""
PROGRAM = """
import sys, cupy
x = cupy.ones(4, "f") + 1  # a kernel of CuPy's own is no source of the program
cupy.RawKernel(open("scale.cu").read(), "scale")((1,), (4,), (x, cupy.float32(sys.argv[1]), 4))
"""


def covered(report):
    """Return how often lines ran, by file and line; a file may have several records."""
    counts = {}
    for line in report.read_text().splitlines():
        kind, _, value = line.partition(":")
        if kind == "SF":
            source = value
        elif kind == "DA":
            number, count = map(int, value.split(","))
            counts[source, number] = counts.get((source, number), 0) + count
    return counts


def run(folder, *arguments, **variables):
    command = [sys.executable, *arguments]
    environment = {**os.environ, **variables}
    subprocess.run(command, cwd=folder, check=True, timeout=120, env=environment)


def test_lines_that_ran_and_those_that_can(tmp_path):
    (tmp_path / "scale.cu").write_text(SOURCE)
    (tmp_path / "program.py").write_text(PROGRAM)
    report = tmp_path / "report.info"
    run(tmp_path, "-m", "hostcuda", "--cover", "report.info", "program.py", "2")
    counts = covered(report)
    (copy,) = {Path(source) for source, _ in counts}
    assert copy.parent == tmp_path / "report.info.sources"
    assert copy.name.startswith("scale-")
    assert copy.read_text() == SOURCE
    by_line = {line: count for (_, line), count in counts.items()}
    assert {line for line, count in by_line.items() if not count} == {7, 8}
    assert not {3, 9} & {*by_line}  # no code
    # Another process, whose kernel comes from a cache.
    run(tmp_path, "-m", "hostcuda", "--cover", "report.info", "program.py", "-2")
    assert all(covered(report).values())


def test_the_variable_and_pycudas_kernels(tmp_path):
    program = """
import hostcuda; hostcuda.install()
import numpy as np, pycuda.autoprimaryctx, pycuda.driver as drv
from pycuda.compiler import SourceModule
x = np.zeros(1, np.int32)
code = "__global__ void f(int *x) {\\n  if (*x)\\n    x[1] = 3;\\n  *x = 7; }"
SourceModule(code).get_function("f")(drv.InOut(x), block=(1, 1, 1))
"""
    run(tmp_path, "-c", program, HOSTCUDA_COVER=str(tmp_path / "report"))
    counts = covered(tmp_path / "report")
    assert [count for (_, line), count in sorted(counts.items())].count(0) == 1

"""``pytest --hostcuda`` in a stranger's project."""

import subprocess
import sys

import pytest

TESTS = """
import cupy, numpy as np, pytest

def kernel(body):
    return cupy.RawKernel('extern "C" __global__ void f(int *x, int n) {%s}' % body, "f")

def test_right(hostcuda):
    x = cupy.zeros(4, np.int32)
    kernel("x[threadIdx.x] = n;")((1,), (4,), (x, 7))
    assert [launch.name for launch in hostcuda.launches()] == ["f"]
    waits = hostcuda.host_waits()
    assert x.get().tolist() == [7] * 4
    assert hostcuda.host_waits() == waits + 1
    assert hostcuda.damaged() == []

def test_outside():
    with cupy.cuda.using_allocator(None):
        kernel("x[n] = 1;")((1,), (1,), (cupy.zeros(4, np.int32), 4))

def test_type():
    kernel("std::vector<int> v;")

def test_devices():
    assert cupy.cuda.runtime.getDeviceCount() == 2
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "test_strange.py").write_text(TESTS)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout

    return run


def test_damage_fails_the_test_that_did_it(run):
    text = run("--hostcuda", "--hostcuda-devices", "2")
    assert "hostcuda: kernel f wrote outside of a block of 16 bytes" in text
    assert "FAILED test_strange.py::test_outside" in text
    assert "1 failed, 3 passed" in text


@pytest.mark.parametrize("order", ["earliest", "random"])
def test_orders_are_options(order, run):
    text = run("--hostcuda", "--hostcuda-order", order, "-k", "outside or right")
    assert "FAILED test_strange.py::test_outside" in text


def test_without_the_option_nothing_is_installed(run):
    assert "needs pytest --hostcuda" in run("-rs", "-k", "right") or "no CUDA" in run("-k", "right")

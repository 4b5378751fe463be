"""``pytest --hostcuda`` skips tests of what the host cannot run, and says so."""

import re
import subprocess
import sys

import pytest

TESTS = """
import unittest
import cupy, numpy as np, pytest
import cupy.testing
from cupy.testing import _condition
from cupy.cuda import cufft
from cupy_backends.cuda.libs import cublas

def kernel(body):
    cupy.RawKernel('extern "C" __global__ void f() {%s}' % body, "f")((1,), (1,), ())

def test_library():
    cublas.sgbmv()

class TestCase(unittest.TestCase):
    def test_library(self):
        cublas.sgbmv()

    @cupy.testing.numpy_cupy_equal()
    def test_compared(self, xp):
        return 1 if xp is np else cublas.sgbmv()

    @_condition.retry(2)
    def test_again(self):
        cublas.sgbmv()

@pytest.fixture
def handle():
    return cublas.sgbmv()

def test_fixture(handle): pass

def test_instruction():
    kernel('asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(0));')

def test_call():
    cupy.cuda.runtime.memPrefetchAsync(0, 0, 0, 0)

def test_other_process():
    cupy.cuda.runtime.ipcGetMemHandle(0)

def test_several_devices():
    cufft.Plan1d(64, cufft.CUFFT_C2C, 2, devices=[0])

def test_expected():
    with pytest.raises(NotImplementedError, match="cuBLAS"):
        cublas.sgbmv()

def test_expected_otherwise():
    with pytest.raises(NotImplementedError, match="cuFFT"):
        cublas.sgbmv()

def test_caught():
    try:
        cublas.sgbmv()
    except NotImplementedError:
        assert 0

def test_wrong():
    kernel("int x = y;")

def test_unwritten():
    np.testing.assert_allclose(cupy.empty(3, np.float32).get(), 1)

@pytest.mark.xfail
def test_known():
    cublas.sgbmv()
"""
REFUSED = {
    "cuBLAS": 5,
    "memPrefetchAsync": 1,
    "ipcGetMemHandle": 1,
    "mbarrier.init.shared.b64": 1,
    "_multi_gpu_get_plan": 1,
}
FAILED = {"expected_otherwise", "caught", "wrong", "unwritten"}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "test_strange.py").write_text(TESTS)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout

    return run


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_refusal_is_a_skip_with_its_reason(options, run):
    text = run("--hostcuda", "-rsf", *options)
    assert "4 failed, 1 passed, 9 skipped, 1 xfailed" in text
    assert "hostcuda: memPrefetchAsync is not supported" in text
    assert {
        line.partition("::test_")[2].split()[0]
        for line in text.splitlines()
        if line.startswith("FAILED")
    } == FAILED
    line = next(line for line in text.splitlines() if line.startswith("hostcuda refused: "))
    shown = dict(pair.rsplit(" ", 1) for pair in line[len("hostcuda refused: ") :].split(", "))
    assert shown == {name: str(count) for name, count in REFUSED.items()}
    assert "hostcuda: cuBLAS (sgbmv) is not supported: it has GPU code" in text
    assert "hostcuda: mbarrier.init.shared.b64 is not supported (in f" in text


def test_strict_fails_what_is_refused(run):
    text = run("--hostcuda", "--hostcuda-strict")
    assert "12 failed, 1 passed, 1 xfailed" in text
    assert ", 1 error in" in text
    assert "hostcuda refused" not in text


@pytest.mark.parametrize("line", ["cublas.sgbmv()", "import cupyx.cutensor"])
def test_a_module_that_is_refused_is_skipped(run, tmp_path, line):
    (tmp_path / "test_strange.py").write_text(f"{TESTS}\n{line}\n")
    text = run("--hostcuda", "-rs")
    assert "1 skipped" in text
    assert re.search(r"hostcuda refused: (cuBLAS|cuTENSOR) 1", text)
    assert "1 error" in run("--hostcuda", "--hostcuda-strict")


def test_values_of_unwritten_memory_are_named(run):
    text = run("--hostcuda", "-k", "unwritten or caught")
    number = r"-4\.3160208e\+08|-431602080"  # as NumPy 1 and NumPy 2 print it
    said = rf"hostcuda: ({number}) is the content of memory that nothing has"
    assert len(re.findall(said, text)) == 1


def test_too_little_memory_is_told(run, tmp_path):
    (tmp_path / "test_large.py").write_text(
        "import cupy\n\n\ndef test_large():\n    cupy.zeros(2**28)\n"
    )
    said = "hostcuda: a device has as much memory as --hostcuda-memory says, by default 1GiB"
    assert said in run("--hostcuda", "test_large.py")


def test_the_header_says_how_the_driver_runs(run):
    options = ["--hostcuda-devices", "2", "--hostcuda-order", "random", "--hostcuda-seed", "7"]
    assert ": order random, seed 7, 2 devices, no pool\n" in run(
        "--hostcuda", *options, "--hostcuda-no-pool", "--co"
    )
    assert ": order latest, 1 device, CuPy's pool\n" in run("--hostcuda", "--co")
    assert "hostcuda " not in run("--co").partition("collected")[0].partition("plugins:")[0]

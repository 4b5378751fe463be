"""``pytest --hostcuda`` in a stranger's project."""

import re
import subprocess
import sys

import pytest

# A regular expression; a block's size follows.
OUTSIDE = (
    r"hostcuda: kernel f, block \(0,0,0\), thread \(\d+,0,0\): writes 4 bytes, "
    r"\d+ bytes (before|behind the end of) a block of"
)

TESTS = """
import cupy, numpy as np, pytest

def kernel(body):
    return cupy.RawKernel('extern "C" __global__ void f(int *x, int n) {%s}' % body, "f")

def test_right(hostcuda):
    x = cupy.zeros(4, np.int32)
    kernel("x[threadIdx.x] = n;")((1,), (4,), (x, 7))
    assert [launch.name for launch in hostcuda.launches()] == ["f"]
    assert hostcuda.host_waits() == 0
    assert x.get().tolist() == [7] * 4
    assert hostcuda.host_waits() == 1
    assert hostcuda.damaged() == []

def test_right_again(hostcuda):
    test_right(hostcuda)
    cupy.zeros(3).get()

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
    assert re.search(f"{OUTSIDE} 16 bytes", text)
    assert "FAILED test_strange.py::test_outside" in text
    assert "1 failed, 4 passed" in text


PHASES = """
import cupy, numpy as np, pytest
f = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[-1] = 1; }', "f")

def damage():
    with cupy.cuda.using_allocator(None):
        f((1,), (1,), (cupy.zeros(4, np.int32),))

@pytest.fixture
def before():
    damage()

@pytest.fixture
def after():
    yield
    damage()

def test_before(before): pass
def test_after(after): pass
def test_fails():
    damage()
    assert 0
def test_right(): pass
"""


def test_damage_is_that_of_the_phase_that_did_it(run, tmp_path):
    (tmp_path / "test_strange.py").write_text(PHASES)
    text = run("--hostcuda", "-rA")
    assert "ERROR test_strange.py::test_before" in text
    assert "ERROR test_strange.py::test_after" in text
    assert "FAILED test_strange.py::test_fails - assert 0" in text
    assert "PASSED test_strange.py::test_right" in text
    assert len(re.findall(f"\n{OUTSIDE} 16 bytes", text)) == 3
    (tmp_path / "test_strange.py").write_text(f"{PHASES}\ndamage()\n")
    assert "ERROR test_strange.py - hostcuda: kernel f, block (" in run("--hostcuda")


ENDS = {
    "damage before the end": ("f((1,), (1,), (x, 12))", 70),
    "damage, and exit(3)": ("f((1,), (1,), (x, 12)); raise SystemExit(3)", 3),
    "no memory": ("f((1,), (1,), (np.uintp(0), 0))", 70),
    "an error that is raised": ("f((1,), (1,), (x, 12)); x.get()", 1),
    "an error that is caught": ("f((1,), (1,), (x, 12))\ntry: x.get()\nexcept Exception: pass", 0),
    "polling": ("event = cupy.cuda.Stream.null.record()\nwhile not event.done: pass", 0),
}


@pytest.mark.parametrize("case", ENDS)
def test_exit_statuses(case, tmp_path):
    steps, status = ENDS[case]
    script = tmp_path / "script.py"
    script.write_text(
        "import cupy, numpy as np\n"
        """f = cupy.RawKernel('extern "C" __global__ void f(int *x, int n) { x[n] = 1; }', "f")\n"""
        "cupy.cuda.set_allocator(None)\nx = cupy.zeros(10, np.int32)\nx += 1\n" + steps
    )
    done = subprocess.run(
        [sys.executable, "-m", "hostcuda", str(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status
    assert ("hostcuda: kernel f" in done.stderr) == (case != "polling")


DROPPED = """
import cupy, numpy as np
f = cupy.RawKernel('extern "C" __global__ void f(float *x) { x[threadIdx.x] += 1; }', "f")

def test_outside():
    f((1,), (1024,), (cupy.zeros(1000, np.float32),))

def test_dropped():
    x = cupy.zeros(8, np.float32)
    address = np.uintp(x.data.ptr)
    del x
    f((1,), (8,), (address,))
"""


def test_without_the_pool_each_array_is_a_block(run, tmp_path):
    (tmp_path / "test_strange.py").write_text(DROPPED)
    assert "2 passed" in run("--hostcuda")
    text = run("--hostcuda", "--hostcuda-no-pool")
    assert "FAILED test_strange.py::test_outside - Failed: hostcuda: kernel f, block" in text
    assert "FAILED test_strange.py::test_dropped - Failed: hostcuda: kernel f, block" in text
    (tmp_path / "test_strange.py").write_text(DROPPED + "\ntest_outside()\n")
    command = [sys.executable, "-m", "hostcuda", "--no-pool", str(tmp_path / "test_strange.py")]
    assert subprocess.run(command, capture_output=True).returncode == 70
    command[3:3] = ["--orders", "2"]
    assert subprocess.run(command, capture_output=True).returncode == 70


SPAWNING = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import cupy, numpy as np, hostcuda

def work(n):
    f = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[8] = 1; }', "f")
    f((1,), (1,), (cupy.zeros(8, np.int32),))
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        hostcuda.revive()
    return cupy.cuda.runtime.getDeviceCount(), int(cupy.arange(n).sum())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, context) as pool:
        print(list(pool.map(work, [3])))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing_have_the_driver_too(method, tmp_path):
    (tmp_path / "spawning.py").write_text(SPAWNING)
    options = ["--devices", "2", "--no-pool", str(tmp_path / "spawning.py"), method]
    command = [sys.executable, "-m", "hostcuda", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[(2, 3)]\n"), done.stderr
    assert re.search(f"{OUTSIDE} 32 bytes", done.stderr)


def test_settings_that_come_too_late_are_refused(tmp_path):
    (tmp_path / "test_strange.py").write_text("def test_nothing(): pass")
    command = [sys.executable, "-m", "hostcuda", "-m", "pytest", "--hostcuda", str(tmp_path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    command.append("--hostcuda-no-pool")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4
    assert "come too late: give `python -m hostcuda`" in done.stderr


def test_a_test_that_fails_tells_why_the_kernel_failed(run, tmp_path):
    test = (
        "def test_read():\n    x = cupy.zeros(4, np.float32)\n    f((1,), (8,), (x,))\n    x.get()"
    )
    (tmp_path / "test_strange.py").write_text(f"{DROPPED}\n{test}")
    text = run("--hostcuda", "--hostcuda-no-pool", "-k", "read")
    assert "cudaErrorIllegalAddress" in text
    assert text.count("\nhostcuda: kernel f, block (0,0,0), thread (4,0,0): reads 4 bytes") == 1
    assert "1 failed" in text


CHECKED = """
import cupy, cupyx.scipy.ndimage, numpy as np, pytest

def test_unwritten():
    cupy.empty(4).copy() + 1

def test_unwritten_in_a_library():
    cupy.sort(cupy.empty(1000))

def test_right():
    cupy.zeros(4) + 1
    cupy.empty(4).copy()
    cupy.sort(cupy.zeros(4))
    cupy.fft.irfftn(cupy.zeros((3, 4, 5)), axes=(0, 1))
    cupy.random.default_rng(1).poisson(cupy.ones(3))
    image = cupy.asarray(np.random.RandomState(3).rand(40, 50) > 0.5)
    cupyx.scipy.ndimage.label(image)  # threads race on purpose
"""


def test_what_checks_find_fails_the_test_that_did_it(run, tmp_path):
    (tmp_path / "test_strange.py").write_text(CHECKED)
    text = run("--hostcuda", "--hostcuda-check")
    assert "\nFAILED test_strange.py::test_unwritten - Failed: hostcuda: kernel cupy_add__" in text
    assert "hostcuda: thrust::sort: reads byte 0 of a block of 8000, which nothing has" in text
    assert "2 failed, 1 passed" in text
    assert "3 passed" in run("--hostcuda")


@pytest.mark.parametrize("order", ["earliest", "random"])
def test_orders_are_options(order, run):
    text = run("--hostcuda", "--hostcuda-order", order, "-k", "outside or right")
    assert "FAILED test_strange.py::test_outside" in text


def test_without_the_option_nothing_is_installed(run):
    assert "needs pytest --hostcuda" in run("-rs", "-k", "right") or "no CUDA" in run("-k", "right")


def test_without_the_pool_an_array_of_a_cycle_is_freed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import gc, cupy, hostcuda
class Holder: pass
for _ in range(3):
    one = Holder(); one.me = one; one.array = cupy.ones(1000)
del one
gc.collect()
cupy.cuda.Device().synchronize()
print(len(hostcuda.live_blocks()), cupy.zeros(0).sum())
""")
    command = [sys.executable, "-m", "hostcuda", "--no-pool", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 0.0\n", "")


OF_UNITTEST = """
import unittest, cupy

class TestCases(unittest.TestCase):
    def test_wrong(self):
        with cupy.cuda.using_allocator(None):
            x = cupy.zeros(4, "i")
            f = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[-1] = 1; }', "f")
            f((1,), (1,), (x,))
        %s
"""


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("self.assertEqual(1, 2)", "AssertionError: 1 != 2"),
        ("x.get()", "CUDARuntimeError: cudaErrorIllegalAddress"),
    ],
)
def test_a_failed_test_case_names_its_damage(tmp_path, run, failure, error):
    (tmp_path / "test_strange.py").write_text(OF_UNITTEST % failure)
    text = run("--hostcuda")
    assert error in text
    assert len(re.findall(OUTSIDE, text)) == 1


def test_the_options_need_the_first_one(tmp_path):
    command = [sys.executable, "-m", "pytest", "--hostcuda-check", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4
    assert "the options --hostcuda-... need --hostcuda" in done.stderr

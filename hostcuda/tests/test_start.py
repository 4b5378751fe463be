"""How hostcuda starts: its driver is compiled once, and what a killed process left does no harm."""

import os
import subprocess
import sys
from pathlib import Path

HELLO = "import hostcuda; hostcuda.install(); import cupy; print(cupy.arange(3).sum())"
COMPILING = "hostcuda: compiling its driver, once for this version: 5 to 30 seconds\n"


def start(cache, script=HELLO):
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    env.pop("PYCUDA_CACHE_DIR", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script], env=env, **pipes)


def test_the_driver_is_compiled_once_and_nothing_is_left(tmp_path):
    killed = start(tmp_path)
    assert killed.stderr.readline() == COMPILING
    killed.kill()
    killed.communicate()
    folder = tmp_path / "hostcuda"
    assert [path.suffix for path in folder.glob("driver-*")] == [".new"]
    said = [process.communicate() for process in [start(tmp_path) for _ in range(3)]]
    assert sorted(said) == sorted([("3\n", COMPILING), ("3\n", ""), ("3\n", "")])
    assert [path.suffix for path in folder.glob("driver-*")] == [".so"]
    assert not [*folder.rglob("*.new")]


FROM_THE_CACHE = """
import hostcuda; hostcuda.install()
import numpy as np, pycuda.autoprimaryctx, pycuda.driver as drv
from pycuda.compiler import SourceModule
x = np.zeros(1, np.int32)
SourceModule("__global__ void f(int *x) { *x = 7; }").get_function("f")(drv.Out(x), block=(1, 1, 1))
print(x)
"""


def test_an_empty_file_in_pycudas_cache_is_compiled_again(tmp_path):
    """An aborted process leaves one: PyCUDA opens the file, then writes it."""
    for _ in range(2):
        out, errors = start(tmp_path, FROM_THE_CACHE).communicate()
        assert (out, errors.removeprefix(COMPILING)) == ("[7]\n", "")
        (cubin,) = tmp_path.glob("hostcuda/pycuda-*/*.cubin")
        cubin.write_bytes(b"")


def test_modules_are_loaded_from_memory():
    """Since folders may be mounted noexec."""
    out, errors = start(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"),
        f"{HELLO}\nprint('memfd:hostcuda' in open('/proc/self/maps').read())",
    ).communicate()
    assert (out, errors) == ("3\nTrue\n", "")


def test_a_clone_where_it_is_not_installed_says_so():
    top = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hostcuda"], cwd=top, env={}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "hostcuda is not installed for this Python: run `python -m pip install ." in done.stderr

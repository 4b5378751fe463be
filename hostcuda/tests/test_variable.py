"""HOSTCUDA=1 installs the driver in any process of a Python that has hostcuda."""

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1]
SUM = "import cupy; print(int(cupy.arange(3).sum()))"


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """Return a function that runs a Python in which hostcuda's wheel is installed."""
    folder, executable = tmp_path_factory.mktemp("venv"), Path(sys.executable)
    if not any(Path(one, "hostcuda.pth").exists() for one in site.getsitepackages()):
        venv.create(folder)
        (packages,) = folder.glob("lib/python*/site-packages")
        paths = [FOLDER / "src", *site.getsitepackages(), site.getusersitepackages()]
        (packages / "a.pth").write_text("".join(f"{path}\n" for path in paths))
        shutil.copy(FOLDER / "hostcuda.pth", packages)
        executable = folder / "bin/python"

    def run(*arguments, variable="1", given="", cwd=folder, **more):
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        env.update(HOSTCUDA=variable, **more)
        if variable is None:
            del env["HOSTCUDA"]
        pipes = {"capture_output": True, "text": True, "input": given}
        return subprocess.run([executable, *arguments], env=env, cwd=cwd, **pipes)

    return run


@pytest.mark.parametrize("variable", [None, "", "0"])
def test_without_the_variable_nothing_happens(python, variable):
    loaded = "import sys; print([name for name in sys.modules if 'hostcuda' in name])"
    assert python("-c", loaded, variable=variable).stdout == "[]\n"


def test_it_costs_less_than_two_milliseconds(python):
    lines = f"line = {(FOLDER / 'hostcuda.pth').read_text()!r}\nimport sys, time\n"
    lines += "del sys.modules['hostcuda_start']\nstart = time.perf_counter()\nexec(line)\n"
    lines += "print(time.perf_counter() - start, 'hostcuda' in sys.modules)"
    costs, loaded = zip(*(python("-c", lines).stdout.split() for _ in range(5)), strict=True)
    assert min(map(float, costs)) < 0.002
    assert {*loaded} == {"False"}


@pytest.mark.parametrize("how", ["-c", "-i", "-m", "file"])
def test_programs_start_with_it(python, how, tmp_path):
    (tmp_path / "adds.py").write_text(SUM)
    arguments = {"-c": ["-c", SUM], "-i": ["-i"], "-m": ["-m", "adds"], "file": ["adds.py"]}[how]
    done = python(*arguments, given=SUM if how == "-i" else "", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


CHILDREN = """
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

def work(n):
    import cupy
    return int(cupy.arange(n).sum()), cupy.cuda.runtime.getDeviceCount()

if __name__ == "__main__":
    for method in "spawn", "forkserver":
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            print(*pool.map(work, [3]))
    print(subprocess.check_output([sys.executable, "-c", "import program; print(program.work(3))"],
                                  text=True), end="")
"""


def test_children_have_it(python, tmp_path):
    (tmp_path / "program.py").write_text(CHILDREN)
    done = python("program.py", cwd=tmp_path, HOSTCUDA_DEVICES="2")
    assert (done.stdout, done.stderr) == ("(3, 2)\n" * 3, "")


def test_a_kernel_that_fails_is_named(python):
    code = 'extern "C" __global__ void f(int *x) { x[-1] = 1; }'
    done = python("-c", f"import cupy\ncupy.RawKernel({code!r}, 'f')((1,), (1,), (0,))")
    assert "hostcuda: kernel f, block (0,0,0), thread (0,0,0): writes 4 bytes" in done.stderr


@pytest.mark.parametrize("library", ["cupy", "cupyx", "cupyx.scipy", "pycuda.driver"])
def test_libraries_are_imported_once(python, library):
    """Else CuPy would set its allocator again, where the driver gave each array a block."""
    program = f"import {library}, cupy; x = cupy.ones(2)\n"
    program += (
        "print(cupy.__spec__.origin == cupy.__file__, cupy.get_default_memory_pool().used_bytes())"
    )
    done = python("-c", program, HOSTCUDA_CHECK="1")
    assert (done.stdout, done.stderr) == ("True 0\n", "")


NAMING = """
[pytest]
filterwarnings =
    error
    ignore::cupy._util.PerformanceWarning
"""
TESTS = """
import cupy
def test_sum(hostcuda):
    assert cupy.arange(3).sum() == 3
def test_fails(hostcuda):
    cupy.RawKernel('extern "C" __global__ void f(int *x) { x[-1] = 1; }', "f")((1,), (1,), (0,))
"""


@pytest.mark.parametrize("options", [(), ("-n", "2"), ("--hostcuda",)], ids=str)
def test_pytest_with_any_settings(python, options, tmp_path):
    (tmp_path / "pytest.ini").write_text(NAMING)
    (tmp_path / "test_strange.py").write_text(TESTS)
    text = python("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=tmp_path).stdout
    assert "1 failed, 1 passed" in text
    assert "FAILED test_strange.py::test_fails - Failed: hostcuda: kernel f" in text


def test_pytest_says_where_its_option_is_too_late(python, tmp_path):
    (tmp_path / "pytest.ini").write_text(NAMING)
    done = python("-m", "pytest", "--hostcuda", cwd=tmp_path, variable=None)
    assert done.returncode == 4
    assert "CuPy is loaded already: set HOSTCUDA=1 before Python starts" in done.stderr


def test_options_beside_the_variable(python, tmp_path):
    (tmp_path / "test_strange.py").write_text(
        "import cupy\ndef test_two():\n    assert cupy.cuda.runtime.getDeviceCount() == 2"
    )
    options = "-p", "no:cacheprovider", "--hostcuda-devices", "2"
    assert "1 passed" in python("-m", "pytest", *options, cwd=tmp_path).stdout


@pytest.mark.parametrize("value", ["2", "true", "latest"])
def test_other_values_are_refused_when_cupy_is_imported(python, value):
    assert python("-c", "print(1)", variable=value).stderr == ""
    said = python("-c", SUM, variable=value).stderr
    last = said.splitlines()[-1]
    assert f"hostcuda: HOSTCUDA is '{value}'; give 1 or 0, or force beside a GPU" in last
    assert "the number of devices is HOSTCUDA_DEVICES" in last


@pytest.mark.parametrize("variable", ["1", "force"])
def test_a_gpu_is_left_alone_unless_forced(python, variable):
    program = "import glob; glob.glob = lambda pattern: ['/dev/nvidia0']\n"
    program += "import cupy, hostcuda; print(hostcuda.installed())"
    done = python("-c", program, variable=variable)
    assert done.stdout == f"{variable == 'force'}\n"
    text = "hostcuda: this machine has a GPU, which is used; HOSTCUDA=force uses host memory\n"
    assert done.stderr == (text if variable == "1" else "")


def test_a_missing_compiler_is_named(python):
    last = python("-c", SUM, CXX="no-such-compiler").stderr.splitlines()[-1]
    assert last.endswith("hostcuda: no no-such-compiler; install g++, or name it in CXX")


def test_notebooks_load_it(python):
    program = "import hostcuda; hostcuda.load_ipython_extension(None); " + SUM
    assert python("-c", program, variable=None).stdout == "3\n"


def test_the_wheel_has_the_file(tmp_path):
    source = tmp_path / "hostcuda"
    shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "tests"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    target = tmp_path / "site"
    subprocess.run([*pip, "--target", target, source], check=True)
    assert (target / "hostcuda.pth").read_text() == (FOLDER / "hostcuda.pth").read_text()
    assert (target / "hostcuda_start.py").exists()


def test_the_action_sets_the_variable(tmp_path):
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((FOLDER / "action.yml").read_text())
    (step,) = [step for step in action["runs"]["steps"] if "run" in step]
    script = 'python() { echo "$@"; }\n' + step["run"]
    env = {"GITHUB_ACTION_PATH": str(FOLDER), "GITHUB_ENV": str(tmp_path / "env")}
    said = subprocess.run([step["shell"], "-c", script], env=env, capture_output=True, text=True)
    packages = said.stdout.split()
    assert packages[:4] == ["-m", "pip", "install", str(FOLDER)]
    readme = (FOLDER / "README.md").read_text()
    assert all(f'"{package}"' in readme for package in packages[4:])
    assert (tmp_path / "env").read_text() == "HOSTCUDA=1\n"

"""Fixtures.  Without a GPU everything runs on `hostcuda`, a CUDA driver on host memory."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gpus import ON_GPU, PACKAGE_MISSING
from latch import Latch, compile_plain, put
from processes import LATEST, USUAL, Zygote, run_python

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX takes the whole GPU

if not ON_GPU:
    if os.environ.get("BRIDGE_REQUIRE_GPU") == "1":
        raise pytest.UsageError("BRIDGE_REQUIRE_GPU=1, but CUDA sees no GPU")
    import hostcuda

    hostcuda.install()

# The host driver is not in place on a GPU, and test_cost counts its calls.
collect_ignore = ["kernels/test_cost.py"] if ON_GPU else []


LATE = {"nightly", "mutants"}  # marks of tests that are left out, unless a variable asks for them


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where a GPU is required, a skipped test has failed, unless it needs a missing package."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("BRIDGE_REQUIRE_GPU") == "1":
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if not hasattr(report, "wasxfail") and PACKAGE_MISSING not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped with BRIDGE_REQUIRE_GPU=1: {reason}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in {"gpu", "latch"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(name)
    asked = {name for name in LATE if os.environ.get(f"BRIDGE_{name.upper()}") == "1"}
    late = [item for item in items if (LATE - asked) & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=late)
    items[:] = [item for item in items if item not in late]


@pytest.fixture(scope="session", autouse=True)
def context() -> Any:
    """The primary context, current for both libraries on the main thread."""
    import cupy

    import bridge.autoinit

    # CuPy remembers where CUDA's headers are.  It finds those of PyTorch, perhaps of another CUDA,
    # if that is imported before.
    cupy.cuda.get_cuda_path()
    return bridge.autoinit.context


@pytest.fixture
def pycudas_export() -> Iterator[None]:
    """PyCUDA's own array interface, which names no stream."""
    from bridge.interop import exporting

    exporting.restore_gpuarray()
    yield
    exporting.export_in_order()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """Let one of pytest-xdist's workers call a function, and give its result to all, by JSON."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def once(name: str, make: Callable[[], Any]) -> Any:
        kept = folder / f"{name}.json"
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(make()))
            return json.loads(kept.read_text())

    return once


@pytest.fixture
def gpu() -> None:
    """A real GPU, for what the host driver cannot show."""
    if not ON_GPU:
        pytest.skip("needs a GPU")


@pytest.fixture
def package() -> Callable[[str], Any]:
    """Import an optional library, or skip the test."""

    def load(name: str) -> Any:
        return pytest.importorskip(name, reason=PACKAGE_MISSING + name, exc_type=ImportError)

    return load


@pytest.fixture
def nvcc() -> None:
    """PyCUDA's own compiler; the host driver brings one."""
    if shutil.which("nvcc") is None:
        pytest.skip(PACKAGE_MISSING + "nvcc")


@pytest.fixture(scope="session")
def compile_kernel() -> Callable[[str, str], Any]:
    return compile_plain


@pytest.fixture(name="put")
def put_fixture() -> Callable[..., None]:
    return put


@pytest.fixture(scope="session")
def latch(compile_kernel: Any) -> Latch:
    return Latch(compile_kernel)


_zygote = Zygote()


def pytest_unconfigure() -> None:
    if _zygote.process:
        _zygote.process.communicate()  # it ends with its input


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """See `run_python`.  A test whose subject is the start has the mark `starts`."""
    return run_python if request.node.get_closest_marker("starts") else _zygote.run


@pytest.fixture
def run_module(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that runs ``python -m`` with arguments, as `python` does with a script."""

    def run_anew(*arguments: str, **around: Any) -> Any:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=LATEST, **around)

    starts = request.node.get_closest_marker("starts")
    return run_anew if starts else _zygote.run_module


@pytest.fixture
def run(python: Any) -> Callable[..., str]:
    """Run a script after the usual imports; it must end in peace.  Return what it prints."""

    def run(script: str, start: str = "import bridge.autoinit\n", devices: int = 1) -> str:
        done = python(USUAL + start + textwrap.dedent(script), devices)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return str(done.stdout)

    return run

"""Fixtures.  Without a GPU everything runs on `hostcuda`, a CUDA driver on host memory."""

import contextlib
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpus import count_gpus

ROOT = Path(__file__).resolve().parents[1]
# `count_gpus` would count the devices of hostcuda, which `pytest --hostcuda` has installed already.
GPUS = 0 if getattr(sys.modules.get("hostcuda"), "_driver", None) else count_gpus()
ON_GPU = GPUS > 0

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX takes the whole GPU

if not ON_GPU:
    if os.environ.get("BRIDGE_REQUIRE_GPU") == "1":
        raise pytest.UsageError("BRIDGE_REQUIRE_GPU=1, but CUDA sees no GPU")
    import hostcuda

    hostcuda.install()

# The host driver is not in place on a GPU, and test_cost counts its calls.
collect_ignore = ["kernels/test_cost.py"] if ON_GPU else []
PACKAGE_MISSING = "not installed: "


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
    if os.environ.get("BRIDGE_NIGHTLY") != "1":
        late = [item for item in items if item.get_closest_marker("nightly")]
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


def compile_plain(source: str, name: str) -> Any:
    """Compile CUDA C, load it with PyCUDA and return its function."""
    import cupy
    import pycuda.driver as drv

    image, _ = cupy.cuda.compiler.compile_using_nvrtc(source)
    return drv.module_from_buffer(image).get_function(name)


@pytest.fixture(scope="session")
def compile_kernel() -> Callable[[str, str], Any]:
    return compile_plain


@contextlib.contextmanager
def second_context() -> Iterator[None]:
    """Let a context of PyCUDA's own be current, as pycuda.autoinit makes one."""
    import pycuda.driver as drv

    second = drv.Device(0).make_context()
    try:
        yield
    finally:
        second.pop()
        second.detach()


@pytest.fixture(scope="session")
def put(compile_kernel: Any) -> Callable[..., None]:
    """Queue ``array[...] = value`` for an int32 array on a PyCUDA stream."""
    import numpy as np

    function = compile_kernel(
        'extern "C" __global__ void put(int *p, int n, int v)'
        "{ for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }",
        "put",
    )

    def put(pointer: Any, n: int, value: int, stream: Any = None) -> None:
        where = np.uintp(int(pointer))
        function(where, np.int32(n), np.int32(value), block=(32, 1, 1), stream=stream)

    return put


class Latch:
    """A kernel that keeps a stream busy until the host lets go.

    With it a test of ordering is certain: what is queued behind it cannot run by luck.  If the
    host waits for the stream, nobody lets go: the kernel gives up and `hold` fails the test.
    """

    def __init__(self, compile_kernel: Any) -> None:
        import numpy as np
        import pycuda.driver as drv

        self._function = compile_kernel(
            """
            extern "C" __global__ void hold(volatile int *state, int patience)
            {
                while (state[0] == 0 && patience-- > 0) __nanosleep(1000);
                if (state[0] == 0) state[1] = 1;
            }
            """,
            "hold",
        )
        self._state = drv.pagelocked_zeros(2, np.int32, mem_flags=drv.host_alloc_flags.DEVICEMAP)
        self._pointer = np.uintp(self._state.base.get_device_pointer())
        self._patience = np.int32(10_000_000 if ON_GPU else 100)

    @contextlib.contextmanager
    def hold(self, stream: Any, seconds: float = 0) -> Iterator[None]:
        """Hold a PyCUDA or CuPy stream (None: the default one) during the block.

        With `seconds`, the latch opens by itself, and the host may wait.
        """
        import cupy
        import pycuda.driver as drv

        opener = threading.Timer(seconds, self._state.fill, [1])

        gc.disable()  # PyCUDA's memory in what an earlier test left would make the host wait
        self._state[:] = 0
        drv.Context.synchronize()
        self._launch(cupy, stream)
        stream = None  # it may end in the block
        if seconds and ON_GPU:  # on the host driver, who waits runs the kernel, which gives up
            opener.start()
        try:
            yield
            if ON_GPU and not seconds:
                time.sleep(0.001)  # what nothing holds up runs now, before the latch opens
            waited = bool(self._state[1])
        finally:
            self._state[0] = 1
            opener.cancel()
            drv.Context.synchronize()
            gc.enable()
        assert seconds or not waited, "the host waited for the stream"

    def _launch(self, cupy: Any, stream: Any) -> None:
        if not isinstance(stream, cupy.cuda.Stream):
            self._function(self._pointer, self._patience, block=(1, 1, 1), stream=stream)
            return
        # PyCUDA cannot launch on a CuPy stream: hold one of its own, and make CuPy's wait.
        import pycuda.driver as drv

        self._last = None  # when a stream ends, the default stream waits for it

        own = drv.Stream(1)
        self._function(self._pointer, self._patience, block=(1, 1, 1), stream=own)
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, own.handle)
        stream.wait_event(event)
        self._last = own  # until the next one: destroying it would not wait


@pytest.fixture(scope="session")
def latch(compile_kernel: Any) -> Latch:
    return Latch(compile_kernel)


INSTALL = "import hostcuda; hostcuda.install(devices={})\n"


def install(devices: int = 1) -> str:
    """Return the line that puts the host driver into a process, where there is no GPU."""
    return "" if ON_GPU else INSTALL.format(devices)


# All are errors but Dask's: 2026.8 uses what NumPy 2.5 deprecates.
WARNINGS = "-W", "error", "-W", "ignore:The 'generic' unit for NumPy:DeprecationWarning"
LATEST = 300  # seconds: most take a few, on a busy machine some a hundred


FOLDERS = "", "tests", "tests/support", "tests/interop", "hostcuda/src"


def surroundings() -> dict[str, Any]:
    """Return the folder and the environment of processes that tests start."""
    folders = [str(ROOT / folder) for folder in FOLDERS]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("BRIDGE_REQUIRE_GPU", None)  # a script may import the tests on the host driver
    return {"cwd": ROOT, "env": env, "text": True}


def run_python(script: str, devices: int = 1, **environment: str) -> Any:
    """Run a script in a fresh interpreter; on the host driver where GPUs are missing."""
    prelude = INSTALL.format(devices) if devices > GPUS else ""
    around = surroundings()
    around["env"].update(environment)
    command = [sys.executable, *WARNINGS, "-c", prelude + textwrap.dedent(script)]
    try:
        return subprocess.run(command, capture_output=True, timeout=LATEST, **around)
    except subprocess.TimeoutExpired as late:
        said = [(text or b"").decode() for text in (late.stdout, late.stderr)]
        pytest.fail(f"no end after {late.timeout} s; it had printed\n" + "\n".join(said))


class Zygote:
    """A process that has imported both libraries, and runs scripts in forks (`zygote.py`)."""

    process: Any = None

    def run(self, script: str, devices: int = 1, **environment: str) -> Any:
        """Run a script as `run_python` does, in a fork where that is the same."""
        if environment or devices == 0 or (ON_GPU and devices > GPUS):
            return run_python(script, devices, **environment)
        if self.process is None:
            command = [
                sys.executable,
                *WARNINGS,
                "tests/support/zygote.py",
                *["host"] * (not ON_GPU),
            ]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(command, **pipes, **surroundings())
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder, name) for name in ("stdout", "stderr")}
            for file in files.values():
                file.touch()
            request = {name: str(file) for name, file in files.items()}
            request |= {"script": textwrap.dedent(script), "devices": devices}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            pid = int(self.process.stdout.readline())
            late = threading.Timer(LATEST, os.kill, [pid, signal.SIGKILL])
            late.start()
            status = int(self.process.stdout.readline())
            late.cancel()
            said = {name: file.read_text() for name, file in files.items()}
        return subprocess.CompletedProcess(script, status, **said)


_zygote = Zygote()


def pytest_unconfigure() -> None:
    if _zygote.process:
        _zygote.process.communicate()  # it ends with its input


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """See `run_python`.  A test whose subject is the start has the mark `starts`."""
    return run_python if request.node.get_closest_marker("starts") else _zygote.run


USUAL = """
import bridge, cupy, numpy as np, pycuda.driver as drv
from pycuda import gpuarray
"""


@pytest.fixture
def run(python: Any) -> Callable[..., str]:
    """Run a script after the usual imports; it must end in peace.  Return what it prints."""

    def run(script: str, start: str = "import bridge.autoinit\n", devices: int = 1) -> str:
        done = python(USUAL + start + textwrap.dedent(script), devices)
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    return run

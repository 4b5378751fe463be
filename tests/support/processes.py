"""Processes that tests start, with the host driver where there is no GPU."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gpus import GPUS, ON_GPU

ROOT = Path(__file__).resolve().parents[2]
INSTALL = "import hostcuda; hostcuda.install(devices={})\n"


def install(devices: int = 1) -> str:
    """Return the line that puts the host driver into a process, where there is no GPU."""
    return "" if ON_GPU else INSTALL.format(devices)


# All are errors but Dask's: 2026.8 uses what NumPy 2.5 deprecates.
WARNINGS = "-W", "error", "-W", "ignore:The 'generic' unit for NumPy:DeprecationWarning"
LATEST = 300  # seconds: most take a few, on a busy machine some a hundred


def surroundings() -> dict[str, Any]:
    """Return the folder and the environment of processes that tests start."""
    folders = [str(ROOT / folder) for folder in ("", "tests/support", "hostcuda/src")]
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*folders, *[given] * bool(given)])  # "" would be the current folder
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("BRIDGE_REQUIRE_GPU", None)  # a script may import the tests on the host driver
    return {"cwd": ROOT, "env": env, "text": True}


@functools.cache
def compile_host_driver() -> None:
    """Compile the host driver, which says so, before a script prints."""
    build = "from hostcuda import _build; _build.driver()"
    subprocess.run([sys.executable, "-c", build], capture_output=True, check=True, **surroundings())


def run_python(script: str, devices: int = 1, **environment: str) -> Any:
    """Run a script in a fresh interpreter; on the host driver where GPUs are missing."""
    prelude = INSTALL.format(devices) if devices > GPUS else ""
    if prelude:
        compile_host_driver()
    around = surroundings()
    around["env"].update(environment)
    command = [sys.executable, *WARNINGS, "-c", prelude + textwrap.dedent(script)]
    try:
        return subprocess.run(command, capture_output=True, timeout=LATEST, **around)
    except subprocess.TimeoutExpired as late:
        said = [(text or b"").decode() for text in (late.stdout, late.stderr)]
        pytest.fail(f"no end after {late.timeout} s; it had printed\n" + "\n".join(said))


def end(pid: int) -> None:
    """End a fork of the zygote, which first prints where its threads are."""
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)


class Zygote:
    """A process that has imported both libraries, and runs scripts in forks (`zygote.py`)."""

    process: Any = None

    def run(self, script: str, devices: int = 1, **environment: str) -> Any:
        """Run a script as `run_python` does, in a fork where that is the same."""
        if environment or devices == 0 or (ON_GPU and devices > GPUS):
            return run_python(script, devices, **environment)
        return self._serve({"script": textwrap.dedent(script), "devices": devices})

    def run_module(self, *arguments: str, cwd: Path, env: dict[str, str]) -> Any:
        """Run ``python -m`` with these arguments, in a fork."""
        request = {"arguments": arguments, "cwd": str(cwd), "env": env, "devices": 1}
        return self._serve(request)

    def _serve(self, request: dict[str, Any]) -> Any:
        if self.process is None:
            program = ["tests/support/zygote.py", *["host"] * (not ON_GPU)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(
                [sys.executable, *WARNINGS, *program], **pipes, **surroundings()
            )
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder, name) for name in ("stdout", "stderr")}
            for file in files.values():
                file.touch()
            request |= {name: str(file) for name, file in files.items()}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            pid = int(self.process.stdout.readline())
            late = threading.Timer(LATEST, end, [pid])
            late.start()
            status = int(self.process.stdout.readline())
            late.cancel()
            said = {name: file.read_text() for name, file in files.items()}
        return subprocess.CompletedProcess(request, status, **said)


USUAL = """
import bridge, cupy, numpy as np, pycuda.driver as drv
from pycuda import gpuarray
"""

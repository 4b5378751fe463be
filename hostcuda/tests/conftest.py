"""Programs that tests run in processes of their own."""

import os
import subprocess
import sys

import pytest

from hostcuda import _build

# What Python and NumPy deprecate in the programs differs by version, and is not the driver's.
os.environ["PYTHONWARNINGS"] = "ignore::DeprecationWarning"
_build.driver()  # the first start says that it compiles


@pytest.fixture
def primary_context():
    """Device 0's primary context, current for PyCUDA."""
    import pycuda.driver as drv

    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    yield
    context.pop()


@pytest.fixture
def run_program(tmp_path):
    """Return a function that runs a script with hostcuda's options."""

    def run(script, *options):
        path = tmp_path / "program.py"
        path.write_text(script)
        command = [sys.executable, "-m", "hostcuda", *options, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run

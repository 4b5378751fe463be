"""Programs that tests run in processes of their own."""

import subprocess
import sys

import pytest


@pytest.fixture
def run_program(tmp_path):
    """Return a function that runs a script with hostcuda's options."""

    def run(script, *options):
        path = tmp_path / "program.py"
        path.write_text(script)
        command = [sys.executable, "-m", "hostcuda", *options, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run

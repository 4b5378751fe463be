"""``python tests/hostcuda SCRIPT`` or ``-m MODULE``: run it without a GPU."""

from __future__ import annotations

import atexit
import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import hostcuda  # noqa: E402

del sys.argv[0]
if not sys.argv or (sys.argv[0] != "-m" and not Path(sys.argv[0]).exists()):
    sys.exit(f"usage: python tests/hostcuda SCRIPT | -m MODULE [ARGUMENTS]; got {sys.argv}")
hostcuda.install()
atexit.register(hostcuda.print_damaged)
if sys.argv[0] == "-m":
    del sys.argv[0]
    sys.path[0] = ""
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")

"""``python tests/hostcuda SCRIPT`` or ``-m MODULE``: run it without a GPU."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import hostcuda  # noqa: E402

hostcuda.install()
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    sys.path[0] = ""
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")

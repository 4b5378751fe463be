"""The fixtures of ``tests/conftest.py``, which puts the host driver there if there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from conftest import context, package

__all__ = ["context", "package"]

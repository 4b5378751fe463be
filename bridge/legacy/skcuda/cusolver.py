"""``skcuda.cusolver``: functions of cuSOLVER that CuPy has, called as scikit-cuda's are."""

from __future__ import annotations

import re
from typing import Any

from cupy.cuda import cusolver as _cusolver

from . import missing, ordered

_LETTERS = {"N": 0, "T": 1, "C": 2, "L": 0, "U": 1}


def cusolverDnCreate() -> int:  # noqa: N802 (cuSOLVER's names)
    """Return a new handle."""
    handle: int = _cusolver.create()
    return handle


def cusolverDnDestroy(handle: int) -> None:  # noqa: N802
    """Destroy a handle."""
    _cusolver.destroy(handle)


def cusolverDnSetStream(handle: int, stream: int) -> None:  # noqa: N802
    """Set a handle's stream."""
    _cusolver.setStream(handle, int(stream))


def __getattr__(name: str) -> Any:
    parts = re.fullmatch(r"cusolverDn([SDCZ])(\w+)", name)
    function = parts and getattr(_cusolver, parts[1].lower() + parts[2], None)
    if not parts or function is None:
        raise missing(__name__, name)
    is_svd = parts[2] == "gesvd"  # whose jobs are characters

    def call(handle: int, *args: Any) -> Any:
        letters = {letter: ord(letter) for letter in "ASON"} if is_svd else _LETTERS
        with ordered():
            return function(
                handle, *[letters[a.upper()] if isinstance(a, str) else int(a) for a in args]
            )

    globals()[name] = call
    return call

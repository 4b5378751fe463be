"""``skcuda.cusolver``: functions of cuSOLVER that CuPy has, called as scikit-cuda's are."""

from __future__ import annotations

from typing import Any

from cupy.cuda import cusolver as _cusolver

import bridge

from ..names import cupy_name
from . import raise_missing

_LETTERS = {"N": 0, "T": 1, "C": 2, "L": 0, "U": 1, "NOVECTOR": 0, "VECTOR": 1}


def __getattr__(name: str) -> Any:
    own_name = cupy_name("cusolver", name)
    function = getattr(_cusolver, own_name, None) if own_name else None
    if function is None:
        raise_missing(__name__, name)
    is_svd = name.endswith("gesvd")  # whose jobs are characters

    letters = {letter: ord(letter) for letter in "ASON"} if is_svd else _LETTERS

    def number(value: Any) -> Any:
        if isinstance(value, str):
            return letters[value.upper().removeprefix("CUSOLVER_EIG_MODE_")]
        return value if isinstance(value, float) else int(value)  # a tolerance, or an address

    def call(*args: Any) -> Any:
        with bridge.ordered():
            return function(*map(number, args))

    globals()[name] = call
    return call

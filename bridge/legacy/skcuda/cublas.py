"""``skcuda.cublas``: functions of cuBLAS that CuPy has, called as scikit-cuda's are.

Pointers are ``GPUArray.gpudata`` or addresses, scalars are numbers, and operations are letters.
"""

from __future__ import annotations

import ctypes as ctypes  # programs use cublas.ctypes
import re
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas as _cublas

import bridge

from ..names import CUBLAS, PATTERNS, cupy_name
from . import address, on_stream, raise_missing

_LETTERS = {"trans": "NTC", "side": "LR", "uplo": "LU", "diag": "NU"}
# Programs take the numbers of operations from it.
_CUBLAS_OP = {key: n for n, name in enumerate("NTC") for key in (n, name, name.lower())}
_CODES = {"S": "f", "D": "d", "C": "F", "Z": "D"}
_streams: dict[int, int | None] = {}
cublasCreate, cublasGetVersion = _cublas.create, _cublas.getVersion  # noqa: N816
cublasError = _cublas.CUBLASError  # noqa: N816
cublasExceptions = {  # noqa: N816
    status: type("cublasError", (cublasError,), {}) for status in (1, 3, 7, 8, 11, 13, 14, 15, 16)
}
(
    cublasNotInitialized, cublasAllocFailed, cublasInvalidValue, cublasArchMismatch,  # noqa: N816
    cublasMappingError, cublasExecutionFailed, cublasInternalError, cublasNotSupported,  # noqa: N816
    cublasLicenseError,  # noqa: N816
) = cublasExceptions.values()  # fmt: skip


def cublasDestroy(handle: int) -> None:  # noqa: N802 (cuBLAS's names)
    """Destroy a handle."""
    _streams.pop(handle, None)
    _cublas.destroy(handle)


def cublasSetStream(handle: int, id: int | None) -> None:  # noqa: N802
    """Set the stream of a handle, by the stream's own handle; None for CuPy's current stream."""
    _streams[handle] = None if id is None else int(id)


def cublasGetStream(handle: int) -> int | None:  # noqa: N802
    """Return the stream of a handle; None for CuPy's current stream, and the default one."""
    return _streams.get(handle) or None


_names = (f"cublas{name[0].upper()}{name[1:]}" for name in dir(_cublas))
# For `from skcuda.cublas import *`.
__all__ = [name for name in globals() if name.startswith("cublas")]
__all__ += [name for name in _names if cupy_name("cublas", name)]


def _vector(n: int, pointer: int, inc: int, dtype: Any) -> cupy.ndarray:
    memory = cupy.cuda.UnownedMemory(pointer, n * abs(inc) * dtype.itemsize, None)
    start = cupy.cuda.MemoryPointer(memory, max(0, (1 - n) * inc) * dtype.itemsize)
    return cupy.ndarray((n,), dtype, start, (inc * dtype.itemsize,))


def _copy_or_swap(base: str, dtype: Any) -> Any:
    """Return cuBLAS's copy or swap, which CuPy does not have."""

    def call(handle: int, n: int, x: int, incx: int, y: int, incy: int) -> None:
        one, other = _vector(n, x, incx, dtype), _vector(n, y, incy, dtype)
        kept = other.copy()
        other[:] = one
        if base == "swap":
            one[:] = kept

    return call


def __getattr__(name: str) -> Any:
    if not (parts := re.fullmatch(PATTERNS["cublas"], name)):
        raise_missing(__name__, name)
    is_index, letter, real, base = parts.groups()
    function = getattr(_cublas, cupy_name("cublas", name), None)
    if base in ("copy", "swap"):
        function = _copy_or_swap(base, np.dtype(_CODES[letter]))
    if function is None:
        raise_missing(__name__, name)
    # Of two letters, the first is that of the result, or the second that of the scalar: Csscal.
    of_scalar = real if base == "scal" and real else letter
    scalar = "i" if is_index else _CODES[of_scalar.upper()]
    names = CUBLAS[base].split()

    def call(handle: int, *args: Any) -> Any:
        values, kept = [], []
        if len(args) != len(names) - ("result" in names):
            raise TypeError(f"skcuda.cublas: {name}: {len(args) + 1} arguments. {call.__doc__}")
        given = iter(args)
        for parameter in names:
            if parameter in ("alpha", "beta", "result"):
                is_result = parameter == "result"
                kept.append(np.array(0 if is_result else next(given), scalar))
                values.append(kept[-1].ctypes.data)
            elif isinstance(value := next(given), str) and parameter in _LETTERS:
                values.append(_LETTERS[parameter].index(value.upper()))
            else:
                values.append(address(value))
        with on_stream(_streams.get(handle)), bridge.ordered():
            try:
                function(handle, *values)
            except cublasError as error:
                raise cublasExceptions.get(error.status, cublasError)(error.status) from None
        if names[-1] != "result":
            return None
        return int(kept[-1]) - 1 if is_index else kept[-1][()]

    call.__doc__ = f"Parameters: (handle, {', '.join(names).removesuffix(', result')})."
    globals()[name] = call
    return call

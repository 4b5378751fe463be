"""``cupyx.cusolver``, which calls cuSOLVER in C: factorizations of stacks of matrices, by NumPy.

It has what `cupy.linalg` and `spsolve` call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.libs import cusolver

from . import _work
from ._cusolver import _LIBRARY


def check_availability(name: str) -> bool:
    return True  # in CUDA 12.9


def _queue(name: str, function: Callable[[Any], Any], given: Any, outputs: Any) -> None:
    """Queue a function that gets a view of `given`, and answers what `outputs` become."""
    _LIBRARY.begin(cupy.cuda.device.get_cusolver_handle())
    source, *views = (
        _work.view(a.data.ptr, a.dtype, a.shape, [s // a.itemsize for s in a.strides])
        for a in (given, *outputs)
    )

    def run() -> None:
        for view, result in zip(views, function(source), strict=True):
            view[...] = result

    _LIBRARY.queue(name, run, [source], views)


def _cast(a: Any) -> tuple[Any, str, str]:
    """Answer the matrices as they are computed, their type, and the type of the results."""
    computed, result = (np.dtype(t).char for t in cupy.linalg._util.linalg_common_type(a))
    return a.astype(computed, copy=False), computed, result


def _gesvdj_batched(
    a: Any, full_matrices: bool, compute_uv: bool, overwrite_a: bool, name: str = "GesvdjBatched"
) -> Any:
    """Answer u, s and v, which is not yet transposed and conjugated."""
    a, dtype, _ = _cast(a)
    *stack, m, n = a.shape
    k = min(m, n)
    s = cupy.empty((*stack, k), dtype.lower())
    if not compute_uv:
        _queue(name, lambda a: [np.linalg.svd(a, compute_uv=False)], a, [s])
        return s
    u = cupy.empty((*stack, m, m if full_matrices else k), dtype)
    vh = cupy.empty((*stack, n if full_matrices else k, n), dtype)
    _queue(name, lambda a: np.linalg.svd(a, full_matrices), a, [u, s, vh])
    return u, s, vh.swapaxes(-1, -2).conj()


def _gesvd_batched(
    a: Any, a_dtype: str, full_matrices: bool, compute_uv: bool, overwrite_a: bool
) -> Any:
    a = a.astype(a_dtype, copy=False)
    return _gesvdj_batched(a, full_matrices, compute_uv, overwrite_a, "Gesvd")


def syevj(a: Any, UPLO: str = "L", with_eigen_vector: bool = True) -> Any:  # noqa: N803
    if UPLO not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    a, dtype, result = _cast(a)
    w, v = cupy.empty(a.shape[:-1], dtype.lower()), cupy.empty(a.shape, dtype)
    _queue("Syevj", lambda a: np.linalg.eigh(a, UPLO), a, [w, v])
    w = w.astype(result.lower(), copy=False)
    return (w, v.astype(result, copy=False)) if with_eigen_vector else w


def _geqrf_orgqr_batched(a: Any, mode: str) -> Any:
    """Factorize each matrix: `mode` is one of ``numpy.linalg.qr``."""
    a, dtype, result = _cast(a)
    count, m, n = a.shape
    k = min(m, n)
    columns = m if mode == "complete" else k
    q, r = cupy.empty((count, m, columns), dtype), cupy.empty((count, columns, n), dtype)
    h, tau = cupy.empty((count, n, m), dtype), cupy.empty((count, k), dtype)
    outputs = {"raw": [h, tau], "r": [r]}.get(mode, [q, r])

    def factorize(a: Any) -> Any:
        found = np.linalg.qr(a, mode)
        return [found] if mode == "r" else found

    _queue("Geqrf", factorize, a, outputs)
    outputs = [out.astype(result, copy=False) for out in outputs]
    return outputs[0] if mode == "r" else tuple(outputs)


def csrlsvqr(a: Any, b: Any, tol: float = 0, reorder: int = 1) -> Any:
    """Solve a sparse system with a matrix of `cupyx.scipy.sparse`."""
    solve = getattr(cusolver, {"f": "s", "d": "d", "F": "c", "D": "z"}[a.dtype.char] + "csrlsvqr")
    b, x, singularity = cupy.ascontiguousarray(b), cupy.empty_like(b), np.empty(1, np.int32)
    pointers = [one.data.ptr for one in (a.data, a.indptr, a.indices, b)]
    handle = cupy.cuda.device.get_cusolver_sp_handle()
    solve(handle, len(b), a.nnz, 0, *pointers, tol, reorder, x.data.ptr, singularity.ctypes.data)
    if singularity[0] >= 0:
        warnings.warn(f"A is not invertible (singularity: {singularity[0]})", stacklevel=2)
    return x

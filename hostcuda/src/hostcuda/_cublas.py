"""cuBLAS for CuPy, by NumPy and SciPy: the functions of ``cupy_backends.cuda.libs.cublas``.

Matrices are column-major.  Each function looks at its arguments as cuBLAS does, and queues work.
Without SciPy, those that need it are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._calls import Array, Library

try:
    from scipy.linalg import get_blas_funcs, get_lapack_funcs
except ImportError:
    get_blas_funcs = get_lapack_funcs = None

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = range(3)
CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = range(2)
CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT = range(2)
CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER = range(2)
CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT = range(2)
CUBLAS_GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT_TENSOR_OP = -1, 99
CUBLAS_DEFAULT_MATH, CUBLAS_TENSOR_OP_MATH = range(2)
CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC = 64, 68, 69
CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_64F_PEDANTIC, CUBLAS_COMPUTE_32F_FAST_TF32 = 70, 71, 77
_OF_COMPUTE_TYPE = {64: "e", 68: "f", 69: "f", 70: "d", 71: "d", 77: "f"}

_LIBRARY = Library(globals(), "cublas", "cuBLAS", "CUBLASError", (1, 7, 13))
_each = _LIBRARY.each
_each_with_scipy = _each if get_blas_funcs else lambda *of: lambda function: function


def getVersion(handle: int) -> int:  # noqa: N802 (the names are cuBLAS's)
    return 120900


def setMathMode(handle: int, mode: int) -> None:  # noqa: N802
    """Do nothing: sums have the precision of their type."""


# ---- vectors ------------------------------------------------------------------------------------


def _size(x: Array) -> Array:
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def _norm(x: Array) -> Any:
    most = np.abs(x).max(initial=0)  # so that squares do not overflow
    return most * np.linalg.norm(x / most) if 0 < most < np.inf else most


@_each("i{}amax", "n x(max(n,0)) >result:i")
def _amax(v: Any) -> None:
    v.result[...] = np.argmax(_size(v.x)) + 1 if v.n > 0 else 0


@_each("i{}amin", "n x(max(n,0)) >result:i")
def _amin(v: Any) -> None:
    v.result[...] = np.argmin(_size(v.x)) + 1 if v.n > 0 else 0


@_each("sasum dasum scasum dzasum", "n x(max(n,0)) >result:r")
def _asum(v: Any) -> None:
    v.result[...] = _size(v.x).sum()


@_each("snrm2 dnrm2 scnrm2 dznrm2", "n x(max(n,0)) >result:r")
def _nrm2(v: Any) -> None:
    v.result[...] = _norm(v.x)


@_each("sdot ddot cdotu zdotu", "n x(n) y(n) >result")
def _dot(v: Any) -> None:
    v.result[...] = v.x @ v.y


@_each("cdotc zdotc", "n x(n) y(n) >result", "", "FD")
def _dotc(v: Any) -> None:
    v.result[...] = v.x.conj() @ v.y


@_each("{}axpy", "n *alpha x(n) y(n)+")
def _axpy(v: Any) -> None:
    v.y[...] += v.alpha * v.x


@_each("csscal zdscal", "n *alpha:r x(max(n,0))+", "", "FD")
@_each("{}scal", "n *alpha x(max(n,0))+")
def _scal(v: Any) -> None:
    v.x[...] *= v.alpha


# ---- matrices -----------------------------------------------------------------------------------


def _write(v: Any, out: Array, product: Callable[[], Array]) -> None:
    """Compute out = alpha * product + beta * out, which is not read if beta is zero."""
    new = product() if v.alpha != 0 else np.zeros_like(out)
    new = new if v.alpha == 1 else v.alpha * new
    out[...] = new if v.beta == 0 else new + v.beta * out


@_each(
    "{}gemv",
    "op m n *alpha A((m,n)[op>0],(n,m)[op>0],op) x((n,m)[op>0]) *beta y((m,n)[op>0])~",
)
def _gemv(v: Any) -> None:
    _write(v, v.y, lambda: v.A @ v.x)


@_each_with_scipy("ssbmv dsbmv", "fill n k *alpha A(k+1,n) x(n) *beta y(n)~")
def _sbmv(v: Any) -> None:
    multiply = get_blas_funcs("sbmv", (v.A,))
    _write(v, v.y, lambda: multiply(v.k, 1, v.A, v.x, lower=v.fill == CUBLAS_FILL_MODE_LOWER))


@_each("sger dger cgeru zgeru", "m n *alpha x(m) y(n) A(m,n)+")
def _ger(v: Any) -> None:
    v.A[...] += v.alpha * np.outer(v.x, v.y)


@_each("cgerc zgerc", "m n *alpha x(m) y(n) A(m,n)+", "", "FD")
def _gerc(v: Any) -> None:
    v.A[...] += v.alpha * np.outer(v.x, v.y.conj())


_GEMM = "opa opb m n k *alpha A(m,k,opa) B(k,n,opb) *beta C(m,n)~"


def _computed(v: Any, args: Any) -> str:
    """Answer the type of sums and scalars."""
    compute = getattr(v, "compute", CUBLAS_COMPUTE_32F)  # CuPy also gives a cudaDataType
    dtype, of_a = _OF_COMPUTE_TYPE.get(compute) or _LIBRARY.dtype(compute), _LIBRARY.dtype(args[7])
    return dtype.upper() if of_a.isupper() else dtype


@_each("gemmStridedBatchedEx", f"{_GEMM} batch compute how", "StridedBatchedEx", _computed)
@_each("gemmEx", f"{_GEMM} compute how", "Ex", _computed)
@_each("sgemmEx", _GEMM, "Ex", _computed)
@_each("{}gemmStridedBatched", f"{_GEMM} batch", "StridedBatched")
@_each("{}gemmBatched", f"{_GEMM} batch", "Batched")
@_each("{}gemm", _GEMM)
def _gemm(v: Any) -> None:
    a, b = (x if x.dtype == v.dtype else x.astype(v.dtype) for x in (v.A, v.B))
    if v.alpha == 1 and v.beta == 0 and v.C.dtype == v.dtype:
        np.matmul(b.swapaxes(-1, -2), a.swapaxes(-1, -2), out=v.C.swapaxes(-1, -2))
    else:
        _write(v, v.C, lambda: a @ b)


@_each("{}geam", "opa opb m n *alpha A(m,n,opa) *beta B(m,n,opb) C(m,n)=")
def _geam(v: Any) -> None:
    _write(v, v.C, lambda: v.A) if v.beta == 0 else np.add(v.alpha * v.A, v.beta * v.B, out=v.C)


@_each("{}dgmm", "side m n A(m,n) x((m,n)[side]) C(m,n)=")
def _dgmm(v: Any) -> None:
    np.multiply(v.A, v.x[:, None] if v.side == CUBLAS_SIDE_LEFT else v.x, out=v.C)


@_each("{}syrk", "fill op n k *alpha A(n,k,op) *beta C(n,n)+")
def _syrk(v: Any) -> None:
    full, whole = v.C.copy(), np.ones(v.C.shape, bool)
    _write(v, full, lambda: v.A @ v.A.T)
    half = np.tril(whole) if v.fill == CUBLAS_FILL_MODE_LOWER else np.triu(whole)
    np.copyto(v.C, full, where=half)


_TRSM = "side fill how diag m n *alpha A((m,n)[side],(m,n)[side]) B(m,n)+"


@_each_with_scipy("{}trsmBatched", f"{_TRSM} batch", "Batched")
@_each_with_scipy("{}trsm", _TRSM)
def _trsm(v: Any) -> None:
    solve = get_blas_funcs("trsm", (v.A, v.B))
    if v.B.size:
        v.B[...] = solve(v.alpha, v.A, v.B, v.side, v.fill == CUBLAS_FILL_MODE_LOWER, v.how, v.diag)


# ---- factorizations of many small matrices ------------------------------------------------------


@_each_with_scipy("{}getrfBatched", "n A(n,n)+ pivots[n]=:i info[]=:i batch", "Batched")
def _getrf(v: Any) -> None:
    v.A[...], pivots, v.info[...] = get_lapack_funcs("getrf", (v.A,))(v.A)
    v.pivots[...] = pivots + 1


@_each_with_scipy(
    "{}getrsBatched", "how n nrhs A(n,n) pivots[n]:i B(n,nrhs)+ !info batch", "Batched"
)
def _getrs(v: Any) -> None:
    solve = get_lapack_funcs("getrs", (v.A,))
    v.B[...] = solve(v.A, v.pivots - 1, v.B, trans=v.how)[0]


@_each_with_scipy("{}getriBatched", "n A(n,n) pivots[n]:i C(n,n)= info[]=:i batch", "Batched")
def _getri(v: Any) -> None:
    v.C[...], v.info[...] = get_lapack_funcs("getri", (v.A,))(v.A, v.pivots - 1)
    if v.info:  # singular: cuBLAS divides by zero
        v.C[...] = np.inf

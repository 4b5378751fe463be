"""``skcuda.linalg``: products, factorizations and solutions of matrices in GPUArrays."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import cupyx
import numpy as np
from numpy.linalg import LinAlgError as LinAlgError

from . import misc, on_cupy, raise_missing

_has_cula = False
init, shutdown = misc.init, misc.shutdown


def _transposed(a: Any, trans: str) -> Any:
    if trans.upper() not in ("N", "T", "C"):
        raise ValueError(f"skcuda.linalg: {trans!r} is not one of 'N', 'T' and 'C'")
    return a if trans.upper() == "N" else a.T if trans.upper() == "T" else a.conj().T


def _store(a: Any, values: Any, overwrite: bool = True) -> Any:
    if not overwrite:
        return values
    a[...] = values
    return a


# ---- products and parts -------------------------------------------------------------------------


@on_cupy
def dot(
    x: Any, y: Any, transa: str = "N", transb: str = "N", handle: Any = None, out: Any = None
) -> Any:
    """Return the product of matrices and vectors; of two vectors, a number."""
    if x.dtype != y.dtype:
        raise TypeError(f"skcuda.linalg.dot: the dtypes are {x.dtype} and {y.dtype}")
    one, other = _transposed(x, transa), _transposed(y, transb)
    if x.ndim == y.ndim == 1:
        return cupy.dot(one, other).item()
    if x.ndim == y.ndim == 2 and x.strides[1] > x.strides[0]:  # in Fortran order, as the result
        found = cupy.dot(other.T, one.T).T
    else:
        found = cupy.dot(one, other)
    return found if out is None else _store(out, found)


@on_cupy
def mdot(*args: Any, handle: Any = None) -> Any:
    """Return the product of several matrices."""
    return functools.reduce(cupy.dot, args)


@on_cupy
def add_dot(
    a_gpu: Any, b_gpu: Any, c_gpu: Any, transa: str = "N", transb: str = "N", alpha: Any = 1.0,
    beta: Any = 1.0, handle: Any = None,
) -> Any:  # fmt: skip
    """Write ``alpha * a @ b + beta * c`` into `c_gpu`, and return it."""
    scalar = c_gpu.dtype.type
    c_gpu *= scalar(beta)
    c_gpu += scalar(alpha) * cupy.dot(_transposed(a_gpu, transa), _transposed(b_gpu, transb))
    return c_gpu


@on_cupy
def dot_diag(d: Any, a: Any, trans: str = "N", overwrite: bool = False, handle: Any = None) -> Any:
    """Return ``diag(d) @ a``, or ``a @ diag(d)`` if `trans` is 'T'."""
    if trans.upper() == "N":
        return _store(a, _diagonal(d, a, 0)[:, None] * a, overwrite)
    return _store(a, a * _diagonal(d, a, 1), overwrite)


def _check_square(a: Any) -> None:
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"skcuda.linalg: a matrix of shape {a.shape} is not square")


def _diagonal(d: Any, a: Any, axis: int) -> Any:
    if a.ndim != 2 or d.dtype != a.dtype or d.size not in d.shape or d.size != a.shape[axis]:
        raise ValueError(
            f"skcuda.linalg: a diagonal of shape {d.shape} and {d.dtype} does not fit a matrix of "
            f"shape {a.shape} and {a.dtype}"
        )
    return d.ravel()


@on_cupy
def multiply(x: Any, y: Any, overwrite: bool = False) -> Any:
    """Return the products of items, in `y` if `overwrite`."""
    if x.shape != y.shape:
        raise ValueError(f"skcuda.linalg: the shapes {x.shape} and {y.shape} differ")
    return _store(y, x * y, overwrite)


conj = on_cupy(lambda x, overwrite=False: _store(x, x.conj(), overwrite))
tril = on_cupy(lambda a, overwrite=False, handle=None: _store(a, cupy.tril(a), overwrite))
triu = on_cupy(lambda a, k=0, overwrite=False, handle=None: _store(a, cupy.triu(a, k), overwrite))
transpose = on_cupy(lambda a, handle=None: a.T.copy())
hermitian = on_cupy(lambda a, handle=None: a.conj().T.copy())
diag = on_cupy(lambda v: cupy.diag(v).copy())
eye = on_cupy(lambda N, dtype=np.float32: cupy.eye(N, dtype=dtype))  # noqa: N803
norm = on_cupy(lambda x, handle=None: cupy.linalg.norm(x.ravel()).item())
trace = on_cupy(lambda x, handle=None: cupy.trace(x).item())


@on_cupy
def scale(alpha: Any, x: Any, alpha_real: bool = False, handle: Any = None) -> None:
    """Multiply an array in place."""
    x *= x.dtype.type(alpha)


# ---- factorizations -----------------------------------------------------------------------------


def _solver(function: Any) -> Any:
    """Return a function of GPUArrays whose ``lib`` is cuSOLVER, and which checks its results."""

    def checked(*args: Any, lib: str = "cusolver", **keywords: Any) -> Any:
        if isinstance(args[-1], str) and args[-1] in ("cula", "cusolver"):  # by position, too
            *args, lib = args  # type: ignore[assignment]
        if lib != "cusolver":
            raise NotImplementedError(f"skcuda.linalg: lib is {lib!r}; CULA is gone: 'cusolver'")
        with cupyx.errstate(linalg="raise"):
            return function(*args, **keywords)

    checked.__doc__ = function.__doc__
    return on_cupy(checked)


det = _solver(lambda a, *workspaces, **keywords: cupy.linalg.det(a).item())
pinv = _solver(lambda a, rcond=1e-15: cupy.linalg.pinv(a, rcond))


@_solver
def inv(a: Any, overwrite: bool = False, ipiv_gpu: Any = None) -> Any:
    """Return the inverse; raise LinAlgError for a singular matrix."""
    _check_square(a)
    return _store(a, cupy.linalg.inv(a), overwrite)


@_solver
def svd(a: Any, jobu: str = "A", jobvt: str = "A") -> Any:
    """Return u, s and vh; without u or vh for 'N', and only their first columns for 'S' and 'O'."""
    jobs = jobu.upper(), jobvt.upper()
    if jobs == ("N", "N"):
        return cupy.linalg.svd(a, compute_uv=False)
    u, s, vh = cupy.linalg.svd(a, full_matrices="A" in jobs)
    u = u if jobs[0] == "A" else u[:, : s.size].copy()
    vh = vh if jobs[1] == "A" else vh[: s.size].copy()
    return tuple(x for x, job in ((u, jobs[0]), (s, "A"), (vh, jobs[1])) if job != "N")


@_solver
def qr(a: Any, mode: str = "reduced", handle: Any = None) -> Any:
    """Return q and r; only q for 'economic', only r for 'r'."""
    found = cupy.linalg.qr(a, "r" if mode == "r" else "reduced")
    return found[0] if mode == "economic" else found


@_solver
def eig(a: Any, jobvl: str = "N", jobvr: str = "V", imag: str = "F") -> Any:
    """Return (vr, w, vl) of a symmetric or Hermitian matrix; without those not asked for."""
    if "V" not in (jobvl, jobvr):
        return cupy.linalg.eigvalsh(a)
    w, v = cupy.linalg.eigh(a)
    return (*[v] * (jobvr == "V"), w, *[v] * (jobvl == "V"))


eigvals = _solver(cupy.linalg.eigvalsh)


def _cholesky_in_place(a: Any, uplo: str, rest: bool) -> Any:
    """Write a Cholesky factor into its triangle; return the lower one.

    As in scikit-cuda, the memory is read by columns: an array in C order is transposed.
    """
    columns = a if a.flags.f_contiguous else a.T
    lower = cupy.linalg.cholesky(columns)
    is_lower = uplo.upper() == "L"
    other = cupy.triu(columns, 1) if is_lower else cupy.tril(columns, -1)
    columns[...] = (lower if is_lower else lower.conj().T) + (other if rest else 0)
    return lower


@_solver
def cho_factor(a: Any, uplo: str = "L") -> None:
    """Write the Cholesky factor into its triangle, as memory is read by columns."""
    _cholesky_in_place(a, uplo, True)


@_solver
def cholesky(a: Any, uplo: str = "L") -> None:
    """Write the Cholesky factor into its triangle, as memory is read by columns, and zeros."""
    _cholesky_in_place(a, uplo, False)


@_solver
def cho_solve(a: Any, b: Any, uplo: str = "L") -> None:
    """Write the solution of ``a x = b`` into `b`, and the factor into `a`, read by columns."""
    from cupyx.scipy.linalg import solve_triangular  # needs cuBLAS

    lower = _cholesky_in_place(a, uplo, True)
    half = solve_triangular(lower, b, lower=True)
    b[...] = solve_triangular(lower.conj().T, half, lower=False)


class PCA:
    """Principal components of rows minus their means; the other parameters do nothing."""

    def __init__(
        self, n_components: int | None = None, handle: Any = None, epsilon: float = 1e-7,
        max_iter: int = 10000,
    ) -> None:  # fmt: skip
        self.n_components = n_components

    def fit_transform(self, X_gpu: Any, transposed_input: bool = False) -> Any:  # noqa: N803
        """Return the scores of an (n, p) matrix, (n, components); transposed, if it is."""
        if X_gpu.ndim != 2 or X_gpu.dtype.char not in "fd":
            raise ValueError(
                f"skcuda.linalg.PCA: the matrix is {X_gpu.dtype} of shape {X_gpu.shape}; float32 "
                "or float64 of two dimensions is accepted"
            )
        return _pca_scores(X_gpu, self.n_components, transposed_input)


@on_cupy
def _pca_scores(x: Any, count: int | None, is_transposed: bool) -> Any:
    rows = x.T if is_transposed else x
    u, s, _ = cupy.linalg.svd(rows - rows.mean(1, keepdims=True), full_matrices=False)
    scores = (u * s)[:, :count]
    return (scores.T if is_transposed else scores).copy("C" if x.flags.c_contiguous else "F")


__getattr__ = functools.partial(raise_missing, __name__)

"""cuSOLVER for CuPy, by NumPy and SciPy: the functions of ``cupy_backends.cuda.libs.cusolver``.

What a function needs as a workspace is one element, which it does not use.  Without SciPy, those
that need it are refused.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import _work
from ._calls import Array, Library

try:
    from scipy import sparse
    from scipy.linalg import get_lapack_funcs
    from scipy.sparse import linalg as sparse_linalg
except ImportError:
    get_lapack_funcs = None

CUSOLVER_EIG_MODE_NOVECTOR, CUSOLVER_EIG_MODE_VECTOR = range(2)
_ALL, _SOME, _OVER = map(ord, "ASO")  # what gesvd computes

_LIBRARY = Library(globals(), "cusolverDn", "cuSOLVER", "CUSOLVERError", (1, 3, 6))
spCreate, spDestroy = _LIBRARY.create, _LIBRARY.destroy  # noqa: N816 (the names are cuSOLVER's)


def createParams() -> int:  # noqa: N802
    return 1


def destroyParams(params: int) -> None:  # noqa: N802
    """Do nothing: parameters have no effect."""


createSyevjInfo, destroySyevjInfo = createParams, destroyParams  # noqa: N816


def xsyevjSetTolerance(params: int, value: float) -> None:  # noqa: N802
    """Do nothing: there are no sweeps whose number it decides."""


xsyevjSetMaxSweeps = xsyevjSetSortEig = xsyevjSetTolerance  # noqa: N816


def xsyevjGetSweeps(handle: int, params: int) -> int:  # noqa: N802
    return 1


def xsyevjGetResidual(handle: int, params: int) -> float:  # noqa: N802
    return 0.0


def _getVersion() -> tuple[int, int, int]:  # noqa: N802
    return 11, 7, 5


# ---- functions ----------------------------------------------------------------------------------

_each_with_scipy = (
    _LIBRARY.each if get_lapack_funcs else lambda *of, **size: lambda function: function
)
_SPACE = "work lwork info[]=:i"


def _lapack(name: str, a: Array) -> Any:
    return get_lapack_funcs(name, (a,))


@_each_with_scipy("{}getrf", "m n A(m,n)+ work pivots[min(m,n)]=:i info[]=:i", size=1)
def _getrf(v: Any) -> None:
    v.A[...], pivots, v.info[...] = _lapack("getrf", v.A)(v.A)
    v.pivots[...] = pivots + 1


@_each_with_scipy("{}getrs", "how n nrhs A(n,n) pivots[n]:i B(n,nrhs)+ info[]=:i")
def _getrs(v: Any) -> None:
    v.B[...], v.info[...] = _lapack("getrs", v.A)(v.A, v.pivots - 1, v.B, trans=v.how)


@_each_with_scipy("{}potrfBatched", "fill n A(n,n)+ info[]=:i batch", "Batched")
@_each_with_scipy("{}potrf", f"fill n A(n,n)+ {_SPACE}", size=1)
def _potrf(v: Any) -> None:
    v.A[...], v.info[...] = _lapack("potrf", v.A)(v.A, lower=v.fill == 0, clean=0)


@_each_with_scipy("{}potrsBatched", "fill n nrhs A(n,n) B(n,nrhs)+ <info[]=:i batch", "Batched")
@_each_with_scipy("{}potrs", "fill n nrhs A(n,n) B(n,nrhs)+ info[]=:i")
def _potrs(v: Any) -> None:
    v.B[...], v.info[...] = _lapack("potrs", v.A)(v.A, v.B, lower=v.fill == 0)


@_each_with_scipy("{}geqrf", f"m n A(m,n)+ tau[min(m,n)]= {_SPACE}", size=1)
def _geqrf(v: Any) -> None:
    v.A[...], v.tau[...], _, v.info[...] = _lapack("geqrf", v.A)(v.A)


@_each_with_scipy("sorgqr dorgqr cungqr zungqr", f"m n k A(m,n)+ tau[k] {_SPACE}", size=1)
def _orgqr(v: Any) -> None:
    name = "orgqr" if v.dtype in "fd" else "ungqr"
    v.A[...], _, v.info[...] = _lapack(name, v.A)(v.A, v.tau)


@_each_with_scipy(
    "sormqr dormqr cunmqr zunmqr",
    f"side how m n k A((m,n)[side],k) tau[k] C(m,n)+ {_SPACE}",
    size=1,
)
def _ormqr(v: Any) -> None:
    name = "ormqr" if v.dtype in "fd" else "unmqr"
    side, how = "LR"[v.side], "NTC"[v.how]
    v.C[...], _, v.info[...] = _lapack(name, v.A)(side, how, v.A, v.tau, v.C, max(1, v.C.size))


@_LIBRARY.each(
    "{}gesvd",
    "jobu jobvt m n A(m,n)+ s[min(m,n)]=:r U(m,{65:m,83:min(m,n)}.get(jobu,0))= "
    "VT({65:n,83:min(m,n)}.get(jobvt,0),n)= work lwork rwork info[]=:i",
    size=1,
)
def _gesvd(v: Any) -> None:
    jobs = v.jobu, v.jobvt
    try:
        u, s, vt = np.linalg.svd(v.A, full_matrices=_ALL in jobs)
    except np.linalg.LinAlgError:
        v.info[...] = 1
        return
    v.s[...], v.info[...], k = s, 0, len(s)
    if v.jobu in (_ALL, _SOME):
        v.U[...] = u[:, : v.U.shape[1]]
    if v.jobvt in (_ALL, _SOME):
        v.VT[...] = vt[: len(v.VT)]
    if v.jobu == _OVER:
        v.A[:, :k] = u[:, :k]
    elif v.jobvt == _OVER:
        v.A[:k] = vt[:k]


def _typed(v: Any, args: Any) -> str:
    return _LIBRARY.dtype(v.typeA)


_SPACES = "type b1 s1 b2 s2 info[]=:i"  # on the device and on the host


@_LIBRARY.each(
    "xsyevd", f"params jobz fill n typeA A(n,n)+ typeW W[n]=:r {_SPACES}", "", _typed, (1, 1)
)
@_LIBRARY.each(
    "ssyevj dsyevj cheevj zheevj", f"jobz fill n A(n,n)+ W[n]=:r {_SPACE} params", size=1
)
@_LIBRARY.each("ssyevd dsyevd cheevd zheevd", f"jobz fill n A(n,n)+ W[n]=:r {_SPACE}", size=1)
def _syevd(v: Any) -> None:
    try:
        v.W[...], vectors = np.linalg.eigh(v.A, "LU"[v.fill])
    except np.linalg.LinAlgError:
        v.info[...] = 1
        return
    v.info[...] = 0
    if v.jobz:
        v.A[...] = vectors


@_LIBRARY.each(
    "ssyevjBatched dsyevjBatched cheevjBatched zheevjBatched",
    "jobz fill n A(n,n*count)+ W[count,n]=:r work lwork info[count,1]=:i params count",
    size=1,
)
def _syevj_batched(v: Any) -> None:
    """Compute each matrix: they lie one behind the other, as columns of one matrix."""
    matrices = v.A.T.reshape(v.count, v.n, v.n).swapaxes(1, 2)
    for A, W, info in zip(matrices, v.W, v.info, strict=True):  # noqa: N806
        _syevd(SimpleNamespace(jobz=v.jobz, fill=v.fill, A=A, W=W, info=info))


@_each_with_scipy(
    "xgeev",
    "params jobvl jobvr n typeA A(n,n)+ typeW W[n]=:c typeVL VL(n*jobvl,n*jobvl)= "
    f"typeVR VR(n*jobvr,n*jobvr)= {_SPACES}",
    "",
    _typed,
    (1, 1),
)
def _geev(v: Any) -> None:
    *w, left, right, v.info[...] = _lapack("geev", v.A)(v.A, bool(v.jobvl), bool(v.jobvr))
    v.W[...] = w[0] if len(w) == 1 else w[0] + 1j * w[1]
    for out, vectors in ((v.VL, left), (v.VR, right)):
        if out.size:
            out[...] = vectors


def _csrlsvqr(dtype: str, *args: Any) -> None:
    """Solve a sparse system.  The host gets -1, or the row of R where the matrix is singular."""
    handle, m, nnz, _, data, rows, columns, b, tol, _, x, singularity = args
    _LIBRARY.begin(handle)
    given = [_work.view(p, dtype, (n,)) for p, n in ((data, nnz), (b, m))]
    places = [_work.view(p, "i", (n,)) for p, n in ((columns, nnz), (rows, m + 1))]
    out, found = _work.view(x, dtype, (m,)), ctypes.c_int.from_address(singularity)

    def solve() -> None:
        a = sparse.csr_matrix((given[0], *places), (m, m))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a singular matrix
            out[...] = sparse_linalg.spsolve(a.tocsc(), given[1])
        found.value = -1
        if not np.isfinite(out).all():
            r = np.abs(np.diag(np.linalg.qr(a.toarray(), "r")))
            found.value = int(np.argmax(r <= max(tol, np.finfo(dtype).eps)))

    _LIBRARY.queue("csrlsvqr", solve, [*given, *places], [out], waits=True)


if get_lapack_funcs:
    for _letter, _dtype in zip("sdcz", "fdFD", strict=True):
        globals()[f"{_letter}csrlsvqr"] = functools.partial(_csrlsvqr, _dtype)

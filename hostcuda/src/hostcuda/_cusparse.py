"""cuSPARSE for CuPy, by SciPy: what products, sums and conversions of cupyx.scipy.sparse need."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse

from . import _work
from ._calls import Array, Library
from ._libraries import refusing

CUSPARSE_POINTER_MODE_HOST = CUSPARSE_INDEX_BASE_ZERO = CUSPARSE_MATRIX_TYPE_GENERAL = 0
CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_TRANSPOSE = range(2)
CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE = 2
CUSPARSE_ORDER_COL, CUSPARSE_ORDER_ROW = 1, 2
CUSPARSE_INDEX_32I, CUSPARSE_INDEX_64I = 2, 3
_OF_INDEX_TYPE = {CUSPARSE_INDEX_32I: "i", CUSPARSE_INDEX_64I: "q"}

_INSUFFICIENT_RESOURCES = 11
_LIBRARY = Library(
    globals(), "cusparse", "cuSPARSE", "CuSparseError", (1, 3, 6, _INSUFFICIENT_RESOURCES)
)
_each = _LIBRARY.each


def getVersion(handle: int = 0) -> int:  # noqa: N802 (the names are cuSPARSE's)
    return 12510  # of CUDA 12.9


get_build_version = getVersion


def is_cuda_python_build() -> bool:
    return False


def _size(*_: Any) -> int:
    return 1  # of a workspace, which nothing uses


xcsrsort_bufferSizeExt = xcscsort_bufferSizeExt = xcoosort_bufferSizeExt = _size  # noqa: N816
scsrgeam2_bufferSizeExt = dcsrgeam2_bufferSizeExt = _size  # noqa: N816
ccsrgeam2_bufferSizeExt = zcsrgeam2_bufferSizeExt = _size  # noqa: N816
spMV_bufferSize = spMM_bufferSize = spGEMM_workEstimation = _size  # noqa: N816
denseToSparse_bufferSize = sparseToDense_bufferSize = _size  # noqa: N816

# ---- functions on arrays ------------------------------------------------------------------------


def _rows(indptr: Array) -> Array:
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def _sort(order: Array, *arrays: Array) -> None:
    for array in arrays:
        array[...] = array[order]


@_each("xcsrsort", "m n nnz descr indptr[m+1]:i indices[nnz]+:i p[nnz]+:i buffer")
@_each("xcscsort", "m n nnz descr indptr[n+1]:i indices[nnz]+:i p[nnz]+:i buffer")
def _compressed_sort(v: Any) -> None:
    _sort(np.lexsort((v.indices, _rows(v.indptr))), v.indices, v.p)


@_each("xcoosortByRow", "m n nnz row[nnz]+:i col[nnz]+:i p[nnz]+:i buffer")
@_each("xcoosortByColumn", "m n nnz col[nnz]+:i row[nnz]+:i p[nnz]+:i buffer")
def _coo_sort(v: Any) -> None:
    _sort(np.lexsort((v.col, v.row)), v.row, v.col, v.p)


@_each("createIdentityPermutation", "n p[n]=:i")
def _identity(v: Any) -> None:
    v.p[...] = np.arange(v.n)


@_each("xcoo2csr", "rows[nnz]:i nnz m indptr[m+1]=:i base")
def _coo2csr(v: Any) -> None:
    v.indptr[...] = v.base + np.searchsorted(v.rows, v.base + np.arange(v.m + 1))


@_each("xcsr2coo", "indptr[m+1]:i nnz m rows[nnz]=:i base")
def _csr2coo(v: Any) -> None:
    v.rows[...] = v.base + _rows(v.indptr)


@_each(
    "csr2cscEx2",
    "m n nnz data[nnz] indptr[m+1]:i indices[nnz]:i data_[nnz]= indptr_[n+1]=:i indices_[nnz]=:i "
    "type action base algorithm buffer",
    dtypes=lambda v, args: _LIBRARY.dtype(v.type),
    size=1,
)
def _csr2csc(v: Any) -> None:
    csc = sparse.csr_array((v.data, v.indices, v.indptr), (v.m, v.n)).tocsc()
    v.data_[...], v.indices_[...], v.indptr_[...] = csc.data, csc.indices, csc.indptr


def _union(v: Any) -> tuple[Array, Array, Array]:
    """Answer the places of a sum's elements, in order, and where those of A and B are in it."""
    keys = [_rows(p) * v.n + i for p, i in ((v.ptr_a, v.ind_a), (v.ptr_b, v.ind_b))]
    places, at = np.unique(np.concatenate(keys), return_inverse=True)
    return places, at[: v.nnz_a], at[v.nnz_a :]


@_each(
    "xcsrgeam2Nnz",
    "m n descr_a nnz_a ptr_a[m+1]:i ind_a[nnz_a]:i descr_b nnz_b ptr_b[m+1]:i ind_b[nnz_b]:i descr "
    "ptr[m+1]=:i >total:i buffer",
)
def _count_sum(v: Any) -> None:
    places = _union(v)[0]
    v.ptr[...] = np.searchsorted(places, np.arange(v.m + 1) * v.n)
    v.total[...] = len(places)


@_each(
    "{}csrgeam2",
    "m n *alpha descr_a nnz_a a[nnz_a] ptr_a[m+1]:i ind_a[nnz_a]:i *beta descr_b nnz_b b[nnz_b] "
    "ptr_b[m+1]:i ind_b[nnz_b]:i descr values ptr[m+1]:i indices buffer",
)
def _add(v: Any) -> None:
    places, of_a, of_b = _union(v)
    values = _work.view(v.values, v.dtype, places.shape)
    indices = _work.view(v.indices, "i", places.shape)
    _work.use([], [values, indices])
    indices[...] = places % v.n
    values[...] = 0
    np.add.at(values, of_a, v.alpha * v.a)
    np.add.at(values, of_b, v.beta * v.b)


def _nnz_compress(
    dtype: str, handle: int, m: int, _: int, data: int, indptr: int, counts: int, tol: complex
) -> int:
    """Count the elements of each row that are larger.  The host waits, as it asks for the sum."""
    _LIBRARY.begin(handle)
    rows, out = _work.view(indptr, "i", (m + 1,)), _work.view(counts, "i", (m,))

    def run() -> None:
        values = _work.view(data, dtype, (int(rows[-1]),))
        _work.use([values], [])
        out[...] = np.bincount(_rows(rows)[abs(values) > abs(tol)], minlength=m)

    _LIBRARY.queue("Nnz_compress", run, [rows], [out], True)
    return int(out.sum())


for _letter, _dtype in zip("sdcz", "fdFD", strict=True):
    globals()[f"{_letter}nnz_compress"] = functools.partial(_nnz_compress, _dtype)


@_each(
    "{}csr2csr_compress",
    "m n descr data[nnz] indices[nnz]:i indptr[m+1]:i nnz counts[m]:i data_ indices_ "
    "indptr_[m+1]=:i tol",
)
def _compress(v: Any) -> None:
    kept = abs(v.data) > abs(v.tol)
    v.indptr_[...] = np.append(0, np.cumsum(v.counts))
    for given, pointer, kind in ((v.data, v.data_, v.dtype), (v.indices, v.indices_, "i")):
        out = _work.view(pointer, kind, (np.count_nonzero(kept),))
        _work.use([], [out])
        out[...] = given[kept]


# ---- descriptors --------------------------------------------------------------------------------

_descriptors: dict[int, Any] = {}
_numbers = itertools.count(1)


def _describe(**fields: Any) -> int:
    number = next(_numbers)
    _descriptors[number] = SimpleNamespace(**fields)
    return number


def _forget(number: int) -> None:
    _descriptors.pop(number, None)


createMatDescr = spGEMM_createDescr = _describe  # noqa: N816
destroyMatDescr = destroySpMat = destroySpVec = destroyDnVec = _forget  # noqa: N816
destroyDnMat = spGEMM_destroyDescr = _forget  # noqa: N816


def _create(
    form: str, rows: int, cols: int, nnz: int, indptr: int, indices: int, values: int, *types: int
) -> int:
    fields = {"form": form, "rows": rows, "cols": cols, "nnz": nnz, "types": types}
    return _describe(**fields, pointers=(indptr, indices, values), product=None)


createCsr = functools.partial(_create, "csr")  # noqa: N816
createCsc = functools.partial(_create, "csc")  # noqa: N816
createCoo = functools.partial(_create, "coo")  # noqa: N816


def createDnVec(size: int, values: int, dtype: int) -> int:  # noqa: N802
    return _describe(view=_work.view(values, _LIBRARY.dtype(dtype), (size,)))


def createSpVec(  # noqa: N802
    size: int, nnz: int, indices: int, values: int, index: int, base: int, dtype: int
) -> int:
    return _describe(
        indices=_work.view(indices, _OF_INDEX_TYPE[index], (nnz,)),
        view=_work.view(values, _LIBRARY.dtype(dtype), (nnz,)),
    )


def createDnMat(rows: int, cols: int, ld: int, values: int, dtype: int, order: int) -> int:  # noqa: N802
    is_by_rows = order == CUSPARSE_ORDER_ROW
    _LIBRARY.check(ld >= (cols if is_by_rows else rows))
    steps = (ld, 1) if is_by_rows else (1, ld)
    return _describe(view=_work.view(values, _LIBRARY.dtype(dtype), (rows, cols), steps))


def csrSetPointers(descriptor: int, *pointers: int) -> None:  # noqa: N802
    _descriptors[descriptor].pointers = pointers


def spMatGetSize(descriptor: int, rows: int, cols: int, nnz: int) -> None:  # noqa: N802
    d = _descriptors[descriptor]
    for pointer, value in ((rows, d.rows), (cols, d.cols), (nnz, d.nnz)):
        _work.view(pointer, "q", ())[...] = value


def _parts(d: Any) -> list[Array]:
    """View what a matrix consists of: for a CSR, its indptr, indices and values."""
    first = {"csr": d.rows + 1, "csc": d.cols + 1, "coo": d.nnz}[d.form]
    *indices, _, dtype = d.types
    kinds = _OF_INDEX_TYPE[indices[0]], _OF_INDEX_TYPE[indices[-1]], _LIBRARY.dtype(dtype)
    sizes = first, d.nnz, d.nnz
    return [_work.view(p, k, (n,)) for p, k, n in zip(d.pointers, kinds, sizes, strict=True)]


_KINDS = {"csr": sparse.csr_array, "csc": sparse.csc_array, "coo": sparse.coo_array}


def _matrix(d: Any, parts: list[Array], how: int = 0) -> Any:
    first, second, values = parts
    given = (values, (first, second)) if d.form == "coo" else (values, second, first)
    a = _KINDS[d.form](given, (d.rows, d.cols))
    return a if how == 0 else a.T if how == 1 else a.conj().T


# ---- functions on descriptors -------------------------------------------------------------------


def _begin(handle: int, *descriptors: int) -> list[Any]:
    """Begin a call of a function that takes scalars of the host."""
    if _LIBRARY.begin(handle):
        refusing("cuSPARSE (scalars in device memory)")()
    return [_descriptors[number] for number in descriptors]


def _multiply(
    name: str, how: tuple[int, int], alpha: int, beta: int, a: Any, b: Any, c: Any
) -> None:
    """Queue c = alpha * op(a) @ op(b) + beta * c, for a sparse matrix `a`."""
    parts = _parts(a)
    scale, keep = (_work.view(p, c.view.dtype, ()).copy() for p in (alpha, beta))

    def run() -> None:
        dense = b.view if how[1] == 0 else b.view.T if how[1] == 1 else b.view.conj().T
        product = scale * (_matrix(a, parts, how[0]) @ dense)
        c.view[...] = product if keep == 0 else product + keep * c.view

    _LIBRARY.queue(name, run, [*parts, b.view, *([c.view] if keep else ())], [c.view])


def spMV(handle: int, how: int, alpha: int, a: int, x: int, beta: int, y: int, *_: int) -> None:  # noqa: N802
    _multiply("SpMV", (how, 0), alpha, beta, *_begin(handle, a, x, y))


def spMM(  # noqa: N802
    handle: int, opa: int, opb: int, alpha: int, a: int, b: int, beta: int, c: int, *_: int
) -> None:
    _multiply("SpMM", (opa, opb), alpha, beta, *_begin(handle, a, b, c))


def spGEMM_compute(  # noqa: N802
    handle: int, opa: int, opb: int, alpha: int, a: int, b: int, beta: int, c: int, *rest: int
) -> int:
    """Compute a product of sparse matrices.  The host waits, as it asks for the size."""
    left, right, out = _begin(handle, a, b, c)
    parts = [_parts(left), _parts(right)]
    factor = _work.view(alpha, parts[0][2].dtype, ()).copy()

    def run() -> None:
        one, other = _matrix(left, parts[0], opa), _matrix(right, parts[1], opb)
        out.product = None
        # cuSPARSE 12.6 gives up earlier, by the memory: at 1.25e9 products on 80 GB.
        counts = np.diff(one.tocsc().indptr), np.diff(other.tocsr().indptr)
        if counts[0].astype("q") @ counts[1].astype("q") < 2**31:
            out.product = (one @ other).tocsr() * factor
            out.product.sort_indices()

    if rest[-1]:  # otherwise, it asks for the size of the workspace
        _LIBRARY.queue("SpGEMM", run, [*parts[0], *parts[1]], [], True)
        if out.product is None:
            raise _LIBRARY.Error(_INSUFFICIENT_RESOURCES)
        out.nnz = out.product.nnz
    return 1


def spGEMM_copy(handle: int, *args: int) -> None:  # noqa: N802
    (out,) = _begin(handle, args[6])
    product = out.product
    _fill("SpGEMM", out, lambda: product, [])


def _fill(name: str, out: Any, make: Callable[[], Any], reads: Any) -> None:
    """Queue the filling of a matrix from one of SciPy's."""
    parts = _parts(out)

    def run() -> None:
        a = make()
        made = (a.row, a.col, a.data) if out.form == "coo" else (a.indptr, a.indices, a.data)
        for part, values in zip(parts, made, strict=True):
            part[...] = values

    _LIBRARY.queue(name, run, reads, parts)


def denseToSparse_analysis(handle: int, a: int, b: int, *_: int) -> None:  # noqa: N802
    """Count the elements.  The host waits, as it asks for the size."""
    dense, out = _begin(handle, a, b)

    def run() -> None:
        out.nnz = np.count_nonzero(dense.view)

    _LIBRARY.queue("DenseToSparse_analysis", run, [dense.view], [], True)


def denseToSparse_convert(handle: int, a: int, b: int, *_: int) -> None:  # noqa: N802
    dense, out = _begin(handle, a, b)
    _fill("DenseToSparse_convert", out, lambda: _KINDS[out.form](dense.view), [dense.view])


def sparseToDense(handle: int, a: int, b: int, *_: int) -> None:  # noqa: N802
    given, dense = _begin(handle, a, b)
    parts = _parts(given)

    def run() -> None:
        dense.view[...] = _matrix(given, parts).toarray()

    _LIBRARY.queue("SparseToDense", run, parts, [dense.view])


def gather(handle: int, y: int, x: int) -> None:
    source, out = _begin(handle, y, x)

    def run() -> None:
        out.view[...] = source.view[out.indices]

    _LIBRARY.queue("Gather", run, [source.view, out.indices], [out.view])

"""cuSPARSE's functions, by SciPy: products, sums and conversions of sparse matrices, and order."""

import cupy
import numpy as np
import pytest
from cupyx import cusparse
from cupyx.scipy import sparse
from hostcuda._libraries import Missing

import hostcuda

scipy_sparse = pytest.importorskip("scipy.sparse")


def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    a = random.standard_normal(shape) * (random.random(shape) < 0.4)
    return (a + 1j * a[::-1] if dtype in "FD" else a).astype(dtype)


def close(actual, expected):
    digits = 1e-3 if np.dtype(expected.dtype).char in "fF" else 1e-9
    actual = actual.get().toarray() if sparse.issparse(actual) else actual
    np.testing.assert_allclose(cupy.asnumpy(actual), expected, digits, digits)


def device(a, form="csr"):
    """Answer a sparse matrix of CuPy's, without the sorts by Thrust that others need."""
    a = getattr(scipy_sparse, form + "_matrix")(a)
    a.sort_indices() if form != "coo" else None
    x = getattr(sparse, form + "_matrix")(a)
    x.has_canonical_format = True
    return x


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("transposes", [False, True])
def test_products_with_dense_ones(dtype, form, transposes):
    a, b, c = numbers((7, 5), dtype), numbers((5, 6), dtype, 1), numbers((7, 6), dtype, 2)
    x = device(a.T if transposes else a, form)
    y, z = cupy.asarray(b, order="F"), cupy.asarray(c, order="F")
    close(cusparse.spmm(x, y, transa=transposes), a @ b)
    close(cusparse.spmm(x, y, z, alpha=2, beta=3, transa=transposes), 2 * a @ b + 3 * c)
    close(cusparse.spmv(x, y[:, 1], transa=transposes), a @ b[:, 1])


@pytest.mark.parametrize("dtype", "fdFD")
class TestSparse:
    def test_products_and_sums(self, dtype):
        a, b, c = numbers((7, 5), dtype), numbers((5, 6), dtype, 1), numbers((7, 5), dtype, 2)
        close(device(a) @ device(b), a @ b)
        close(cusparse.csrgeam2(device(a), device(c), 2, -3), 2 * a - 3 * c)
        assert (device(a) - device(a)).nnz == np.count_nonzero(a)  # zeros stay
        close(device(a) + device(c), a + c)

    @pytest.mark.parametrize("form", ["csr", "csc", "coo"])
    def test_zeros_are_eliminated(self, dtype, form):
        a = numbers((6, 5), dtype)
        x = device(a, form)
        x.data[::2] = 0
        expected = x.get().toarray()
        x.eliminate_zeros()
        assert x.nnz == np.count_nonzero(expected)
        close(x, expected)
        x.data[...] = 0
        x.eliminate_zeros()
        assert x.nnz == 0

    def test_small_elements_are_left_out(self, dtype):
        a = numbers((6, 5), dtype)
        close(cusparse.csr2csr_compress(device(a), 0.5), np.where(abs(a) > 0.5, a, 0))

    @pytest.mark.parametrize("form", ["csr", "csc", "coo"])
    def test_conversions_of_dense_ones(self, dtype, form):
        a = numbers((6, 5), dtype)
        x = cusparse.denseToSparse(cupy.asarray(a), form)
        assert x.nnz == np.count_nonzero(a)
        close(x, a)
        close(cusparse.sparseToDense(x), a)

    def test_conversions(self, dtype):
        a = numbers((6, 5), dtype)
        x = device(a)
        coo = x.tocoo()
        close(coo, a)
        close(cusparse.coo2csr(coo), a)
        csc = x.tocsc()
        assert csc.format == "csc"
        close(csc, a)
        close(csc.tocsr(), a)

    def test_sorting(self, dtype):
        a = scipy_sparse.coo_matrix(numbers((6, 5), dtype))
        order = np.random.default_rng(2).permutation(a.nnz)
        for by in "rc":
            data, row, col = (cupy.asarray(part[order]) for part in (a.data, a.row, a.col))
            x = sparse.coo_matrix((data, (row, col)), a.shape)
            cusparse.coosort(x, by)
            close(x.data, (a.tocsr() if by == "r" else a.tocsc()).data)
        x = device(a)
        x.indices, x.data = x.indices[::-1].copy(), x.data[::-1].copy()
        x.indptr = cupy.asarray(np.r_[0, np.cumsum(np.diff(x.indptr.get())[::-1])], "i")
        cusparse.csrsort(x)
        close(x.data, a.tocsr()[::-1].data)


def test_a_product_runs_when_its_stream_does():
    a = device(np.eye(3))
    x, y = cupy.arange(3.0), cupy.zeros(3)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cusparse.spmv(a, x, y)
        assert hostcuda.pending(stream.ptr) == 1
        assert y.tolist() == [0, 1, 2]
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="cuSPARSE API during stream capture"):
            cusparse.spmv(a, x, y)
        stream.end_capture()


def test_what_is_not_there_is_refused():
    from cupy_backends.cuda.libs import cusparse as library

    with pytest.raises(library.CuSparseError, match="CUSPARSE_STATUS_INVALID_VALUE: invalid value"):
        library.createDnMat(4, 4, 3, 0, 0, library.CUSPARSE_ORDER_COL)
    with pytest.raises(Missing, match=r"cuSPARSE \(spSM_solve\)"):
        library.spSM_solve(1)


def test_a_product_that_is_too_large_is_refused():
    a = device(np.ones((46341, 1), "f"))
    b = device(np.ones((1, 46341), "f"))  # 2**31 products
    with pytest.raises(cusparse._cusparse.CuSparseError, match="INSUFFICIENT_RESOURCES"):
        cusparse.spgemm(a, b)
    close(cusparse.spgemm(b, a), np.full((1, 1), 46341, "f"))

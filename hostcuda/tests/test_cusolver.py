"""cuSOLVER's functions, by SciPy: numbers, order and refusals."""

import cupy
import cupyx
import numpy as np
import pytest
from cupy_backends.cuda.libs import cusolver
from cupyx import lapack
from cupyx.scipy import interpolate, sparse
from cupyx.scipy.sparse import linalg as sparse_linalg
from hostcuda._libraries import Missing

import hostcuda

pytest.importorskip("scipy")


def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    a = random.standard_normal(shape)
    return (a + 1j * random.standard_normal(shape) if dtype in "FD" else a).astype(dtype)


def close(actual, expected):
    digits = 1e-3 if np.dtype(expected.dtype).char in "fF" else 1e-9
    np.testing.assert_allclose(cupy.asnumpy(actual), expected, digits, digits)


def adjoint(a):
    return a.swapaxes(-1, -2).conj()


@pytest.fixture(params=["matrix", "stack"])
def stack(request):
    return (2,) if request.param == "stack" else ()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "fdFD")
class TestLinalg:
    def test_square(self, dtype, order, stack):
        a, b = numbers((*stack, 5, 5), dtype), numbers((*stack, 5, 3), dtype, 1)
        x, y = cupy.asarray(a, order=order), cupy.asarray(b, order=order)
        close(cupy.linalg.solve(x, y), np.linalg.solve(a, b))
        close(cupy.linalg.inv(x), np.linalg.inv(a))
        close(cupy.linalg.det(x), np.linalg.det(a))
        for actual, expected in zip(cupy.linalg.slogdet(x), np.linalg.slogdet(a), strict=True):
            close(actual, expected)
        positive = a @ adjoint(a) + 5 * np.eye(5, dtype=dtype)
        close(cupy.linalg.cholesky(cupy.asarray(positive)), np.linalg.cholesky(positive))

    @pytest.mark.parametrize("triangle", "LU")
    def test_eigh(self, dtype, order, stack, triangle):
        a = numbers((*stack, 6, 6), dtype)
        x = cupy.asarray(a, order=order)
        close(cupy.linalg.eigvalsh(x, triangle), np.linalg.eigvalsh(a, triangle))
        w, v = (cupy.asnumpy(part) for part in cupy.linalg.eigh(x, triangle))
        close(w, np.linalg.eigvalsh(a, triangle))
        half = np.tril(a, -1) if triangle == "L" else np.triu(a, 1)
        diagonal = np.eye(6) * np.diagonal(a, 0, -2, -1).real[..., None]
        close((half + adjoint(half) + diagonal) @ v, w[..., None, :] * v)

    @pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (40, 35)])
    def test_svd_qr_pinv(self, dtype, order, stack, shape):
        a = numbers((*stack, *shape), dtype)
        x = cupy.asarray(a, order=order)
        for is_full in True, False:
            u, s, vh = (cupy.asnumpy(part) for part in cupy.linalg.svd(x, is_full))
            close(s, np.linalg.svd(a, compute_uv=False))
            k = s.shape[-1]
            close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)
            close(adjoint(u) @ u, np.eye(u.shape[-1], dtype=dtype) + 0 * a[..., :1, :1])
        for mode in "reduced", "complete":
            q, r = (cupy.asnumpy(part) for part in cupy.linalg.qr(x, mode))
            close(q @ r, a)
            close(abs(r), abs(np.linalg.qr(a, mode)[1]))
        close(cupy.linalg.pinv(x), np.linalg.pinv(a))
        assert (cupy.linalg.matrix_rank(x) == min(shape)).all()


@pytest.mark.parametrize("dtype", "fdFD")
def test_least_squares(dtype):
    a, b = numbers((6, 3), dtype), numbers((6, 2), dtype, 1)
    x, y = cupy.asarray(a, order="F"), cupy.asarray(b, order="F")
    close(cupy.linalg.lstsq(x, y, rcond=None)[0], np.linalg.lstsq(a, b, rcond=None)[0])
    close(lapack.gels(x, y), np.linalg.lstsq(a, b, rcond=None)[0])
    square, right = x[:3].copy("F"), y[:3].copy("F")
    lapack.gesv(square, right)  # in place
    close(right, np.linalg.solve(a[:3], b[:3]))
    positive = a.conj().T @ a
    close(lapack.posv(cupy.asarray(positive), y[:3]), np.linalg.solve(positive, b[:3]))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(("fill", "triangle"), [(0, "L"), (1, "U")])
@pytest.mark.parametrize(
    ("dtype", "name"), [*zip("fdFD", ["ssy", "dsy", "che", "zhe"], strict=True)]
)
def test_jacobi(dtype, name, fill, triangle, count):
    a = numbers((count, 4, 4), dtype)
    x = cupy.full((count, 4, 5), -1, dtype)  # with a leading dimension of 5
    x[..., :4] = cupy.asarray(a).swapaxes(1, 2)
    w, info = cupy.zeros((count, 4), dtype.lower()), cupy.ones(count, "i")
    handle, params = cusolver.create(), cusolver.createSyevjInfo()
    cusolver.xsyevjSetTolerance(params, 1e-7)
    cusolver.xsyevjSetMaxSweeps(params, 15)
    cusolver.xsyevjSetSortEig(params, 1)
    name, batch = (f"{name}evj", ()) if count == 1 else (f"{name}evjBatched", (count,))
    given = handle, 1, fill, 4, x.data.ptr, 5, w.data.ptr
    size = getattr(cusolver, f"{name}_bufferSize")(*given, params, *batch)
    work = cupy.empty(size, dtype)
    getattr(cusolver, name)(*given, work.data.ptr, size, info.data.ptr, params, *batch)
    assert not info.any()
    expected = np.linalg.eigvalsh(a, triangle)
    close(w, expected)
    vectors = cupy.asnumpy(x)[..., :4].swapaxes(1, 2)
    half = np.tril(a, -1) if triangle == "L" else np.triu(a, 1)
    diagonal = np.eye(4) * np.diagonal(a, 0, -2, -1).real[..., None]
    close((half + adjoint(half) + diagonal) @ vectors, expected[:, None, :] * vectors)
    assert (x[..., 4] == -1).all()
    if not batch:
        assert cusolver.xsyevjGetSweeps(handle, params) == 1
        assert cusolver.xsyevjGetResidual(handle, params) == 0
    cusolver.destroySyevjInfo(params)
    cusolver.destroy(handle)


def test_what_cannot_be_solved_is_told():
    with cupyx.errstate(linalg="raise"):
        with pytest.raises(np.linalg.LinAlgError, match=r"dgetrf in cuSOLVER. devInfo = \[1\]"):
            cupy.linalg.inv(cupy.zeros((3, 3)))
        with pytest.raises(np.linalg.LinAlgError, match=r"dpotrf in cuSOLVER. devInfo = \[1\]"):
            cupy.linalg.cholesky(-cupy.eye(3))


def test_a_factorization_runs_when_its_stream_does():
    a = cupy.asfortranarray(cupy.eye(3))
    pivots, info = cupy.zeros(3, "i"), cupy.ones(1, "i")
    handle = cusolver.create()
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        pointers = 0, pivots.data.ptr, info.data.ptr
        cusolver.dgetrf(handle, 3, 3, a.data.ptr, 3, *pointers)
        assert hostcuda.pending(stream.ptr) == 1
        assert info.tolist() == [0]
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="stream capture"):
            cusolver.dgetrf(handle, 3, 3, a.data.ptr, 3, *pointers)
        stream.end_capture()
    with pytest.raises(cusolver.CUSOLVERError, match="CUSOLVER_STATUS_INVALID_VALUE"):
        cusolver.dgetrf(handle, 3, 3, a.data.ptr, 2, *pointers)
    with pytest.raises(Missing, match=r"cuSOLVER \(dsytrf\)"):
        cusolver.dsytrf(handle)
    cusolver.destroy(handle)


@pytest.mark.parametrize("dtype", "fdFD")
def test_a_sparse_system(dtype):
    a, b = numbers((6, 6), dtype) + 6 * np.eye(6, dtype=dtype), numbers(6, dtype, 1)
    a[abs(a) < 0.5] = 0
    x = sparse_linalg.spsolve(sparse.csr_matrix(cupy.asarray(a)), cupy.asarray(b))
    close(x, np.linalg.solve(a, b))


def test_a_sparse_system_for_a_column_of_a_matrix():
    a, b = cupy.array([[4.0, 1], [1, 3]]), cupy.arange(6.0).reshape(2, 3)
    x = sparse_linalg.spsolve(sparse.csr_matrix(a), b[:, 1])
    close(x, np.linalg.solve(a.get(), b[:, 1].get()))


def test_a_sparse_system_that_is_singular():
    a = sparse.csr_matrix(cupy.asarray(np.diag([1.0, 0, 2])))
    with pytest.warns(UserWarning, match="singularity: 1"):
        sparse_linalg.spsolve(a, cupy.ones(3))


@pytest.mark.skipif(not hasattr(interpolate, "CubicSpline"), reason="new in CuPy 14")
def test_splines_solve_sparse_systems():
    t = cupy.arange(6.0)
    close(interpolate.CubicSpline(t, t**2)(cupy.array([0.5, 2.5])), np.array([0.25, 6.25]))

"""cuBLAS's functions, by NumPy: numbers, layouts, scalars of the device, order, and refusals."""

import re
import subprocess
import sys

import cupy
import numpy as np
import pytest
from cupy import cublas as cublas_of_cupy
from cupy_backends.cuda.libs import cublas
from hostcuda._libraries import Missing

import hostcuda

TYPES = {"s": "f", "d": "d", "c": "F", "z": "D"}
N, T, C = cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_C


@pytest.fixture
def handle():
    handle = cublas.create()
    yield handle
    cublas.destroy(handle)


def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    a = random.standard_normal(shape)
    return (a + 1j * random.standard_normal(shape) if dtype in "FD" else a).astype(dtype)


def close(actual, expected):
    digits = {"e": 1e-2, "f": 1e-4, "F": 1e-4}.get(expected.dtype.char, 1e-10)
    np.testing.assert_allclose(cupy.asnumpy(actual), expected, digits, digits)


@pytest.mark.parametrize("dtype", "efdFD")
@pytest.mark.parametrize("order", ["C", "F", "sliced"])
def test_products_of_cupy(dtype, order):
    a, b = numbers((7, 5), dtype), numbers((5, 4), dtype, 1)
    x, y = (cupy.asarray(v, order="F" if order == "F" else "C") for v in (a, b))
    if order == "sliced":
        x, a = x[1:, 1:], a[1:, 1:]
        y, b = y[:-1, ::2], b[:-1, ::2]
    close(x @ y, a @ b)
    close(x.T.conj() @ x, a.T.conj() @ a)
    close(x @ y[:, 0], a @ b[:, 0])
    close(cupy.outer(x, y), np.outer(a, b))
    close(cupy.vdot(x, x), np.vdot(a, a))
    close(cupy.einsum("ij,jk->ki", x, y), np.einsum("ij,jk->ki", a, b))
    close(cupy.linalg.norm(x), np.linalg.norm(a))


@pytest.mark.parametrize("dtype", "efD")
def test_products_of_batches(dtype):
    a, b = numbers((3, 2, 4, 5), dtype), numbers((2, 5, 3), dtype)
    close(cupy.asarray(a) @ cupy.asarray(b), a @ b)
    close(cupy.asarray(a[..., ::2]) @ cupy.asarray(b[:, ::2]), a[..., ::2] @ b[:, ::2])


def op(a, how):
    return a.T if how == T else a.conj().T if how == C else a


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("letter", TYPES)
def test_gemm_with_leading_dimensions(handle, letter, beta, where):
    dtype = TYPES[letter]
    scalars = np.array([3, beta], dtype)
    if where == "device":
        cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_DEVICE)
        scalars = cupy.asarray(scalars)
    alpha = scalars.ctypes.data if where == "host" else scalars.data.ptr
    for opa in N, T, C:
        for opb in N, T, C:
            m, n, k = 4, 3, 5
            a = numbers((6, k) if opa == N else (6, m), dtype)
            b = numbers((7, n) if opb == N else (7, k), dtype)
            c = numbers((8, n), dtype)
            if not beta:
                c[:] = np.nan  # is not read
            x, y, z = (cupy.asarray(v, order="F") for v in (a, b, c))
            gemm = getattr(cublas, letter + "gemm")
            pointers = x.data.ptr, 6, y.data.ptr, 7, alpha + scalars.itemsize, z.data.ptr, 8
            gemm(handle, opa, opb, m, n, k, alpha, *pointers)
            product = 3 * op(a[: m if opa == N else k], opa) @ op(b[: k if opb == N else n], opb)
            c[:m] = product + (beta * c[:m] if beta else 0)
            close(z, c)


@pytest.mark.parametrize("letter", TYPES)
def test_vectors_with_steps(handle, letter):
    dtype = TYPES[letter]
    x, y = numbers(9, dtype), numbers(6, dtype, 1)
    a, b, alpha = cupy.asarray(x), cupy.asarray(y), np.array(2, dtype)
    getattr(cublas, letter + "axpy")(handle, 3, alpha.ctypes.data, a.data.ptr, 4, b.data.ptr, -2)
    y[4::-2] += 2 * x[::4]
    close(b, y)
    at = np.zeros((), "i")
    getattr(cublas, f"i{letter}amax")(handle, 9, a.data.ptr, 1, at.ctypes.data)
    assert at == np.argmax(abs(x.real) + abs(x.imag)) + 1


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n", [1, 6])
def test_batched_gesv(dtype, n):
    a, b = numbers((4, n, n), dtype), numbers((4, n, 2), dtype)
    close(cublas_of_cupy.batched_gesv(cupy.asarray(a), cupy.asarray(b)), np.linalg.solve(a, b))


@pytest.mark.parametrize("letter", TYPES)
def test_trsm_syrk_geam_dgmm(handle, letter):
    pytest.importorskip("scipy")
    a, b = numbers((4, 4), TYPES[letter]), numbers((3, 4), TYPES[letter])
    x, y, alpha = cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), np.array(2, a.dtype)
    trsm = getattr(cublas, letter + "trsm")
    trsm(handle, 1, 1, C, 0, 3, 4, alpha.ctypes.data, x.data.ptr, 4, y.data.ptr, 3)
    close(y @ cupy.asarray(np.triu(a).conj().T), 2 * b)
    close(cublas_of_cupy.syrk("N", x, lower=True), np.tril(a @ a.T))
    close(cublas_of_cupy.geam("T", "N", 2, x, 3, x), 2 * a.T + 3 * a)
    close(cublas_of_cupy.dgmm("R", x, cupy.asarray(b[0])), a * b[0])


def test_a_product_runs_when_its_stream_does():
    a = cupy.ones((3, 3))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        b = a @ a
        assert hostcuda.pending(stream.ptr) == 1
        assert b.tolist() == [[3] * 3] * 3  # copies on the same stream
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="stream capture"):
            a @ a  # as CuPy says on a GPU
        stream.end_capture()


RACE = """
import cupy
a = cupy.ones((3, 3))
s, t = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
out = cupy.zeros((3, 3))
cupy.cuda.Device().synchronize()
with s:
    cupy.matmul(a, a, out=out)
with t:
    print(out.get()[0, 0])
s.synchronize()
"""


def test_a_product_and_a_copy_race(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(RACE)
    command = [sys.executable, "-m", "hostcuda", "--orders", "8", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "cublasGemmEx of program.py:8" in done.stderr


def test_wrong_arguments_have_a_status(handle):
    one, p = np.ones((), "f").ctypes.data, cupy.ones(16, "f").data.ptr
    for lda in 3, 0:
        with pytest.raises(cublas.CUBLASError, match="CUBLAS_STATUS_INVALID_VALUE"):
            cublas.sgemm(handle, N, N, 4, 4, 4, one, p, lda, p, 4, one, p, 4)
    with pytest.raises(cublas.CUBLASError, match="CUBLAS_STATUS_INVALID_VALUE"):
        cublas.sgemv(handle, N, 4, 4, one, p, 4, p, 0, one, p, 1)
    with pytest.raises(cublas.CUBLASError, match="CUBLAS_STATUS_NOT_INITIALIZED"):
        cublas.sscal(handle + 1, 4, one, p, 1)
    with pytest.raises(Missing, match=r"cuBLAS \(sgbmv\)"):
        cublas.sgbmv(handle)
    bfloat16 = (0, 0, 1, 1, 1, one, p, 14, 1, p, 14, 1, one, p, 14, 1, 68, -1)
    with pytest.raises(Missing, match=r"cuBLAS \(cudaDataType 14\)"):
        cublas.gemmEx(handle, *bfloat16)


WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "scipy" else find(name, *rest)
import cupy
a = 2 * cupy.eye(3)
print((a @ a)[0, 0], cupy.linalg.norm(a[0]), cupy.linalg.svd(a)[1][0])
cupy.linalg.inv(a)
"""


def test_products_run_without_scipy(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(WITHOUT)
    done = subprocess.run([sys.executable, "-m", "hostcuda", path], capture_output=True, text=True)
    assert done.stdout == "4.0 2.0 2.0\n"
    assert re.search(r"hostcuda: cuSOLVER \(\w+\) needs SciPy here: install it", done.stderr)


@pytest.mark.damages
def test_a_matrix_behind_its_block_is_an_illegal_address(handle):
    memory, one = cupy.cuda.Memory(512), np.ones((), "f").ctypes.data
    cublas.sscal(handle, 129, one, memory.ptr, 1)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="IllegalAddress"):
        cupy.cuda.Device().synchronize()
    assert hostcuda.failures(untold=False) == [
        "cublasSscal: reads 516 bytes over the end of a block of 512 bytes"
    ]
    hostcuda.revive()

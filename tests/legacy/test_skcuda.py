"""``bridge.legacy.skcuda``: scikit-cuda's functions over CuPy.

Without a GPU, cuBLAS, cuFFT and cuSOLVER are `hostcuda`'s. scikit-cuda's own tests ran on a GPU.
"""

import ast
import textwrap
from importlib import import_module

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray

import bridge
import bridge.legacy.skcuda  # from now on, `import skcuda` finds it
from bridge.legacy import check, names

MATRIX = np.random.default_rng(0).random((3, 4)) + 1


@pytest.fixture
def misc():
    from skcuda import misc

    return misc


@pytest.fixture
def libraries(package):
    """CuPy's cuBLAS, cuFFT and cuSOLVER."""
    for name in ("cublas", "cusolver", "cufft"):
        package(f"cupy.cuda.{name}" if name == "cufft" else f"cupy_backends.cuda.libs.{name}")


def test_both_names_are_the_same_modules(misc, libraries):
    import scikits.cuda.fft
    import scikits.cuda.misc
    import skcuda.autoinit
    import skcuda.fft

    assert scikits.cuda.misc is misc
    assert scikits.cuda.fft is skcuda.fft


def test_what_is_not_served_is_named(misc):
    with pytest.raises(ImportError, match="not special; use cupyx.scipy.special"):
        import_module("skcuda.special")
    served = "serves cublas, cufft, cusolver, fft, linalg, misc, not p"
    with pytest.raises(ImportError, match=served):
        from scikits.cuda import pcula  # noqa: F401
    with pytest.raises(AttributeError, match=r"skcuda.misc has no 'nothing': it has scikit-cuda's"):
        misc.nothing  # noqa: B018


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "max", "min", "argmax", "argmin"])
def test_reductions(misc, name, order):
    a = gpuarray.to_gpu(np.asarray(MATRIX, order=order))
    for axis in 0, 1:
        found = getattr(misc, name)(a, axis=axis)
        assert isinstance(found, gpuarray.GPUArray)
        np.testing.assert_allclose(found.get(), getattr(MATRIX, name)(axis=axis))
    if name in ("sum", "mean"):
        out = gpuarray.zeros(4, np.float64)
        assert getattr(misc, name)(a, 0, out) is out
        np.testing.assert_allclose(out.get(), getattr(MATRIX, name)(axis=0))


def test_arithmetic(misc):
    a, b = gpuarray.to_gpu(MATRIX), gpuarray.to_gpu(MATRIX[::-1].copy())
    np.testing.assert_allclose(misc.divide(a, b).get(), MATRIX / MATRIX[::-1])
    row, column = gpuarray.to_gpu(MATRIX[0].copy()), gpuarray.to_gpu(MATRIX[:, 1].copy())
    np.testing.assert_allclose(misc.add_matvec(a, row).get(), MATRIX + MATRIX[0])
    np.testing.assert_allclose(misc.mult_matvec(a, column, axis=0).get(), MATRIX * MATRIX[:, 1:2])
    whole = gpuarray.to_gpu(np.array([[7, -7], [8, 9]], np.int32))
    np.testing.assert_allclose(misc.binaryop_matvec("-", a, row).get(), MATRIX - MATRIX[0])
    np.testing.assert_allclose(misc.binaryop_matvec("%", a, row).get(), MATRIX % MATRIX[0])
    quotients = misc.div_matvec(whole, gpuarray.to_gpu(np.array([2, 4], np.int32)))
    assert quotients.get().tolist() == [[3, -1], [4, 2]]
    with pytest.raises(ValueError, match="shape mismatch"):
        misc.add_matvec(a, column)
    with pytest.raises(ValueError, match="axis is 5; a matrix has 0 and 1"):
        misc.add_matvec(a, row, axis=5)
    with pytest.raises(ValueError, match="one array is in C order, and the other in Fortran"):
        misc.add(a, gpuarray.to_gpu(np.asfortranarray(MATRIX)))
    with pytest.raises(TypeError, match=r"the shapes \(3, 4\) and \(3,\) do not fit"):
        misc.add(a, column)
    np.testing.assert_allclose(misc.add(a, row).get(), MATRIX + MATRIX[0])
    one = gpuarray.to_gpu(np.array([[[2.0]]]))
    np.testing.assert_allclose(misc.multiply(one, a).get(), 2 * MATRIX)
    assert misc.divide(whole, gpuarray.zeros_like(whole) + 3).get().tolist() == [[2, -2], [2, 3]]


def test_dtypes_and_shapes_are_scikit_cudas(misc):
    numbers = gpuarray.to_gpu(np.array([[200, 100], [1, 2]], np.uint8))
    for found, dtype, values in [
        (misc.sum(numbers), np.uint8, 303 - 256),
        (misc.cumsum(numbers), np.uint8, [200, 44, 45, 47]),
        (misc.max(numbers), np.uint8, [[200]]),
        (misc.max(numbers, 1, True), np.uint8, [[200], [2]]),
        (misc.maxabs(numbers), np.float32, 200),
    ]:
        assert found.dtype == dtype
        assert found.get().tolist() == values
    with pytest.raises(ValueError, match="complex numbers have no largest"):
        misc.max(gpuarray.zeros(3, np.complex64))


def test_a_result_can_be_freed(misc):
    before = cupy.get_default_memory_pool().used_bytes()
    found = misc.sum(gpuarray.zeros((4, 1 << 10), np.float32), axis=0)
    assert cupy.get_default_memory_pool().used_bytes() == before + (4 << 10)
    part = bridge.as_cupy(found)[:3]
    assert part.get().tolist() == [0, 0, 0]
    found.gpudata.free()
    del part
    assert cupy.get_default_memory_pool().used_bytes() == before


def test_items_and_the_rest(misc):
    a = gpuarray.to_gpu(np.array([7, 1, 2, 8, 4], np.float32))
    assert misc.cumsum(a).get().tolist() == [7, 8, 10, 18, 22]
    assert misc.maxabs(-a).get() == 8
    assert misc.ones((2, 3), np.complex64, "F").get().tolist() == [[1, 1, 1]] * 2
    device = misc.get_current_device()
    assert misc.get_compute_capability(device) >= 5
    assert misc.select_block_grid_sizes(device, (1000, 5), 128) == ((128, 1, 1), (40, 1, 1))
    assert misc.select_block_grid_sizes(device, (0,), 128) == ((128, 1, 1), (1, 1, 1))
    assert misc.select_block_grid_sizes(device, 2**42, 1024)[1] == (2**31 - 1, 3, 1)


def test_linear_algebra_without_libraries():
    from skcuda import linalg

    a, d = gpuarray.to_gpu(MATRIX), gpuarray.to_gpu(MATRIX[:, 0].copy())
    np.testing.assert_allclose(linalg.dot_diag(d, a).get(), np.diag(MATRIX[:, 0]) @ MATRIX)
    for shape in (3, 1), (1, 3):
        there = gpuarray.to_gpu(MATRIX[:, 0].reshape(shape))
        np.testing.assert_allclose(linalg.dot_diag(there, a).get(), MATRIX[:, :1] * MATRIX)
    for wrong in gpuarray.to_gpu(np.ones(1)), gpuarray.to_gpu(np.ones(3, np.float32)):
        with pytest.raises(ValueError, match="a diagonal of shape .* does not fit a matrix"):
            linalg.dot_diag(wrong, a)
    with pytest.raises(ValueError, match=r"a matrix of shape \(3, 4\) is not square"):
        linalg.inv(a)
    with pytest.raises(ValueError, match=r"skcuda.linalg: the shapes \(3, 4\) and \(3,\) differ"):
        linalg.multiply(a, d)
    assert linalg.transpose(a).get().tolist() == MATRIX.T.tolist()
    assert linalg.tril(a, overwrite=True) is a
    np.testing.assert_allclose(a.get(), np.tril(MATRIX))
    assert linalg.diag(a).get().tolist() == np.diag(MATRIX).tolist()
    assert linalg.eye(3).get().tolist() == np.eye(3).tolist()
    with pytest.raises(NotImplementedError, match="lib is 'cula'; CULA is gone: 'cusolver'"):
        linalg.inv(a, lib="cula")
    with pytest.raises(ValueError, match=r"PCA: the matrix is float64 of shape \(12,\)"):
        linalg.PCA().fit_transform(a.ravel())


def test_work_queued_before_comes_first(misc, latch, put):
    stream, other = drv.Stream(1), drv.Stream(1)  # the second waits for the function, too
    a = gpuarray.zeros(8, np.int32)
    misc.sum(a)  # what is compiled and loaded at the first time
    with cupy.cuda.Stream(non_blocking=True), latch.hold(stream):
        put(a.gpudata, 8, 5, stream)
        found = misc.sum(a)
    assert found.get() == 40
    del other


def test_work_queued_later_comes_later(misc, latch, put):
    from skcuda import linalg

    stream, a = drv.Stream(1), gpuarray.zeros(8, np.int32)
    linalg.scale(2, a)
    with cupy.cuda.Stream(non_blocking=True) as here, latch.hold(here):
        linalg.scale(2, a)  # gives nothing back
        put(a.gpudata, 8, 7, stream)
    assert set(a.get()) == {7}


# ---- libraries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_matrices(libraries, dtype):
    from skcuda import cublas, linalg

    random = np.random.default_rng(1)
    a, b = (random.random((4, 4)).astype(dtype) for _ in range(2))
    square = (a @ a.conj().T + 4 * np.eye(4)).astype(dtype)
    on_gpu, close = gpuarray.to_gpu, dict(rtol=1e-3 if dtype in "fF" else 1e-9)
    np.testing.assert_allclose(linalg.dot(on_gpu(a), on_gpu(b), "t").get(), a.T @ b, **close)
    for order in "CF":
        found = linalg.dot(on_gpu(np.asarray(a, order=order)), on_gpu(np.asarray(b, order=order)))
        assert found.flags.f_contiguous == (order == "F")
        np.testing.assert_allclose(found.get(), a @ b, **close)
    np.testing.assert_allclose(linalg.inv(on_gpu(square)).get(), np.linalg.inv(square), **close)
    u, s, vh = (x.get() for x in linalg.svd(on_gpu(a)))
    np.testing.assert_allclose((u * s) @ vh, a, **close)
    np.testing.assert_allclose(linalg.det(on_gpu(square)), np.linalg.det(square), **close)
    w = linalg.eigvals(on_gpu(square)).get()
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(square), **close)
    x = on_gpu(b[0].copy())
    linalg.cho_solve(on_gpu(np.asfortranarray(square)), x)
    np.testing.assert_allclose(x.get(), np.linalg.solve(square, b[0]), **close)
    with pytest.raises(linalg.LinAlgError):
        linalg.inv(on_gpu(np.zeros((3, 3), dtype)))
    with pytest.raises(NotImplementedError, match="CULA is gone"):
        linalg.cho_factor(on_gpu(square), "L", "cula")
    if dtype in "fd":
        u, s, _ = np.linalg.svd(a - a.mean(1, keepdims=True))
        expected = abs(u[:, :2] * s[:2])
        for order in "CF":
            scores = linalg.PCA(2).fit_transform(on_gpu(np.asarray(a, order=order)))
            np.testing.assert_allclose(abs(scores.get()), expected, **close)
            assert getattr(scores.flags, f"{order.lower()}_contiguous")
        scores = linalg.PCA(2).fit_transform(on_gpu(a.T.copy()), transposed_input=True)
        np.testing.assert_allclose(abs(scores.get()), expected.T, **close)
    handle, c = cublas.cublasCreate(), gpuarray.zeros((4, 4), dtype)
    letter = {"f": "S", "d": "D", "F": "C", "D": "Z"}[dtype]
    gemm = getattr(cublas, f"cublas{letter}gemm")
    gemm(handle, "n", "n", 4, 4, 4, 2, on_gpu(b).gpudata, 4, on_gpu(a).gpudata, 4, 0, c.gpudata, 4)
    np.testing.assert_allclose(c.get(), 2 * a @ b, **close)
    norm = getattr(cublas, f"cublas{ {'C': 'Sc', 'Z': 'Dz'}.get(letter, letter) }nrm2")
    np.testing.assert_allclose(norm(handle, 16, on_gpu(a).gpudata, 1), np.linalg.norm(a), **close)
    with pytest.raises(TypeError, match=r"nrm2: 3 arguments. Parameters: \(handle, n, x, incx\)"):
        norm(handle, 16, 0)
    largest = getattr(cublas, f"cublasI{letter.lower()}amax")
    assert largest(handle, 4, on_gpu(np.array([1, -3, 2, 0], dtype)).gpudata, 1) == 1
    cublas.cublasDestroy(handle)


def test_eigenvalues_by_jacobi(libraries):
    from skcuda import cusolver

    a = np.random.default_rng(0).random((2, 4, 4))
    x, w, info = gpuarray.to_gpu(a), gpuarray.empty((2, 4), "d"), gpuarray.zeros(2, "i")
    handle, params = cusolver.cusolverDnCreate(), cusolver.cusolverDnCreateSyevjInfo()
    cusolver.cusolverDnXsyevjSetTolerance(params, 1e-12)
    cusolver.cusolverDnXsyevjSetMaxSweeps(params, 20)
    given = handle, "CUSOLVER_EIG_MODE_NOVECTOR", "u", 4, x.gpudata, 4, w.gpudata
    size = cusolver.cusolverDnDsyevjBatched_bufferSize(*given, params, 2)
    work = gpuarray.empty(size, "d")
    cusolver.cusolverDnDsyevjBatched(*given, work.gpudata, size, info.gpudata, params, 2)
    np.testing.assert_allclose(w.get(), np.linalg.eigvalsh(a, "L"))  # read by columns
    assert not info.get().any()
    cusolver.cusolverDnDestroySyevjInfo(params)
    cusolver.cusolverDnDestroy(handle)


@pytest.mark.parametrize("letter", "SDCZ")
def test_vectors_are_copied_and_swapped(libraries, letter):
    from skcuda import cublas

    dtype = "fdFD"["SDCZ".index(letter)]
    x, y = (gpuarray.to_gpu(np.arange(start, start + 6).astype(dtype)) for start in (0, 6))
    getattr(cublas, f"cublas{letter}copy")(0, 3, x.gpudata, 2, y.gpudata, 1)
    assert y.get().tolist() == [0, 2, 4, 9, 10, 11]
    getattr(cublas, f"cublas{letter}swap")(0, 2, x.gpudata, -1, y[3:].gpudata, 2)
    assert (x.get().tolist(), y.get().tolist()) == ([11, 9, 2, 3, 4, 5], [0, 2, 4, 1, 10, 0])


def test_streams_and_errors_of_cublas(libraries):
    from skcuda import cublas

    handle, stream = cublas.cublasCreate(), drv.Stream()
    assert cublas.cublasGetStream(handle) is None
    cublas.cublasSetStream(handle, stream.handle)
    assert cublas.cublasGetStream(handle) == stream.handle
    for default in 0, None:  # programs put back what they got
        cublas.cublasSetStream(handle, default)
        assert cublas.cublasGetStream(handle) is None
    with pytest.raises(cublas.cublasInvalidValue) as caught:
        cublas.cublasSgemm(handle, "n", "n", -1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 1)
    assert isinstance(caught.value, cublas.cublasError)
    assert caught.type is not cublas.cublasError


@pytest.mark.parametrize("dtype", "fdFD")
def test_batched_solutions(dtype, libraries):
    from skcuda import cublas

    a, b = np.array([[4, 1], [2, 3]], dtype), np.array([9, 8], dtype)
    matrix, right = gpuarray.to_gpu(np.asfortranarray(a)), gpuarray.to_gpu(b)
    at, of = (gpuarray.to_gpu(np.array([int(x.gpudata)], np.uintp)) for x in (matrix, right))
    pivots, info, found = gpuarray.empty(2, "i"), gpuarray.empty(1, "i"), cublas.ctypes.c_int(7)
    letter, handle = "SDCZ"["fdFD".index(dtype)], cublas.cublasCreate()
    factor, solve = (getattr(cublas, f"cublas{letter}getr{x}Batched") for x in "fs")
    factor(handle, 2, at.gpudata, 2, pivots.gpudata, info.gpudata, 1)
    addresses = at.gpudata, 2, pivots.gpudata, of.gpudata, 2, cublas.ctypes.byref(found)
    solve(handle, "n", 2, 1, *addresses, 1)
    assert found.value == 0
    np.testing.assert_allclose(right.get(), np.linalg.solve(a, b), rtol=1e-5)


def test_plans_of_cufft(libraries):
    from skcuda import cufft, fft

    x = np.random.default_rng(0).random((2, 4, 4)).astype("F")
    a, f, size = gpuarray.to_gpu(x), gpuarray.empty((2, 4, 4), "F"), np.array([4, 4], np.int32)
    ones = cufft.cufftPlan1d(4, cufft.CUFFT_C2C, 8)
    cufft.cufftExecC2C(ones, a.gpudata, f.gpudata, cufft.CUFFT_INVERSE)
    np.testing.assert_allclose(f.get(), np.fft.ifft(x) * 4, rtol=1e-4, atol=1e-5)
    stream, address = drv.Stream(), size.ctypes.data
    many = cufft.cufftPlanMany(2, address, address, 1, 16, address, 1, 16, cufft.CUFFT_C2C, 2)
    for two in many, fft.Plan((4, 4), "F", "F", batch=2).handle:
        f.fill(0)
        cufft.cufftSetStream(two, stream.handle)
        cufft.cufftExecC2C(two, int(a.gpudata), int(f.gpudata), cufft.CUFFT_FORWARD)
        np.testing.assert_allclose(f.get(), np.fft.fft2(x), rtol=1e-4, atol=1e-5)
        cufft.cufftDestroy(two)
    reals = gpuarray.to_gpu(x.real.copy())
    cufft.cufftExecR2C(cufft.cufftPlan2d(4, 4, cufft.CUFFT_R2C), reals.gpudata, f.gpudata)
    np.testing.assert_allclose(f.get().ravel()[:12], np.fft.rfft2(x.real)[0].ravel(), rtol=1e-4)
    with pytest.raises(cufft.cufftError):
        cufft.cufftPlan3d(0, 1, 1, cufft.CUFFT_C2C)


def test_transforms(libraries):
    from skcuda import fft

    x = np.random.default_rng(2).random((5, 8)).astype(np.float32)
    a, f, back = gpuarray.to_gpu(x), gpuarray.empty((5, 5), np.complex64), gpuarray.empty_like
    plan = fft.Plan(8, np.float32, np.complex64, batch=5, stream=drv.Stream())
    fft.fft(a, f, plan)
    np.testing.assert_allclose(f.get(), np.fft.rfft(x), rtol=1e-4, atol=1e-5)
    out = back(a)
    fft.ifft(f, out, fft.Plan(8, np.complex64, np.float32, batch=5), scale=True)
    np.testing.assert_allclose(out.get(), x, rtol=1e-5)
    with pytest.raises(ValueError, match="this plan is for the other direction"):
        fft.ifft(a, f, plan)
    with pytest.raises(ValueError, match="y has 24 items of complex64; the plan takes 25 of comp"):
        fft.fft(a, gpuarray.empty(24, np.complex64), plan)
    larger = gpuarray.zeros(40, np.complex64)
    fft.fft(a, larger, plan)  # programs give real input's FFT as many items as the input has
    np.testing.assert_allclose(larger.get()[:25], np.fft.rfft(x).ravel(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="only complex data can be transformed in place"):
        fft.fft(a, a, plan)
    with pytest.raises(ValueError, match="skcuda.fft.Plan: no FFT takes"):
        fft.Plan(8, np.float32, np.complex128)
    with pytest.raises(ValueError, match=r"skcuda.fft.Plan: batch is 0, shape is \(8,\)"):
        fft.Plan(8, np.complex64, np.complex64, batch=0)


# ---- what `import skcuda` finds -----------------------------------------------------------------

RUN = "from bridge.legacy import run; run.replace()\n"


def test_a_program_that_runs_as_it_is(run):
    script = """
        import pycuda.autoinit
        import skcuda.misc as cumisc
        cumisc.init()
        print(cumisc.sum(gpuarray.to_gpu(np.arange(6.0).reshape(2, 3)), axis=1).get())
        cumisc.shutdown()
    """
    assert run(script, start=RUN) == "[ 3. 12.]\n"


@pytest.fixture
def installed(tmp_path, run):
    """Run a script where files are installed, under `bridge run`."""

    def installed(files, script):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(textwrap.dedent(text))
        there = f"import sys, warnings; folder = {str(tmp_path)!r}\n"
        return run(f"{there}{textwrap.dedent(script)}", start=RUN)

    return installed


OF_OTHERS = {
    "of a namespace": {"scikits/odes/__init__.py": "found = 3"},
    "of a package": {"scikits/__init__.py": "own = 4", "scikits/odes.py": "found = 3"},
}


@pytest.mark.parametrize("before", [True, False], ids=["installed before", "installed later"])
@pytest.mark.parametrize("files", OF_OTHERS.values(), ids=OF_OTHERS)
def test_other_packages_of_scikits_are_found(files, before, installed):
    script = """
        if not before:
            import scikits.cuda.misc
        sys.path.append(folder)
        import scikits.odes, scikits.cuda.misc, skcuda
        print(scikits.odes.found, scikits.cuda.misc.__name__, getattr(scikits, "own", None))
        try:
            import scikits.nothing
        except ModuleNotFoundError as error:
            print(error)
    """
    found = installed(files, f"before = {before}\n{textwrap.dedent(script)}")
    own = 4 if before and "scikits/__init__.py" in files else None
    assert found == f"3 bridge.legacy.skcuda.misc {own}\nNo module named 'scikits.nothing'\n"


WORKS = {"skcuda/__init__.py": "print('once')", "skcuda/misc.py": "where = 'installed'"}
WORKS["skcuda/special.py"] = "from .misc import where"
OF_BEFORE = {f"scikits/{name.replace('skcuda', 'cuda')}": text for name, text in WORKS.items()}


@pytest.mark.parametrize(
    ("files", "package"), [(WORKS, "skcuda"), (OF_BEFORE, "scikits.cuda")], ids=["0.5", "0.4"]
)
def test_an_installed_one_that_imports_is_used(files, package, installed):
    script = f"""
        sys.path.append(folder)
        import {package}, {package}.special as special
        import importlib
        print({package}.misc.where, special.where, {package}.__file__.startswith(folder))
        importlib.reload({package})
    """
    assert installed(files, script) == "once\ninstalled installed True\nonce\n"


FAILS = {"skcuda/__init__.py": "", "skcuda/misc.py": "from . import version"}
FAILS["skcuda/version.py"] = "import pkg_resources_of_before"
FAILS["scikits/cuda/__init__.py"] = "import skcuda\nfrom .version import nothing"


@pytest.mark.parametrize("before", ["", "import skcuda"], ids=["", "imported before in part"])
@pytest.mark.parametrize("first", ["skcuda.misc", "scikits.cuda.misc", "skcuda"])
def test_an_installed_one_that_fails_is_replaced_and_the_reason_said_once(first, before, installed):
    script = f"""
        sys.path.append(folder)
        finders = sys.meta_path[:]
        if {bool(before)}:
            sys.meta_path[:] = [one for one in finders if "skcuda" not in type(one).__module__]
            {before}
        sys.meta_path[:] = finders
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            import {first}
            import skcuda.misc, scikits.cuda.misc
            from skcuda import misc
        print(skcuda.misc is misc is scikits.cuda.misc, skcuda.__name__, misc.__name__)
        print(*[(str(one.message), one.filename) for one in said])
    """
    used, said = installed(FAILS, script).splitlines()
    assert used == "True bridge.legacy.skcuda bridge.legacy.skcuda.misc"
    assert ast.literal_eval(said) == (
        "the installed scikit-cuda cannot be imported (ModuleNotFoundError: No module named "
        "'pkg_resources_of_before'); bridge.legacy.skcuda takes its place",
        "<string>",
    )


def test_an_installed_one_is_not_tried_before_it_is_asked_for(installed):
    script = """
        sys.path.append(folder)
        import scikits.odes
        print({"skcuda", "bridge.legacy.skcuda.misc"} & {*sys.modules})
    """
    assert installed(WORKS | OF_OTHERS["of a namespace"], script) == "set()\n"


def test_contexts(python):
    done = python("""
        import bridge.legacy.skcuda
        import numpy as np
        from skcuda import misc
        from pycuda import gpuarray
        context = misc.init_context(misc.init_device(0))
        print(misc.sum(gpuarray.to_gpu(np.arange(3.0))), context.get_current() is context)
        misc.done_context(context)
        print(context.get_current())
        misc.init_context(misc.init_device())
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("3.0 True\nNone\n", "", 0)


def test_check_and_migrate_install_nothing(package, python):
    package("libcst")
    done = python("""
        import sys
        from bridge.legacy.check import _is_served
        from bridge.legacy.migrate.command import migrate
        print(_is_served("misc", "sum"), _is_served("misc", "nothing"))
        print(b"serves cublas" in migrate(b"import skcuda.special").text)
        try:
            import skcuda
        except ModuleNotFoundError as error:
            print(error)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True False\nTrue\nNo module named 'skcuda'\n"


@pytest.mark.parametrize("name", names.SERVED)
def test_check_knows_the_names_of_each_module(name, libraries):
    module = import_module(f"bridge.legacy.skcuda.{name}")
    known = [one for one in vars(module) if not one.startswith("__")]
    known += ["_global_cublas_handle"] * (name == "misc")
    letters = *"SDCZ", "Is", "Iz", "Sc", "Dz", "Cs"
    asked = {f"cublas{a}{base}" for a in letters[:4] for base in (*names.CUBLAS, "symm", "gemmEx")}
    asked |= {f"cublas{a}{base}" for a in letters[4:] for base in ("amax", "asum", "nrm2", "scal")}
    asked |= {f"cusolverDn{a}{base}" for a in "SDCZQ" for base in ("gesvd", "getrf", "nothing")}
    asked |= {"cusolverDnXsyevjSetTolerance", "cusolverDnCreateSyevjInfo", "cusolverDnXgetrf"}
    found = {one for one in (*known, *asked, "nothing") if check._is_served(name, one)}
    assert found.issuperset(known)
    assert found - {*known} == {one for one in asked - {*known} if hasattr(module, one)}

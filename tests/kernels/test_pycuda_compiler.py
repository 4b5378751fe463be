"""PyCUDA's own kernels, compiled by NVRTC: no nvcc is on PATH here."""

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import compiler, gpuarray
from pycuda.compiler import DynamicSourceModule, SourceModule
from pycuda.elementwise import ElementwiseKernel
from pycuda.reduction import ReductionKernel
from pycuda.scan import InclusiveScanKernel
from pytools.prefork import ExecError

import bridge


@pytest.fixture(autouse=True)
def no_nvcc(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # where the host driver's g++ is
    monkeypatch.setenv("PYCUDA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    bridge.use_nvrtc()
    yield
    bridge.use_nvrtc(False)


@pytest.fixture
def a():
    return gpuarray.to_gpu(np.arange(6, dtype=np.float32))


def squared(a, options=("-DUNUSED=1",)):
    ElementwiseKernel("float *x", "x[i] *= x[i]", options=list(options))(a)
    return a


USES = {
    "arithmetic": (lambda a: (2 * a + a / 4).get(), 2.25 * np.arange(6)),
    "ReductionKernel": (
        lambda a: ReductionKernel(np.float32, "0", "a+b", "x[i]*x[i]", "float *x")(a).get(),
        55,
    ),
    "ElementwiseKernel": (lambda a: squared(a).get(), np.arange(6) ** 2),
    "a scan": (lambda a: InclusiveScanKernel(np.float32, "a+b")(a).get(), np.arange(6).cumsum()),
}


@pytest.mark.parametrize(("use", "expected"), USES.values(), ids=USES)
def test_what_pycuda_generates(use, expected, a):
    assert np.allclose(use(a), expected)


def test_pycudas_compiler_takes_its_arguments(a):
    source = 'extern "C" __global__ void set(float *x) { x[threadIdx.x] = VALUE; }'
    module = SourceModule(source, options=["-DVALUE=7"], no_extern_c=True, arch="sm_90")
    module.get_function("set")(a, block=(6, 1, 1))
    assert (a.get() == 7).all()


def test_pycudas_modules_are_bridges_if_asked(a):
    """Without, `multi_take` asks PyCUDA for texture references, which are gone since CUDA 12."""
    indices, out = gpuarray.to_gpu(np.array([3, 1, 4], np.uint32)), gpuarray.empty(3, a.dtype)
    with pytest.raises(drv.Error):
        gpuarray.multi_take([a], indices, [out])
    assert compiler.SourceModule is not bridge.SourceModule
    bridge.use_nvrtc(modules=True)
    assert compiler.SourceModule is bridge.SourceModule
    assert gpuarray.multi_take([a], indices, [out])[0].get().tolist() == [3, 1, 4]
    assert (2 * a + a / 4).get().tolist() == (2.25 * np.arange(6)).tolist()
    for dtype in (bool, "b", "u2", "i4", "u8", "f", "d", "F", "D"):
        assert gpuarray.zeros(3, dtype).get().tolist() == [0, 0, 0]
        assert gpuarray.ones_like(gpuarray.zeros(3, dtype)).get().tolist() == [1, 1, 1]
    bridge.use_nvrtc(False)
    assert compiler.SourceModule is SourceModule


OF_PYCUDA = {
    "a module": lambda: SourceModule("__global__ void f() { }", options=["-e", "f"]),
    "a kernel, at its first call": lambda: squared(gpuarray.zeros(2, "f4"), options=["-e", "f"]),
}


@pytest.mark.parametrize("use", OF_PYCUDA.values(), ids=OF_PYCUDA)
def test_a_warning_names_the_programs_line(use):
    with pytest.warns(UserWarning, match="-e f has no meaning for NVRTC") as seen:
        use()
    assert {one.filename for one in seen} == {__file__}


def test_wrap_pycuda_names_it_where_nvcc_is_missing():
    bridge.use_nvrtc(False)
    odd = ElementwiseKernel("float *x", "x[i] = 12345", name="not_compiled_before")
    with pytest.raises(ExecError, match=r"'nvcc'; call bridge.use_nvrtc\(\) first"):
        bridge.wrap_pycuda(odd)(cupy.zeros(3, np.float32))


def test_show_config_tells_it(capsys):
    for enable, expected in (True, "not used: bridge.use_nvrtc"), (False, "not on PATH"):
        bridge.use_nvrtc(enable)
        bridge.show_config()
        assert f"nvcc                {expected}" in capsys.readouterr().out


def test_code_is_cached(tmp_path, monkeypatch):
    source = "__global__ void f(float *x) { x[0] = 3; }"
    SourceModule(source)
    monkeypatch.setattr("bridge.compiler.nvrtc.compile_program", None)  # a compilation would fail
    SourceModule(source)


TWO_KERNELS = """
__device__ float twice(float x) { return 2 * x; }
__global__ void f(float *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
"""


def test_a_dynamic_module_is_linked(a):
    DynamicSourceModule(TWO_KERNELS).get_function("f")(a, block=(6, 1, 1))
    assert (a.get() == 2 * np.arange(6)).all()

"""CUDA's linker for PTX, as PyCUDA calls it; libraries of kernels, as CUDA's Python loads them."""

import ctypes
import subprocess
import sys

import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.compiler import DynamicModule, DynamicSourceModule

from hostcuda import _build

pytestmark = pytest.mark.usefixtures("primary_context")

RELOCATABLE = ["-rdc=true"]
CALLS = """
extern __device__ int twice(int x);
__global__ void f(int *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
"""
TWICE = "__device__ int twice(int x) { return 2 * x; }"
LAUNCHES = """
__global__ void g(int *x) { ++*x; }
__global__ void f(int *x) { g<<<1, 1>>>(x); }
"""
# Both have names of their own: a function, a variable, and a text.
OWN = """
static __device__ int kept = %d;
static __device__ __noinline__ int add(int x) { return x + %d; }
__device__ int (*add%d)(int) = add;
__global__ void f%d(int *x) { printf("%d;"); *x = add%d(*x) + 100 * kept; }
"""


def ptx_of(source, option):
    return _build.check(source, [option]).ptx.encode()


def called(module, name="f", values=(1, 2, 3)):
    x = gpuarray.to_gpu(np.array(values, np.int32))
    module.get_function(name)(x, block=(len(values), 1, 1))
    return x.get().tolist()


def linked(*sources, **options):
    module = DynamicModule(**options)
    for source in sources:
        module.add_source(source, RELOCATABLE)
    return module.link()


def test_a_dynamic_module_is_linked():
    assert called(DynamicSourceModule(CALLS + TWICE)) == [2, 4, 6]


def test_sources_are_linked():
    assert called(linked(CALLS, TWICE)) == called(linked(TWICE, CALLS)) == [2, 4, 6]


def test_each_source_has_names_of_its_own(capfd):
    module = linked(*(OWN % (6 * (n,)) for n in (1, 2)))
    assert (called(module, "f1", [0]), called(module, "f2", [0])) == ([101], [202])
    assert capfd.readouterr().out == "1;2;"


NOT_LINKED = {
    "a kernel that launches kernels": ([LAUNCHES], "__cudaCDP2.*, a function of cudadevrt, is not"),
    "what is missing": ([CALLS], "a call of .*twice.*, which is not defined, is not supported"),
    "a name of two": ([TWICE, TWICE + CALLS], "PTX that defines .*twice.* twice is not supported"),
    "a variable of two": (2 * ["__device__ int v;"], "PTX that defines v twice is not supported"),
}


@pytest.mark.parametrize("case", NOT_LINKED)
def test_the_log_says_what_cannot_be_linked(case):
    sources, said = NOT_LINKED[case]
    logs = []
    with pytest.raises(drv.LogicError, match=f"hostcuda: .*{said}"):
        linked(*sources, message_handler=lambda *log: logs.append(log))
    assert len(logs) == 1
    assert logs[0][:2] == (False, "")
    assert logs[0][2].startswith("hostcuda: ")


def test_a_cubin_is_not_linked():
    with pytest.raises(drv.RuntimeError, match=r"hostcuda: mine\.cubin cannot be linked: here"):
        DynamicModule().add_data(b"\x7fELF..", drv.jit_input_type.CUBIN, "mine.cubin")


def test_a_file_is_linked(tmp_path):
    path = tmp_path / "twice.ptx"
    path.write_bytes(ptx_of(f'extern "C" {{ {TWICE} }}', "-rdc=true"))
    module = DynamicModule().add_source(CALLS, RELOCATABLE)
    assert called(module.add_file(str(path), drv.jit_input_type.PTX).link()) == [2, 4, 6]
    with pytest.raises(drv.RuntimeError, match="file not found"):
        DynamicModule().add_file(f"{path}x", drv.jit_input_type.PTX)


# --- libraries -------------------------------------------------------------------------------

CUDA = ctypes.CDLL("libcuda.so.1")


def ask(name, *arguments):
    """Return what the driver writes to its first argument."""
    found = ctypes.c_size_t()
    assert getattr(CUDA, name)(ctypes.byref(found), *arguments) == 0
    return ctypes.c_void_p(found.value)


@pytest.fixture
def library():
    source = f'extern "C" {{ __constant__ int c[3]; {TWICE} {CALLS} }}'
    loaded = ask("cuLibraryLoadData", ptx_of(source, "-arch=sm_90"), *6 * [None])
    yield loaded
    assert CUDA.cuLibraryUnload(loaded) == 0


def test_a_kernel_of_a_library_runs(library):
    kernel = ask("cuLibraryGetKernel", library, b"f")
    for function in kernel, ask("cuKernelGetFunction", kernel):
        x = gpuarray.to_gpu(np.array([1, 2, 3], np.int32))
        pointer = ctypes.c_size_t(int(x.gpudata))
        packed = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        assert CUDA.cuLaunchKernel(function, 1, 1, 1, 3, 1, 1, 0, None, packed, None) == 0
        assert x.get().tolist() == [2, 4, 6]


def test_a_library_answers(library):
    kernel = ask("cuLibraryGetKernel", library, b"f")
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    places = ctypes.byref(offset), ctypes.byref(size)
    assert CUDA.cuKernelGetParamInfo(kernel, ctypes.c_size_t(0), *places) == 0
    assert (offset.value, size.value) == (0, 8)
    assert CUDA.cuKernelGetParamInfo(kernel, ctypes.c_size_t(1), *places) == 1
    assert CUDA.cuLibraryGetGlobal(*places, library, b"c") == 0
    assert size.value == 12
    module = ask("cuLibraryGetModule", library)
    assert ask("cuModuleGetFunction", module, b"f").value == kernel.value
    most = drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert CUDA.cuKernelSetAttribute(int(most), 60000, kernel, 0) == 0
    assert ask("cuKernelGetAttribute", int(most), kernel, 0).value == 60000
    constant = int(drv.function_attribute.CONST_SIZE_BYTES)
    assert ask("cuKernelGetAttribute", constant, kernel, 0).value == 12
    assert CUDA.cuKernelSetCacheConfig(kernel, 1, 0) == 0
    missing = ctypes.c_void_p()
    assert CUDA.cuLibraryGetKernel(ctypes.byref(missing), library, b"missing") == 500


def test_a_library_is_loaded_from_a_file(tmp_path):
    path = tmp_path / "f.ptx"
    path.write_bytes(ptx_of(f'extern "C" {{ {TWICE} {CALLS} }}', "-arch=sm_90"))
    library = ask("cuLibraryLoadFromFile", str(path).encode(), *6 * [None])
    assert ask("cuLibraryGetKernel", library, b"f")
    assert CUDA.cuLibraryUnload(library) == 0


def test_devices_have_names_of_their_own():
    script = """
import ctypes, hostcuda
hostcuda.install(2)
cuda = ctypes.CDLL("libcuda.so.1")
names = [(ctypes.c_char * 16)() for _ in range(3)]
print(cuda.cuInit(0), *(cuda.cuDeviceGetUuid_v2(name, i) for i, name in enumerate(names)))
print(names[0].raw == names[1].raw)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "0 0 0 101\nFalse\n", done.stderr


# --- CUDA's Python ---------------------------------------------------------------------------

pathfinder = pytest.importorskip("cuda.pathfinder")  # CuPy 14 needs it, and CuPy 13 does not


def test_nvrtcs_cubin_can_be_loaded():
    found = pathfinder.load_nvidia_dynamic_lib("nvrtc")
    nvrtc = ctypes.CDLL(found.abs_path, handle=found._handle_uint)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = f'extern "C" {{ {TWICE} {CALLS} }}'.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, None, 0, None, None) == 0
    assert nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(b"-arch=sm_90")) == 0
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    cubin = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
    assert called(drv.module_from_buffer(cubin.raw)) == [2, 4, 6]

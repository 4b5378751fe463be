"""NVRTC compiles every source; what it makes runs here."""

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from cupy.cuda import driver
from pycuda import gpuarray
from pycuda.compiler import SourceModule

import hostcuda
from hostcuda import _build

pytestmark = pytest.mark.usefixtures("primary_context")

REFUSED = {
    "the C++ library": ("#include <vector>\n__global__ void f(int *x) {}", '"vector"'),
    "an array of variable length": (
        "__global__ void f(float *x, int n) { float s[n]; x[0] = s[1]; }",
        "must have a constant value",
    ),
    "80 KB of shared memory": (
        "__global__ void f(char *x) { __shared__ char s[80000]; s[threadIdx.x] = 2;"
        " __syncthreads(); x[0] = s[5]; }",
        "too much shared data",
    ),
    "a function of the host": (
        "int g() { return 1; } __global__ void f(int *x) { *x = g(); }",
        "without execution space annotations",
    ),
}


@pytest.mark.parametrize("name", sorted(path.name for path in _build.FOLDER.glob("*.cpp")))
def test_each_file_of_the_driver_compiles_alone(name):
    command = [_build.CXX, "-std=c++17", "-fsyntax-only", f"-I{_build.cuda_include()}"]
    subprocess.run([*command, "-Wall", "-Werror", str(_build.FOLDER / name)], check=True)


@pytest.mark.parametrize("case", [c for c in REFUSED if c != "a function of the host"])
def test_what_a_gpu_does_not_run_is_refused(case):
    source, said = REFUSED[case]
    with pytest.raises(cupy.cuda.compiler.CompileException, match=said) as raised:
        cupy.RawModule(code=source).get_function("f")
    assert "(1): " in str(raised.value) or "ptxas error" in str(raised.value)


@pytest.mark.parametrize("case", [c for c in REFUSED if c != "the C++ library"])
def test_nvcc_refuses_it_too(case):
    source, said = REFUSED[case]
    with pytest.raises(drv.CompileError, match=said):
        SourceModule(source)


def test_nvcc_takes_functions_of_the_host_that_no_kernel_calls():
    source = "#include <cstdio>\n#include <float.h>\nint g() { return 1; }\n" + (
        "__global__ void f(float *x) { *x = FLT_MAX; }"
    )
    x = np.zeros(1, np.float32)
    SourceModule(source).get_function("f")(drv.Out(x), block=(1, 1, 1))
    assert x[0] == np.finfo(np.float32).max


def test_a_kernels_needs_come_from_its_cubin():
    kernel = cupy.RawKernel(
        """extern "C" __global__ void __launch_bounds__(64) f(float *x) {
          __shared__ float s[100];
          s[threadIdx.x] = x[0];
          __syncthreads();
          x[threadIdx.x] = s[99];
        }""",
        "f",
    )
    assert (kernel.shared_size_bytes, kernel.max_threads_per_block) == (400, 64)
    assert 4 < kernel.num_regs < 64
    x = cupy.zeros(100, np.float32)
    kernel((1,), (64,), (x,))
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="invalid argument"):
        kernel((1,), (65,), (x,))
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="invalid argument"):
        kernel((1,), (64,), (x,), shared_mem=48 * 1024 - 300)


def test_what_only_the_host_cannot_run_is_said():
    source = """__device__ long long b; extern "C" __global__ void f(int n) {
      asm("mbarrier.init.shared.b64 [%0], 1;" :: "r"(n)); }"""
    with pytest.raises(hostcuda.CompileError, match=r"hostcuda: mbarrier.* is not supported"):
        hostcuda.compile(source)


def test_a_source_with_headers_that_only_nvcc_has_is_refused_with_nvrtcs_log():
    source = "#include <vector>\n__global__ void f(int *x) {}"
    with pytest.raises(drv.CompileError, match='cannot open source file "vector"'):
        SourceModule(source)


def test_expressions_have_nvrtcs_names():
    module = cupy.RawModule(
        code="template <class T> __global__ void f(T *x) { *x = 3; } __constant__ int c[5];",
        name_expressions=["f<int>", "f<float>", "&c"],
    )
    x = cupy.zeros(1, np.float32)
    module.get_function("f<float>")((1,), (1,), (x,))
    assert x.get().tolist() == [3]
    assert module.get_global("c").ptr


def test_static_variables_have_names():
    """The program's copy fills them; each module has its own."""
    source = """
        static __constant__ int c[2] = {1, 2};
        static __device__ float one(int i) { return c[i]; }
        extern "C" __global__ void f(float *x) { *x = one(1); }
    """
    modules = [cupy.RawModule(code=f"{source}// {n}") for n in range(2)]
    x = cupy.zeros(2, np.float32)
    pointer = modules[0].get_global("c")
    cupy.ndarray(2, np.int32, pointer)[...] = 7
    for n, module in enumerate(modules):
        module.get_function("f")((1,), (1,), (x[n:],))
    assert x.get().tolist() == [7, 2]


def test_macros_of_options_do_not_reach_the_drivers_own_header():
    options = "-DA", "-DB(x)=x+A", "-DC=4", "-DGONE", "-UGONE"
    source = """
        #ifdef GONE
        #error
        #endif
        extern "C" __global__ void f(int *x) { *x = B(C); }
    """
    x = cupy.zeros(1, np.int32)
    cupy.RawModule(code=source, options=options).get_function("f")((1,), (1,), (x,))
    assert x.get().tolist() == [5]


def test_headers_of_the_host_are_read_as_cpp():
    """Also inside of extern "C", where a compiler of GPU code may have empty ones."""
    source = (
        "#include <vector>\n#include <iostream>\n__global__ void f(int *x) { *x = clock() > 0; }"
    )
    found = _build.compile(
        f'extern "C" {{\n{source}\n}}\n', headers={"vector": b"", "iostream": b""}
    )
    x = cupy.zeros(1, np.int32)
    drv.module_from_buffer(found.image).get_function("f")(np.intp(x.data.ptr), block=(1, 1, 1))
    assert x.get().tolist() == [1]


@pytest.mark.parametrize("library", ["CUPY", "PYCUDA"])
def test_caches_of_the_libraries_are_of_this_translator(library):
    """Some of what is kept there has a key without it: that of `bridge` knows NVRTC alone."""
    assert os.environ[f"{library}_CACHE_DIR"].endswith(_build.compiler_key()[:16])


@pytest.mark.parametrize("is_there", [True, False])
def test_there_is_an_nvcc_for_pycuda_alone(is_there):
    program = "import shutil, hostcuda; hostcuda.install(); print(shutil.which('nvcc'))"
    if not is_there:
        program = f"import sys; sys.modules['pycuda'] = None; {program}"
    kept = [folder for folder in os.environ["PATH"].split(os.pathsep) if "hostcuda" not in folder]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": os.pathsep.join(kept)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    assert (str(_build.FOLDER) in done.stdout) == is_there


def test_references_are_addresses():
    kernel = cupy.RawKernel(
        'extern "C" __global__ void f(int (&x)[4], const int &value) { x[3] = value; }', "f"
    )
    x, value = cupy.zeros(4, np.int32), cupy.full(1, 7, np.int32)
    kernel((1,), (1,), (x, value))
    assert x.get().tolist() == [0, 0, 0, 7]


def test_a_header_before_the_source_is_the_hosts_too():
    """NVRTC's --pre-include, from the headers that are given in memory."""
    text = 'extern "C" __global__ void f(int *x) { *x = VALUE; }'
    image = _build.compile(
        text, ("-arch=sm_90", "--pre-include=mine.h"), headers={"mine.h": b"#define VALUE 5"}
    ).image
    x = cupy.zeros(1, np.int32)
    f = drv.module_from_buffer(image).get_function("f")
    f(np.uintp(x.data.ptr), block=(1, 1, 1))
    assert x.get().tolist() == [5]


def test_threads_get_programs_of_their_own():
    from cupy_backends.cuda.libs import nvrtc

    made, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def make():
        for _ in range(2000):
            made.append(nvrtc.createProgram("", "", (), ()))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert len(set(made)) == len(made) == 6000
    for program in made:
        nvrtc.destroyProgram(program)


@pytest.mark.parametrize("name", ["cupy_backends.cuda.libs.cutensor", "cupy.cuda.jitify"])
def test_a_library_that_cannot_work_says_so(name):
    said = r"^hostcuda: (cuTENSOR|Jitify \(jitify=True\)) is not supported"
    with pytest.raises(ImportError, match=said):
        importlib.import_module(name)


def test_random_numbers_are_random_and_repeat():
    cupy.random.seed(3)
    first = cupy.random.random(1000)
    normal = cupy.random.randn(1000)
    assert 0.4 < float(first.mean()) < 0.6
    assert 0.9 < float(normal.std()) < 1.1
    assert {*cupy.random.randint(0, 3, 100).get().tolist()} == {0, 1, 2}
    cupy.random.seed(3)
    assert (cupy.random.random(1000) == first).all()


def test_inverses_of_the_error_function():
    y = cupy.array([1e-9, 0.1, 0.5, 0.9, 1.0, 1.5, 1.999])
    source = """extern "C" __global__ void f(double *x) {
      x[threadIdx.x] = erfc(erfcinv(x[threadIdx.x]));
    }"""
    x = y.copy()
    cupy.RawKernel(source, "f")((1,), (7,), (x,))
    np.testing.assert_allclose(x.get(), y.get(), rtol=1e-12)


def test_a_source_may_define_the_types_of_stdint():
    kernel = cupy.RawKernel(
        """typedef unsigned long long uint64_t;
        extern "C" __global__ void f(uint64_t *x) { *x = 1ull << 40; }""",
        "f",
    )
    x = cupy.zeros(1, np.uint64)
    kernel((1,), (1,), (x,))
    assert int(x[0]) == 1 << 40


def test_votes_see_the_threads_of_the_warp_and_of_the_block():
    kernel = cupy.RawKernel(
        """extern "C" __global__ void f(unsigned *x) {
          unsigned i = threadIdx.x;
          x[4 * i] = __ballot_sync(~0u, i % 3 == 0);
          x[4 * i + 1] = __any_sync(~0u, i == 40);
          x[4 * i + 2] = __all_sync(~0u, i < 40);
          x[4 * i + 3] = __syncthreads_count(i % 2);
        }""",
        "f",
    )
    x = cupy.zeros((44, 4), np.uint32)
    kernel((1,), (44,), (x,))
    bits = [
        sum((i % 3 == 0) << (i - first) for i in r)
        for first, r in ((0, range(32)), (32, range(32, 44)))
    ]
    assert x[0].get().tolist() == [bits[0], 0, 1, 22]
    assert x[43].get().tolist() == [bits[1], 1, 0, 22]


def test_conversions_to_integers_saturate():
    kernel = cupy.RawKernel(
        """extern "C" __global__ void f(const float *x, int *y, unsigned *z) {
          y[threadIdx.x] = __float2int_rn(x[threadIdx.x]);
          z[threadIdx.x] = __float2uint_rz(x[threadIdx.x]);
        }""",
        "f",
    )
    x = cupy.array([2.5, 3e10, -3e10, np.nan, -1], np.float32)
    y, z = cupy.zeros(5, np.int32), cupy.zeros(5, np.uint32)
    kernel((1,), (5,), (x, y, z))
    assert y.get().tolist() == [2, 2**31 - 1, -(2**31), 0, -1]
    assert z.get().tolist() == [2, 2**32 - 1, 0, 0, 0]


def test_curands_device_functions_run():
    if not any(Path(f, "curand_kernel.h").exists() for f in _build.vendor_folders()):
        pytest.skip("not installed: nvidia-curand")
    from pycuda.curandom import XORWOWRandomNumberGenerator

    generator = XORWOWRandomNumberGenerator(lambda n: gpuarray.to_gpu(np.arange(n, dtype=np.int32)))
    uniform = generator.gen_uniform(10000, np.float32).get()
    assert 0.48 < uniform.mean() < 0.52
    assert len(np.unique(uniform)) > 9900
    assert 0.9 < generator.gen_normal(10000, np.float32).get().std() < 1.1


def test_kernels_are_found_by_their_symbols_as_on_a_gpu():
    x = cupy.zeros(1, np.float32)
    module = cupy.RawModule(
        code="""
        namespace a { __global__ void g(float *x) { x[0] = 3; } }
        static __global__ void h(float *x) { x[0] = 4; }
        __global__ void o(int) { }
        __global__ void o(float) { }
        extern "C" __global__ void f(float *x) { x[0] = 1; }
        """
    )
    for symbol, value in {"f": 1, "_ZN1a1gEPf": 3}.items():
        module.get_function(symbol)((1,), (1,), (x,))
        assert x[0] == value
    for name in ("g", "h"):
        with pytest.raises(driver.CUDADriverError, match="named symbol not found"):
            module.get_function(name)


def test_cucomplex_runs():
    kernel = cupy.RawKernel(
        """
        #include <cuComplex.h>
        extern "C" __global__ void square(cuFloatComplex *x) { x[0] = cuCmulf(x[0], x[0]); }
        """,
        "square",
    )
    x = cupy.asarray([1 + 2j], np.complex64)
    kernel((1,), (1,), (x,))
    assert x[0] == -3 + 4j


@pytest.mark.parametrize("option", ["--use_fast_math", "-use_fast_math", "-ftz=true", "-ftz=false"])
def test_options_of_arithmetic_reach_the_compiler(option):
    source = "__global__ void f(float *x) { x[0] *= 0.5f; }"
    x = gpuarray.to_gpu(np.full(1, 1e-38, "f"))
    SourceModule(source, options=[option]).get_function("f")(x, block=(1, 1, 1))
    assert (x.get()[0] == 0) == (option != "-ftz=false")

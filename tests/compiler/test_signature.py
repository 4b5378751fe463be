"""What the compiler tells of a kernel's parameters: the real NVRTC, also without a GPU."""

import cupy
import pytest
from real_nvrtc import in_nvrtc

import bridge
from bridge.compiler import signature
from bridge.compiler.signature import kernel_names

BEFORE = """
#include <stdint.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuComplex.h>
#include <pycuda-complex.hpp>
#define PTR *
typedef double real; typedef float *row; using index = unsigned long long;
struct later; struct point { char name; double x; }; enum mode { fast, slow };
namespace filters { enum class edge : char { wrap }; template <class T> struct box { T of; }; }
template <mode m> struct flag { char of; }; namespace { struct hidden { int of; }; }
"""
# The declaration of one parameter -> the type that is shown, if it is a pointer, and the dtype;
# None is "not known".
PARAMETERS = {
    "float *x": ("float *x", True, "float32"),
    "const float *__restrict__ x": ("const float *x", True, "float32"),
    "float *__restrict__ *p": ("float **p", True, "uint64"),
    "float *const __restrict__ *__restrict__ p": ("float *const*p", True, "uint64"),
    "volatile double *x": ("double volatile *x", True, "float64"),
    "float x[4][3]": ("float (*) [3] x", True, "float32"),
    "int n": ("int n", False, "int32"),
    "const unsigned n": ("unsigned int n", False, "uint32"),
    "char c": ("char c", False, "int8"),
    "half h": ("__half h", False, "float16"),
    "__nv_bfloat16 b": ("__nv_bfloat16 b", False, "bfloat16"),
    "const __nv_bfloat16 *b": ("const __nv_bfloat16 *b", True, "bfloat16"),
    "void *p": ("void *p", True, None),
    "float **p": ("float **p", True, "uint64"),
    "const float *const *p": ("const float *const*p", True, "uint64"),
    "float4 *v": ("float4 *v", True, "float32"),
    "float2 v": ("float2 v", False, "float32"),
    "dim3 v": ("dim3 v", False, None),
    "row x": ("float *x", True, "float32"),
    "const row *x": ("float *const*x", True, "uint64"),
    "point p": ("point p", False, None),
    "const struct point *p": ("const point *p", True, "|V16"),
    "enum mode m": ("mode m", False, None),
    "filters::box<float *> b": ("filters::box<float*> b", False, None),
    "flag<slow> f": ("flag<(mode)1> f", False, None),
    "hidden h": ("(anonymous namespace)::hidden h", False, None),
    "filters::box<real> *b": ("filters::box<double> *b", True, "|V8"),
    "pycuda::complex<float> *z": ("pycuda::complex<float> *z", True, "complex64"),
    "cuComplex z": ("float2 z", False, "float32"),
    "float (*p)[3]": ("float (*) [3]", True, "float32"),
    "float *(*p)[3]": ("float* (*) [3]", True, "uint64"),
    "float (**p)[3]": ("float (**) [3]", True, "uint64"),
    "enum mode *m": ("mode *m", True, "int32"),
    "filters::edge *e": ("filters::edge *e", True, "int8"),
    "struct later *p": ("later *p", True, None),
    "filters::box<float *> *b": ("filters::box<float*> *b", True, "|V8"),
    "half2 *h": ("__half2 *h", True, "float16"),
    "float (*p)(float)": ("float (*)(float)", True, None),
    "decltype(1.f) x": ("float", False, "float32"),
    "[[maybe_unused]] double d": ("double d", False, "float64"),
    "__grid_constant__ const point p": ("point p", False, None),
    "unsigned __int128 n": ("unsigned __int128 n", False, None),
    "unsigned __int128 *n": ("unsigned __int128 *n", True, "|V16"),
    "float PTR x": ("float *x", True, "float32"),
    "float x = 3 > 2": ("float x", False, "float32"),
}  # fmt: skip

ONE_FLOAT, ONE_DOUBLE = [("float *x", True, "float32")], [("double *x", True, "float64")]
UNNAMED = [("float *", True, "float32")]  # declared twice, or from a macro
SOURCES = {
    "no parameters": ("__global__ void f() { }", []),
    "launch bounds": ("__global__ void __launch_bounds__(64, (1 + 1)) f(float *x) { }", ONE_FLOAT),
    "types alone": (
        "__global__ void f(unsigned char, const float) { }",
        [("unsigned char", False, "uint8"), ("float", False, "float32")],
    ),
    "words before": ('extern "C" __global__ void f(float *x) { }', ONE_FLOAT),
    "declared and defined": (
        "__global__ void f(float *); __global__ void f(float *x) { }",
        UNNAMED,
    ),
    "in a comment": ("/* __global__ void f(int n) */ __global__ void f(float *x) { }", ONE_FLOAT),
    "a device function": ("__device__ void g(int n) { } ", None),
    "a template": ("}template <class T> __global__ void f(float *x, T n) { }\nnamespace {", None),
    "two of that name": (
        "}__global__ void f(int *x) {} __global__ void f(int n) {}\nnamespace {",
        None,
    ),
    "two branches": (
        "#ifdef A\n__global__ void f(float *x) {}\n#else\n__global__ void f(int *x) {}\n#endif",
        [("int *x", True, "int32")],
    ),
    "a branch inside": (
        "__global__ void f(float *x\n#ifndef A\n, int n\n#endif\n) { }",
        [("float *", True, "float32"), ("int", False, "int32")],
    ),
    "from a macro": ("#define K(n) __global__ void n(float *x)\nK(f) { }", UNNAMED),
    "its name from a macro": (
        "#define K(n, op) __global__ void n(float *x) { x[0] = x[0] op 2; }\nK(g, +) K(f, *)",
        UNNAMED,
    ),
    "C++ from a macro": (
        '}\n#define K(n) __global__ void n(float *x) { }\nK(f) extern "C" {',
        UNNAMED,
    ),
    "more than 75 parameters": (
        f"__global__ void f(float *x, {', '.join(f'int a{i}' for i in range(300))}) {{ }}",
        ONE_FLOAT + [(f"int a{i}", False, "int32") for i in range(300)],
    ),
    "a struct called half": (
        "struct half { float low, high; }; __global__ void f(half h, const half *p) { }",
        [("half h", False, None), ("const half *p", True, "|V8")],
    ),
    "a keyword redefined": ("#define float double\n__global__ void f(float *x) { }", ONE_DOUBLE),
    "macros F and T": ("#define F 1\n#define T float\n__global__ void f(T *x) { }", ONE_FLOAT),
    "complex numbers of Thrust": (
        '}\n#include <thrust/complex.h>\nextern "C" {\n'
        "__global__ void f(thrust::complex<float> *z, thrust::complex<double> s) { }",
        [
            ("thrust::complex<float> *z", True, "complex64"),
            ("thrust::complex<double> s", False, "complex128"),
        ],
    ),
    "one that is left out": (
        "#if 0\n__global__ void g(int n) { }\n#endif\n__global__ void f(float *x) { }",
        ONE_FLOAT,
    ),
}
OPTIONS = {
    "-DREAL=double": ONE_DOUBLE,
    "-DREAL=float": ONE_FLOAT,
    "-DREAL=float -std=c++14": ONE_FLOAT,
    "-DREAL=float -std=c++11": None,  # no variable templates
}
START = f'}}{BEFORE}extern "C" {{\n__global__ void f(int first, '
CASES = {declaration: (f"{START}{declaration}) {{ }}", []) for declaration in PARAMETERS}
CASES |= {name: (source, []) for name, (source, _) in SOURCES.items()}
CASES |= {option: ("__global__ void f(REAL *x) { }", option.split()) for option in OPTIONS}
CASES["PTX"] = (SOURCES["its name from a macro"][0], [], "compute_80")


READ = """
from bridge.compiler.program import Request, compile
from bridge.compiler.signature import expression, kernel_names, read_signature

def shown(one):
    if one.dtype is None:
        return one.text, one.is_pointer, None
    base = one.dtype if one.dtype.fields is None else one.dtype[0]
    return one.text, one.is_pointer, str(base)

def attempt(source, options, arch="sm_90"):
    request = Request(source, "nvcc", options, False, False, None, None, False, [])
    mangled = compile(request, arch, kernel_names(source)).mangled.get(expression("f"))
    return mangled and [shown(one) for one in read_signature(mangled, source, "f")]
"""


@pytest.fixture(scope="module")
def read(once, tmp_path_factory):
    found = once("signatures", lambda: in_nvrtc(READ, CASES, tmp_path_factory))
    return {name: row and [tuple(one) for one in row] for name, row in found.items()}


@pytest.mark.parametrize("declaration", PARAMETERS)
def test_a_parameter(declaration, read):
    first, found = read[declaration]
    assert found == PARAMETERS[declaration]
    assert first[1:] == (False, "int32")


def test_ptx_says_which_kernels_there_are(read):
    assert read["PTX"] == SOURCES["its name from a macro"][1]


@pytest.mark.parametrize("name", [*SOURCES, *OPTIONS])
def test_a_source(name, read):
    assert read[name] == (SOURCES[name][1] if name in SOURCES else OPTIONS[name])


def test_a_signature_is_parsed_once(monkeypatch):
    parsed, read_type = [], signature._read_type
    monkeypatch.setattr(signature, "_read_type", lambda *args: parsed.append(1) or read_type(*args))
    module = bridge.SourceModule("__global__ void parsed_once(float *x, int n) { *x = n; }")
    for _ in range(2):
        x = cupy.zeros(1, "f")
        module.get_function("parsed_once")(x, 3, block=1)
        assert x[0] == 3
    assert len(parsed) == 2  # of two parameters


def test_the_names_of_kernels():
    source = """
    // __global__ void not_this(int n);
    __global__ void second(float *x) { }
    extern "C" __global__ void __launch_bounds__(256, 2) first(int n) { helper(n); }
    template <class T, int n = 3> static __global__ void nor_this(T n) { }
    __device__ int helper(int n) { return n; }
    """
    assert kernel_names(source) == ["first", "second"]

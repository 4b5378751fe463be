"""What is read of a kernel's parameters in its source; what cannot be known stays unknown."""

from __future__ import annotations

import pytest

from bridge.signature import kernel_names, read_parameters

# The declaration of one parameter -> (is a pointer, dtype); None is "not known".
PARAMETERS = {
    "float *x": (True, "float32"),
    "float* x": (True, "float32"),
    "const float *__restrict__ x": (True, "float32"),
    "float const * const x": (True, "float32"),
    "volatile double *x": (True, "float64"),
    "float x[]": (True, "float32"),
    "float x[16]": (True, "float32"),
    "float *": (True, "float32"),
    "int n": (False, "int32"),
    "int": (False, "int32"),
    "const unsigned n": (False, "uint32"),
    "unsigned int n": (False, "uint32"),
    "int unsigned n": (False, "uint32"),
    "short int n": (False, "int16"),
    "unsigned short n": (False, "uint16"),
    "long n": (False, "int64"),
    "unsigned long int n": (False, "uint64"),
    "long long n": (False, "int64"),
    "unsigned long long n": (False, "uint64"),
    "char c": (False, "int8"),
    "signed char c": (False, "int8"),
    "unsigned char c": (False, "uint8"),
    "bool b": (False, "bool"),
    "float f": (False, "float32"),
    "double d": (False, "float64"),
    "float half": (False, "float32"),
    "half h": (False, "float16"),
    "__half *h": (True, "float16"),
    "size_t n": (False, "uint64"),
    "uint8_t *x": (True, "uint8"),
    "int64_t n": (False, "int64"),
    "uint n": (False, "uint32"),
    "cudaTextureObject_t t": (False, "uint64"),
    "void *p": (True, None),
    "float **p": (True, None),
    "float4 *v": (True, None),
    "float2 v": (None, None),
    "real *x": (True, None),
    "real x": (None, None),
    "struct point p": (None, None),
    "struct point *p": (True, None),
    "pycuda::complex<float> *z": (True, None),
    "pycuda::complex<float> z": (None, None),
    "float (*p)[3]": (None, None),
    "const float &x": (None, None),
    "unsigned_thing n": (None, None),
    "[[maybe_unused]] double d": (False, "float64"),
    "[[maybe_unused]] float *x": (True, "float32"),
    "unsigned __int128 n": (None, None),
    "unsigned __int128 *n": (True, None),
    "float PTR x": (None, None),
    "float *PTR x": (True, None),
}


def found(source, name="f", options=()):
    parameters = read_parameters(source, name, options)
    if parameters is None:
        return None
    return [(p.is_pointer, None if p.dtype is None else str(p.dtype)) for p in parameters]


@pytest.mark.parametrize("declaration", PARAMETERS)
def test_a_parameter(declaration):
    source = f"__global__ void f(double *before, {declaration}, int after) {{ }}"
    expected = [(True, "float64"), PARAMETERS[declaration], (False, "int32")]
    assert found(source) == expected
    assert read_parameters(source, "f")[1].text == declaration


ONE_FLOAT = [(True, "float32")]
SOURCES = {
    "no parameters": ("__global__ void f() { }", []),
    "void": ("__global__ void f(void) { }", []),
    "launch bounds": ("__global__ void __launch_bounds__(64, 2) f(float *x) { }", ONE_FLOAT),
    "words before": ('extern "C" __global__ static void f(float *x) { }', ONE_FLOAT),
    "words behind void": ("__global__ void\nf ( float\n*x ) { }", ONE_FLOAT),
    "declared and defined": (
        "__global__ void f(float *); __global__ void f(float *x) { }",
        ONE_FLOAT,
    ),
    "commented out": ("// __global__ void f(int n);\n__global__ void f(float *x) { }", ONE_FLOAT),
    "in a comment": ("/* __global__ void f(int n) */ __global__ void f(float *x) { }", ONE_FLOAT),
    "a comment inside": ("__global__ void f(float *x /* , int n */) { }", ONE_FLOAT),
    "in a literal": ('const char *s = "__global__ void f(int n)"; __global__ void f(float *x) { }',
                     ONE_FLOAT),
    "another kernel": ("__global__ void ff(int n) { } __global__ void f(float *x) { }", ONE_FLOAT),
    "a device function": ("__device__ void f(int n) { } ", None),
    "not there": ("__global__ void g(int n) { } ", None),
    "a template": ("template <class T> __global__ void f(float *x, T n) { }", None),
    "two of that name": ("__global__ void f(float *x) { } __global__ void f(int n) { }", None),
    "two branches": (
        "#ifdef A\n__global__ void f(float *x) {}\n#else\n__global__ void f(int *x) {}\n#endif",
        None,
    ),
    "a branch inside": ("__global__ void f(float *x\n#ifdef A\n, int n\n#endif\n) { }", None),
    "a default": ("__global__ void f(float *x, int n = 3 > 2) { }", None),
    "from a macro": ("#define K(n) __global__ void n(float *x)\nK(f) { }", None),
    "a type of the macro's": ("#define T float\n__global__ void f(T *x) { }", [(True, None)]),
    "a keyword redefined": ("#define float double\n__global__ void f(float *x) { }", None),
    "a name redefined": ("typedef float half;\n__global__ void f(half *x) { }", [(True, None)]),
    "a name used": ("using half = float;\n__global__ void f(half *x) { }", [(True, None)]),
    "a struct's name": (
        "typedef struct { int a; } uint;\n__global__ void f(uint x) { }",
        [(None, None)],
    ),
    "a struct's name, aligned": (
        "struct __align__(8) half { int a; };\n__global__ void f(half *x) { }",
        [(True, None)],
    ),
    "a header of the user's": (
        '#include "mine.h"\n__global__ void f(half *x, float *y) { }',
        [(True, None), (True, "float32")],
    ),
    "in a branch": ("#if 0\n__global__ void f(int n) { }\n#endif\nKERNEL(f)(float *x) { }", None),
    "behind a branch": ("#if 0\nint n;\n#endif\n__global__ void f(float *x) { }", ONE_FLOAT),
    "a spliced comment": (
        "// here \\\r\n__global__ void f(int n);\r\n__global__ void f(float *x) { }",
        ONE_FLOAT,
    ),
    "a pointer's name": ("typedef float *half;\n__global__ void f(half x) { }", [(None, None)]),
}  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_a_source(source, expected):
    assert found(source) == expected


def test_macros_of_the_options_count():
    source = "__global__ void f(float *x, size_t n) { }"
    assert found(source, options=["-Dfloat=double"]) is None
    assert found(source, options=["-Dsize_t=int"]) == [(True, "float32"), (None, None)]
    assert found(source, options=["-D", "size_t=int"]) == [(True, "float32"), (None, None)]
    assert found(source, options=["--define-macro=size_t"])[1] == (None, None)
    assert found(source, options=["-DN=3"]) == [(True, "float32"), (False, "uint64")]


def test_the_names_of_kernels():
    source = """
    // __global__ void not_this(int n);
    __global__ void second(float *x) { }
    extern "C" __global__ void __launch_bounds__(256, 2) first(int n) { helper(n); }
    __device__ int helper(int n) { return n; }
    """
    assert kernel_names(source) == ["first", "second"]

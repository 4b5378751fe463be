"""Random parameter lists: a kernel reads each argument byte for byte.

``BRIDGE_EXAMPLES=1000`` in the environment runs that many.
"""

import os

import cupy
import numpy as np
import pytest

import bridge
from bridge.compiler.parameter_types import DTYPES
from bridge.kernels import parameters as parameter_layout

EXAMPLES = int(os.environ.get("BRIDGE_EXAMPLES", "25"))
DECLARED = r"""
struct pair { char key, filler[7]; double value; };
struct triple { short of[3]; };
#define READ(p) \
    for (int i = 0; i < (int)sizeof p; ++i) *out++ = ((const unsigned char *)&p)[i];
"""
TYPES = {
    **{"bool": "?", "char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2"},
    **{"int": "i4", "unsigned": "u4", "long": "i8", "unsigned long long": "u8"},
    **{"float": "f4", "double": "f8", "float *": "u8", "const double *": "u8"},
    **{f"float{n}": [(axis, "f4") for axis in "xyzw"[:n]] for n in (2, 3, 4)},
    "double2": [("x", "f8"), ("y", "f8")],
    "uchar4": [(axis, "u1") for axis in "xyzw"],
    # A kernel may leave out the bytes that no field has.
    "pair": [("key", "i1"), ("filler", "i1", 7), ("value", "f8")],
    "triple": [("of", "i2", 3)],
}  # fmt: skip


def value(kind, random, array):
    """Return an argument of a type in C, and the bytes that the kernel reads."""
    if "*" in kind:
        pointer = array.view("f8" if "double" in kind else "f4")
        return pointer, np.uint64(pointer.data.ptr).tobytes()
    dtype = np.dtype(TYPES[kind])
    found = np.zeros(1, dtype)
    for field in dtype.names or [...]:
        part = found[field]
        if part.dtype.kind == "f":
            found[field] = random.normal(size=part.shape)
        elif part.dtype.kind == "b":
            found[field] = random.random() < 0.5
        else:
            found[field] = np.frombuffer(random.bytes(part.nbytes), part.dtype).reshape(part.shape)
    as_python = dtype.names is None and random.random() < 0.5
    return (found[0].item() if as_python else found[0]), found.tobytes()


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_kernel_reads_what_was_given(seed):
    random = np.random.default_rng(seed)
    kinds = random.choice(sorted(TYPES), random.integers(1, 13)).tolist()
    parameters = "".join(f", {kind} p{index}" for index, kind in enumerate(kinds))
    reads = "".join(f"READ(p{index})" for index in range(len(kinds)))
    source = f"{DECLARED} __global__ void f(unsigned char *out{parameters}) {{ {reads} }}"
    f = bridge.SourceModule(source).get_function("f")
    array = cupy.zeros(4)
    given = [value(kind, random, array) for kind in kinds]
    args, expected = [one for one, _ in given], b"".join(read for _, read in given)
    out = cupy.full(len(expected) + 1, 7, np.uint8)
    f(out, *args, block=1)
    assert out.get().tobytes() == expected + b"\x07"
    out[...] = 7
    codes = [np.intp if "*" in kind else np.dtype(TYPES[kind]) for kind in kinds]
    f.prepare([np.intp, *codes]).prepared_call((1, 1), (1, 1, 1), out, *args)
    assert out.get().tobytes() == expected + b"\x07"


def test_an_int_beyond_64_bits_is_refused():
    source = "__global__ void copy(long long *x, long long n) { *x = n; }"
    copy = bridge.SourceModule(source).get_function("copy")
    x = cupy.zeros(1, "i8")
    copy(x, -(1 << 63), block=1)
    assert x.tolist() == [-(1 << 63)]
    for number in 1 << 63, -(1 << 63) - 1:
        with pytest.raises(OverflowError, match="copy: argument 1 .* does not fit into int64"):
            copy(x, number, block=1)


def test_more_bytes_than_cuda_takes_are_refused(compile_kernel):
    f = compile_kernel('extern "C" __global__ void f() { }', "f")
    with pytest.raises(ValueError, match="launch: parameters of 40000 bytes; CUDA allows 32764"):
        bridge.launch(f, *[np.float64(0)] * 5000, grid=1, block=1)


def test_launch_takes_structs_of_two_sizes(compile_kernel):
    source = 'extern "C" __global__ void f(%s by_value, int *x, int n) { *x = n; }'
    x = cupy.zeros(1, "i4")
    for kind, value in ("short4", np.zeros(1, "V8")[0]), ("double2", np.zeros(1, "V16")[0]):
        bridge.launch(compile_kernel(source % kind, "f"), value, x, np.int32(5), grid=1, block=1)
        assert int(x[0]) == 5
        x[0] = 0


def test_a_type_is_added_by_its_dtype(monkeypatch):
    """It needs no other line: to read its name, to pack a number of it, to check an array of it."""
    monkeypatch.setitem(DTYPES, "angle", np.dtype("f4"))
    source = "struct angle { float of; }; __global__ void f(angle *x, angle v) { x[0] = v; }"
    f, x = bridge.SourceModule(source).get_function("f"), cupy.zeros(1, "f4")
    for number in 2, 1.5, np.float32(3), np.float64(4):  # in C, and in Python
        f(x, number, block=1)
        assert x[0] == number
    with pytest.raises(TypeError, match=r"argument 0 .* is an array of int32, .* takes float32"):
        f(cupy.zeros(1, "i4"), 1, block=1)
    with pytest.raises(TypeError, match=r"argument 1 .* takes float32 by value; pass a number"):
        f(x, "1", block=1)


def test_a_complex_number_is_prepared():
    source = """
#include <pycuda-complex.hpp>
__global__ void f(float *x, pycuda::complex<float> v, int n)
{ x[0] = v.real(); x[1] = v.imag(); x[2] = n; }"""
    f = bridge.SourceModule(source, no_extern_c=True).get_function("f")
    x = cupy.zeros(3, "f4")
    f.prepare(["P", np.complex64, "i"]).prepared_call((1, 1), (1, 1, 1), x, 1 + 2j, 3)
    assert x.tolist() == [1, 2, 3]
    f.prepare("PdH").prepared_call((1, 1), (1, 1, 1), x, 3 + 4j, 70000)  # the kernel's types count
    assert x.tolist() == [3, 4, 70000]
    for value in 1e300, 1e300j, np.complex128(1e300), 10**400:
        with pytest.raises(OverflowError, match="argument 1 .* does not fit into complex64"):
            f(x, value, 3, block=1)


def test_launch_refuses_what_may_be_a_vector_where_that_matters(compile_kernel):
    source = 'extern "C" __global__ void f(float *x, int n, float2 v) { x[0] = v.x; x[1] = v.y; }'
    f, x = compile_kernel(source, "f"), cupy.zeros(2, "f4")
    pair = np.array((1, 2), [("x", "f4"), ("y", "f4")])[()]
    with pytest.raises(TypeError, match=r"launch: argument 2 .* For a vector, use bridge.Source"):
        bridge.launch(f, x, np.int32(1), pair, grid=1, block=1)
    source = 'extern "C" __global__ void g(float *x, float2 v) { x[0] = v.x; x[1] = v.y; }'
    bridge.launch(compile_kernel(source, "g"), x, pair, grid=1, block=1)
    assert x.tolist() == [1, 2]


def test_tables_of_launch_are_bounded(compile_kernel):
    f, x = compile_kernel('extern "C" __global__ void f(int *x) { }', "f"), cupy.zeros(1, "i4")
    parameter_layout._known.clear()
    for _ in range(parameter_layout._MOST_KNOWN + 10):
        kind = type("Buffer", (), {"gpudata": x.data.ptr})
        bridge.launch(f, kind(), grid=1, block=1)
    assert len(parameter_layout._known) == 10

"""What a kernel's pointers lead to: the compiler tells, and an array that does not fit raises."""

import re
import warnings

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from cupy.cuda import runtime, texture
from exporters import Exporter
from pycuda import gpuarray

import bridge
from bridge.hooks import LaunchPolicy
from bridge.legacy import replacements

BYTES = 96
P12 = np.dtype([(axis, "f4") for axis in "xyz"])
P24 = np.dtype([("id", "i4"), ("position", "f8"), ("flag", "u1")], align=True)
P48 = np.dtype(
    {"names": ["id", "at", "flag"], "formats": ["i4", gpuarray.vec.float4, "u1"],
     "offsets": [0, 16, 32], "itemsize": 48}
)  # fmt: skip

SOURCE = """
struct __align__(4) __half2 { unsigned short x, y; };  // as in cuda_fp16.h
struct point { float x, y, z; }; struct particle { int id; float4 at; char flag; };
enum mode { slow, fast };
typedef float (*operation)(float);
extern "C" {
__global__ void points(point *p) { p[1].x = 1; }
__global__ void particles(particle *p) { p[1].at.x = 1; }
__global__ void anything(void *p) { }
__global__ void modes(mode *p) { p[0] = fast; }
__global__ void table(float **p) { if (p) p[1][0] = 9; }
__global__ void rows(float (*p)[3]) { p[1][0] = 4; }
__global__ void apply(operation f) { }
__global__ void quads(float4 *p) { p->x = 1; }
__global__ void complexes(float2 *p) { p->x = 1; }
__global__ void pairs(__half2 *p) { }
__global__ void wide(double *p) { }
__global__ void add(float *out, const float *in) { out[threadIdx.x] += in[threadIdx.x]; }
__global__ void vectors(float *out, float3 v, float2 w) { *out = v.x + v.y + v.z + w.x + w.y; }
__global__ void set(float *out, float a, int n) { out[0] = a; }
__global__ void by_value(particle p, float *out) { out[0] = p.at.x; }
__global__ void move(float *out, const float *in, point by) { out[0] = in[0] + by.x; }
}
"""
# Arrays by dtype, perhaps with an offset and a size in bytes; a message is that of an error.
ARRAYS = {
    "points": {
        **dict.fromkeys([P12, "u1", "V12", "V1"]),
        "f4": "float32, but the kernel takes items of 12 bytes: give a.view(numpy.uint8)",
        P24: "takes items of 12 bytes: yours have 24",
        ("u1", 0, 40): "40 bytes, which end within an item",
    },
    "particles": {
        **dict.fromkeys([P48, "V48", "u1"]),
        P24: "items of 48 bytes: yours have 24; module.dtype",
        P12: 'yours have 12; module.dtype("NAME") of a bridge.SourceModule is the dtype of its',
        ("u1", 8): "but the kernel reads items at multiples of 16; pass a copy",
    },
    "anything": dict.fromkeys(["f8", P12, ("u1", 1)]),
    "modes": {**dict.fromkeys(["i4", "u4"]), "i8": "is an array of int64, but"},
    "table": {
        "f4": "uint64: for pointers to pointers, pass an array of addresses",
        "i4": "is an array of int32, but",
    },
    "rows": {**dict.fromkeys(["f4", "V4", P12]), "f8": "float64, but the kernel takes float32"},
    "quads": {
        **dict.fromkeys(["f4", gpuarray.vec.float4, ("f4", 16)]),
        ("f4", 0, 24): "24 bytes, which end within an item",
        ("f4", 4): "multiples of 16",
        "i4": "is an array of int32, but",
    },
    "complexes": {
        "c16": "complex128, but the kernel takes complex64: pass a.astype(numpy.complex64)",
        "c8": None,
    },
    "pairs": {**dict.fromkeys(["f2", "u2"]), "f4": "float32", ("f2", 2): "multiples of 4"},
    "wide": {("f8", 8): None, ("f8", 4): "multiples of 8"},
    "apply": {"f4": "but the kernel takes a function; its address on the device"},
}  # fmt: skip
CASES = [(name, array) for name, arrays in ARRAYS.items() for array in arrays]


@pytest.fixture(scope="module")
def kernel():
    return bridge.SourceModule(SOURCE, no_extern_c=True).get_function


def make(array):
    """Return zeros of a dtype, from an offset on, of a number of bytes."""
    given = array if isinstance(array, tuple) else (array,)
    dtype, offset, nbytes = given + ("u1", 0, BYTES)[len(given) :]
    return cupy.zeros(offset + nbytes, "u1")[offset:].view(dtype)


@pytest.mark.parametrize("kind", [bridge.as_cupy, bridge.as_pycuda, Exporter])
@pytest.mark.parametrize(("name", "array"), CASES)
def test_an_array_passes_or_is_refused(name, array, kind, kernel):
    x, message = make(array), ARRAYS[name][array]
    if kind is Exporter and x.dtype.fields:
        message = message and "items of"  # it tells of bytes only
    if message is None:
        kernel(name)(kind(x), block=1)
        return
    with pytest.raises((TypeError, ValueError)) as info:
        kernel(name)(kind(x), block=1)
    text = str(info.value)
    assert f"{name}: argument 0 (`" in text
    assert message in text
    assert not x.view("u1").get().any()


INNER = np.dtype([("c", "i1"), ("d", "f8")], align=True)
TURNED = np.dtype([("d", "f8"), ("c", "i1")], align=True)
FIELDS = {"w": "f4", "m": "i4", "in": INNER, "a": ("i4", 3), "ins": (INNER, 2), "at": ("f4", 3)}


def struct(**fields):
    return np.dtype(list(fields.items()), align=True)


def test_fields_of_structs_are_compared_by_name():
    source = """struct inner { char c; double d; };
    struct xyz { float x, y, z; };
    struct P { float w; int m; inner in; int a[3]; inner ins[2]; xyz at; };
    __global__ void f(float *out, const P *p, P q) { out[0] = p->w + q.m; }"""
    f, out = bridge.SourceModule(source).get_function("f"), cupy.zeros(1, "f4")
    one = np.zeros((), struct(**FIELDS))
    one["w"] = 2
    for m in range(3):
        one["m"] = m
        f(out, gpuarray.to_gpu(one.reshape(1)), one[()], block=1)
        assert out[0] == 2 + m

    def call(dtype):
        f(out, cupy.zeros(1, dtype), one[()], block=1)

    call(struct(**FIELDS, end_pad="i4"))
    for fields, told in (
        (
            {"m": "i4", **FIELDS},
            "the field 'm' in the bytes 0 to 4, and the kernel in 4 to 8; list",
        ),
        ({"in": TURNED}, "the field 'in.d' in the bytes 8 to 16, and the kernel in 16 to"),
        ({"a": ("i2", 5)}, "the field 'a' in the bytes 24 to 34, and the kernel in 24 to"),
        ({"ins": (TURNED, 2)}, "the field 'ins.0..d' in the bytes 40 to 48, and the kernel in 48"),
        ({"w": "i4"}, "int32 in the field 'w', and the kernel float32"),
        ({"a": ("f4", 3)}, "float32 in the field 'a', and the kernel int32"),
    ):
        dtype = struct(**(fields if "m" in fields else FIELDS | fields))
        for _ in range(2):
            with pytest.raises(TypeError, match=f"1 ..const P .p.. has {told}"):
                call(dtype)
        for value in np.zeros((), dtype)[()], np.zeros(1, dtype):
            with pytest.raises(TypeError, match=f"2 ..P q.. has {told}"):
                f(out, cupy.zeros(1, one.dtype), value, block=1)
    other = struct(**{"x" if name == "w" else name: kind for name, kind in FIELDS.items()})
    told = "fields that are no plain members of the kernel's struct: x; th"
    with pytest.warns(UserWarning, match=told):
        call(other)
    call(other)


STRUCTS = """
enum E { one };
struct Q { int a; };
struct __align__(16) P { char kind; // of it
  double x, y[1]; const Q *q; };
typedef struct tag { float w; float4 v; enum E e; unsigned long long *p; bool z; } S, *SP;
struct bits { int a : 3; };  struct more : Q { int b; };  struct nested { Q q; };
struct method { int a; void f() {} };  struct array { int a; float b[3]; };
template <class T> struct T1 { T a; };
__global__ void f(S *s, float *out) { out[0] = s->w + s->v.z; }
"""


def test_the_compiler_gives_a_struct_s_dtype():
    text = STRUCTS.replace("template", "} template").replace("T a; };", 'T a; }; extern "C" {')
    module = bridge.SourceModule(text)
    assert module.dtype("P") == struct(kind="i1", x="f8", y="f8", q="u8")
    assert module.dtype("P").itemsize == 32
    assert module.dtype("S") == module.dtype("tag")
    one = np.zeros(1, module.dtype("S"))
    one["w"], one["v"]["z"] = 2, 7
    out = cupy.zeros(1, "f4")
    module.get_function("f")(gpuarray.to_gpu(one), out, block=1)
    assert out[0] == 9
    assert [one.dtype[name].str for name in ("w", "e", "p", "z")] == ["<f4", "<i4", "<u8", "|b1"]
    for name, others in {
        **dict.fromkeys(["bits", "more", "method", "E", "f", "no"], "; describe it yourself"),
        **{"nested": " (others: q)", "array": " (others: b)", "T1": " (others: a)"},
    }.items():
        told = f"'{name}' of members that are numbers, vectors, enums or pointers{others}"
        with pytest.raises(ValueError, match=re.escape(told)):
            module.dtype(name)


def test_addresses_and_allocations_pass(kernel):
    x = cupy.zeros(4, "f4")
    addresses = cupy.array([0, x.data.ptr], np.uintp)
    for value in addresses, addresses.view(np.int64), addresses.data:
        x.fill(0)
        kernel("table")(value, block=1)
        assert x[0] == 9
    kernel("table")(None, block=1)
    memory = drv.mem_alloc(BYTES)
    kernel("points")(memory, block=1)
    kernel("apply")(np.uintp(0), block=1)
    with pytest.raises(TypeError, match="is 5, but the kernel takes a function"):
        kernel("apply")(5, block=1)
    with pytest.raises(ValueError, match="multiples of 4; pass a copy"):
        kernel("points")(np.uintp(int(memory) + 1), block=1)


# ---- orders --------------------------------------------------------------------------------------


def images(kind):
    x = cupy.arange(4, dtype="f4").reshape(2, 2)
    return [kind(array) for array in (x, x + 1, x.T, x.copy(order="F"), x.ravel())]


@pytest.mark.parametrize("kind", [bridge.as_cupy, bridge.as_pycuda, Exporter])
def test_arrays_of_two_orders_are_refused(kind, kernel):
    """The kernel would read one of them transposed."""
    add = kernel("add")
    c, other, turned, fortran, flat = images(kind)
    for right in [(c, other), (turned, fortran), (c, flat)]:
        add(*right, block=4)
    before = bridge.as_cupy(c).get()
    match = r"add: argument 1 is in Fortran order, but argument 0 in C order; .*: add\(float \*out"
    with pytest.raises(ValueError, match=match):
        add(c, turned, block=4)
    with pytest.raises(ValueError, match="argument 0 is in Fortran order, but argument 1 in C"):
        add(fortran, other, block=4)
    assert np.array_equal(bridge.as_cupy(c).get(), before)
    add(c, turned, block=4, strided=True)
    assert not np.array_equal(bridge.as_cupy(c).get(), before)


def test_a_lone_array_in_fortran_order_warns_once(kernel, compile_kernel):
    add, told = kernel("add"), "add: argument %d is in Fortran order; .*strided=True"
    _, _, turned, _, flat = images(bridge.as_pycuda)
    add(flat, turned, block=4, strided=True)
    for index, args in (1, (flat, turned)), (0, (turned, flat)):
        with pytest.warns(UserWarning, match=told % index) as seen:
            add(*args, block=4)
        assert [one.filename for one in seen] == [__file__]
        add(*args, block=4)
        add.prepare("PP").prepared_call((1, 1), (4, 1, 1), *args)
    f = compile_kernel('extern "C" __global__ void f(float *x) {}', "f")
    for _ in range(2):  # each launch: bridge does not know the kernel
        with pytest.warns(UserWarning, match="launch: argument 0 is in Fortran order"):
            bridge.launch(f, turned, block=4)


def test_orders_of_prepared_calls_handlers_and_long_axes(kernel):
    add = kernel("add")
    c, _, turned, *_ = images(bridge.as_cupy)
    with pytest.raises(ValueError, match="argument 1 is in Fortran order"):
        add.prepare("PP").prepared_call((1, 1), (4, 1, 1), c, turned)
    host = np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match="argument 1 is in Fortran order"):
        add(c, drv.In(np.asfortranarray(host)), block=4)
    add(c, cupy.ones((4, 1), "f4").T, block=4)  # in both orders
    add.prepared_call((1, 1), (4, 1, 1), c, turned, strided=True)
    with pytest.raises(ValueError, match="items of 16 bytes would lie across its rows"):
        kernel("quads")(cupy.zeros((2, 4), "f4", order="F"), block=1)


def test_arguments_that_are_passed_as_to_other_libraries(kernel):
    x = cupy.zeros(4, "f4")
    for arguments in ((1,), (4,), (x, 1.0, 1)), ((x,), 1.0, 1), ([x], 1.0, 1):
        with pytest.raises(TypeError, match=r"argument 0 .* is a (tuple|list); pass the arg"):
            kernel("set")(*arguments, block=1)
    assert not x.any()


# ---- values --------------------------------------------------------------------------------------


def test_vectors_and_numbers(kernel):
    out, v = cupy.zeros(1, "f4"), gpuarray.vec.make_float3(1, 2, 3)
    kernel("vectors")(out, v, 4 + 5j, block=1)
    assert out[0] == 15
    match = r"\(`float3 v`\) is \(1, 2, 3\), .* pass pycuda.gpuarray.vec.make_float3\(...\)"
    with pytest.raises(TypeError, match=match):
        kernel("vectors")(out, (1, 2, 3), 1j, block=1)
    kernel("vectors")(out, v, np.complex128(4 + 5j), block=1)
    assert out[0] == 15
    kernel("set")(out, np.sqrt(2.0), 1, block=1)  # a numpy.float64 is a Python float
    assert out[0] == np.float32(np.sqrt(2.0))


def test_numpys_numbers_are_converted_where_they_fit():
    source = "__global__ void f(double *x, int n, double r, float s, unsigned char c) {%s}"
    f = bridge.SourceModule(source % " x[0] = n + r + s + c; ").get_function("f")
    x = cupy.zeros(1)
    size = np.prod(x.shape)
    for n, r, s, c in (size, np.float32(2), np.int8(4), np.int64(8)), (np.uint8(1), size, 5, 8):
        f(x, n, r, s, c, block=1)
        assert x[0] == float(n) + r + s + c
    for args, told in (
        ((np.int64(2**40), 0, 0, 0), "1 (`int n`) is 1099511627776, which does not fit into int32"),
        ((0, 0, np.float64(1e300), 0), "3 (`float s`) is 1e+300, which does not fit into float32"),
        ((0, 0, 0, np.int64(-1)), "4 (`unsigned char c`) is -1, which does not fit into uint8"),
    ):
        with pytest.raises(OverflowError, match=re.escape(f"f: argument {told}")):
            f(x, *args, block=1)
    vectors = bridge.SourceModule("__global__ void v(float2 x) { }").get_function("v")
    for value in 1e300 + 0j, np.complex128(1e300):
        with pytest.raises(OverflowError, match=r"v: argument 0 .* does not fit into complex64"):
            vectors(value, block=1)
    for wrong in np.float32(3), np.timedelta64(3), np.complex64(3):
        with pytest.raises(TypeError, match=r"1 \(`int n`\) is the numpy.*kernel takes int32"):
            f(x, wrong, 0, 0, 0, block=1)


def test_texture_and_surface_objects_are_told_apart():
    source = "__global__ void f(cudaSurfaceObject_t s, const cudaTextureObject_t t, size_t n) { }"
    f = bridge.SourceModule(source).get_function("f")
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, 8, 8, 0, runtime.cudaArraySurfaceLoadStore)
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    image = texture.TextureObject(resource, texture.TextureDescriptor())
    surface = texture.SurfaceObject(resource)
    f(surface, image, image, block=1)
    for index, args in (0, (image, image, 1)), (1, (surface, surface, 1)):
        match = rf"{index} .* is a cupy.cuda.texture.\w+Object, but the kernel takes a cuda(\w+)_t"
        with pytest.raises(TypeError, match=match + r"; pass a cupy.cuda.texture.\1$"):
            f(*args, block=1)
    with pytest.raises(TypeError, match=r"1 .* is device memory .* takes a cudaTextureObject_t"):
        f(surface, drv.mem_alloc(8), 1, block=1)
    g = bridge.SourceModule("__global__ void g(float *x) { }").get_function("g")
    with pytest.raises(TypeError, match=r"0 .* is a .*TextureObject, but the kernel takes a poin"):
        g(image, block=1)


def test_the_advice_on_structs_is_what_to_do(kernel):
    kernel("by_value")(bytes(48), cupy.zeros(1, "f4"), block=1)
    with pytest.raises(TypeError, match=r"; module\.dtype\(\"NAME\"\) of a bridge.SourceModule"):
        kernel("by_value")(np.zeros((), P24)[()], cupy.zeros(1, "f4"), block=1)
    value = np.zeros((), bridge.SourceModule(SOURCE, no_extern_c=True).dtype("particle"))
    kernel("by_value")(value, cupy.zeros(1, "f4"), block=1)


def test_host_memory_that_the_device_reaches(kernel):
    managed = drv.managed_zeros((2, 6), np.float32, mem_flags=drv.mem_attach_flags.GLOBAL)
    pinned = drv.pagelocked_zeros((2, 6), np.float32, mem_flags=drv.host_alloc_flags.DEVICEMAP)
    for host in managed, pinned:
        kernel("set")(host, 3, 1, block=1)
        kernel("set")(host[1], 4, 1, block=1)
        drv.Context.synchronize()
        assert host[:, 0].tolist() == [3, 4]
        with pytest.raises(ValueError, match="not contiguous"):
            kernel("set")(host[:, 1], 4, 1, block=1)
        with pytest.raises(TypeError, match="array of float32, but the kernel takes float64"):
            kernel("wide")(host, block=1)


# ---- names ---------------------------------------------------------------------------------------

TEMPLATES = """
__constant__ float weight[4];
namespace filters {
template <class T> __global__ void blur(T *x) { x[threadIdx.x] *= weight[threadIdx.x]; }
}
extern "C" { __constant__ int shift; __device__ double total = 1; }
extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= weight[threadIdx.x]; }
"""  # fmt: skip


def test_kernels_of_macros_and_of_headers(tmp_path):
    """Their names are no words before a parenthesis in the source; the code has them."""
    (tmp_path / "more.cuh").write_text("__global__ void add(float *x, float a) { *x += a; }")
    module = bridge.SourceModule(
        "#define K(name, op) __global__ void name(float *x, float a) { *x = *x op a; }\n"
        '#include "more.cuh"\n K(scale, *)',
        include_dirs=[str(tmp_path)],
    )
    x = cupy.full(1, 3, np.float32)
    for name, value in ("scale", 6), ("add", 8):
        kernel = module.get_function(name)
        kernel(x, 2, block=1)
        assert x.tolist() == [value]
        with pytest.raises(TypeError, match="is an array of float64, but the kernel takes float32"):
            kernel(cupy.zeros(1), 2, block=1)


def test_types_that_are_not_known_are_said():
    module = bridge.SourceModule("__global__ void f(float *x) { }", options=["-std=c++11"])
    with pytest.warns(UserWarning, match="the types of the parameters of 'f' are not known"):
        f = module.get_function("f")
    f(cupy.zeros(1), block=1)


def test_names_that_are_not_there():
    module = bridge.SourceModule(TEMPLATES, no_extern_c=True)
    said = r"source has blur \(a template\), scale; list instances .*name_exp"
    with pytest.raises(drv.LogicError, match=said):
        module.get_function("filters::blur<float>")
    module = bridge.SourceModule("__device__ void f(float *x) {}")
    with pytest.raises(drv.LogicError, match="its source has no function with __global__; list"):
        module.get_function("f")
    module = bridge.SourceModule(TEMPLATES, no_extern_c=True)
    with pytest.raises(drv.LogicError, match="'wieght' .*; its source has shift, total, weight; "):
        module.get_global("wieght")
    with pytest.raises(ValueError, match=r"name_expressions has 'blur<float>', but the source has"):
        bridge.SourceModule(TEMPLATES, no_extern_c=True, name_expressions=["blur<float>"])
    for keywords in {}, {"no_extern_c": True, "backend": "nvcc"}:
        with pytest.raises(ValueError, match="they are names of C"):
            bridge.SourceModule(TEMPLATES, name_expressions=["f<int>"], **keywords)
    for names in "f<int>", [3]:
        with pytest.raises(TypeError, match="name_expressions"):
            bridge.SourceModule(TEMPLATES, no_extern_c=True, name_expressions=names)


# ---- programs that nobody edited -----------------------------------------------------------------


@pytest.fixture
def lenient(monkeypatch):
    """Functions of a module under `bridge run`."""
    policy = LaunchPolicy(follows_pycuda=True, mismatch=replacements._warn_of_mismatch)
    monkeypatch.setattr(replacements._SourceModule, "_policy", policy)
    return replacements._SourceModule(SOURCE, no_extern_c=True).get_function


def test_a_mismatch_of_pycudas_arrays_warns_once_a_line(lenient):
    ints = gpuarray.zeros(4, np.int32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            lenient("set")(ints, 1, 1, block=1)
        lenient("set")(ints, 1, 1, block=1)
    told = [(one.filename, "argument 0" in str(one.message)) for one in seen]
    assert told == [(__file__, True)] * 2
    assert "bridge run --strict PROGRAM raises" in str(seen[0].message)
    assert ints.get().view(np.float32)[0] == 1


@pytest.mark.parametrize("dtype", ["S4", "U1", "M8[s]", ">f4", [("a", "S4")]], ids=str)
def test_dtypes_that_cupy_lacks_go_by_their_address(lenient, kernel, dtype):
    a = gpuarray.to_gpu(np.zeros(8, dtype))
    for function, array in (lenient, a[2:4]), (lenient, a[4:]), (kernel, a[6:]), (kernel, a):
        with pytest.warns(UserWarning, match=r"0 .*(is not one that both|native byte order).*addr"):
            function("set")(array, 1, 1, block=1)
        assert array.get().view(np.float32)[0] == 1
    with pytest.raises(TypeError, match="is not one that both|is not in native byte order"):
        bridge.as_cupy(a)


def test_a_wrong_name_grid_or_block_has_one_traceback(kernel):
    x = cupy.zeros(4, np.float32)
    for name, sizes in (
        ("nosuch", {}),
        *(("set", {"block": size}) for size in (-1, 4096)),
        *(("set", {"block": 1, "grid": size}) for size in (2**40, -1)),
    ):
        with pytest.raises((drv.Error, ValueError)) as info:
            kernel(name)(x, 1, 1, **sizes)
        assert info.value.__cause__ is None
        assert info.value.__suppress_context__ or info.value.__context__ is None


def test_a_mismatch_of_other_arrays_raises(lenient):
    c, _, turned, *_ = images(bridge.as_pycuda)
    with pytest.raises(TypeError, match="is an array of int32"):
        lenient("set")(cupy.zeros(4, "i4"), 1, 1, block=1)
    with pytest.raises(ValueError, match="argument 1 is in Fortran order"):
        lenient("add")(bridge.as_cupy(c), turned, block=4)
    a = gpuarray.to_gpu(np.zeros((2, 2), np.float32))
    b = gpuarray.to_gpu(np.zeros((2, 2), np.float32, order="F"))
    with pytest.warns(UserWarning, match="argument 1 is in Fortran order") as seen:
        lenient("add")(a, b, block=4)
    assert seen[0].filename == __file__
    for value in np.zeros((), P12)[()], np.zeros((), P12), bytes(12):  # no array beside them
        with pytest.warns(UserWarning, match="argument 1 is in Fortran order"):
            lenient("move")(a, b, value, block=4)
    with pytest.warns(UserWarning, match="is not contiguous"):
        lenient("set")(a[:, 1], 1, 1, block=1)

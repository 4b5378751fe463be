"""Kernels, called, prepared or by `launch`: their arguments, checks, and the order of a launch."""

import functools
import pickle
import threading
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from contexts import interrupted_in, second_context
from exporters import DLPackExporter, Exporter, Plain
from other_threads import on_a_thread, on_threads
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from races import CUPY_STREAMS, PYCUDA_STREAMS, every_pair

import bridge
import bridge.kernels.function
from bridge.interop.dtypes import HOLDS_BFLOAT16

N = 1000
POINT = np.dtype([("name", "u1"), ("x", "<f8"), ("y", "<f4")], align=True)
PAIR = np.dtype([("a", "<f4"), ("b", "<f4")], align=True)

SOURCE = r"""
#include <stdint.h>
struct point { unsigned char name; double x; float y; };
typedef float real;
typedef struct { float a, b; } pair;

__global__ void fill(int *p, int n, int v)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }

__global__ void copy(int *to, const int *from, int n)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }

__global__ void scalars(double *out, bool b, signed char c, unsigned short s, int i,
                        float f, double d, long long l, unsigned char u)
{ out[0] = b; out[1] = c; out[2] = s; out[3] = i; out[4] = f; out[5] = d; out[6] = l; out[7] = u; }

__global__ void half_bits(unsigned int *out, unsigned short h, unsigned short g)
{ out[0] = h; out[1] = g; }

__global__ void unsigned_bits(unsigned long long *out, unsigned a, size_t b)
{ out[0] = a; out[1] = b; }

__global__ void structs(double *out, char c, struct point p, int i)
{ out[0] = c; out[1] = p.name; out[2] = p.x; out[3] = p.y; out[4] = i; }

__global__ void named(real *out, real a, pair p, int8_t b)
{ out[0] = a; out[1] = p.a; out[2] = p.b; out[3] = b; }

__global__ void vectors(float *out, float2 w, float3 v) { out[0] = w.y; out[1] = v.x + v.y + v.z; }

__global__ void none(void) { }

__global__ void add_three(float *to, const float *a, const float *b, const float *c)
{ int i = threadIdx.x; to[i] = a[i] + b[i] + c[i]; }

__global__ void is_null(int *out, const float *p) { out[0] = p == 0; }

__global__ void where(int *out)
{
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z) return;
    out[0] = gridDim.x; out[1] = gridDim.y; out[2] = gridDim.z;
    out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
}

__global__ void reverse(int *x, int n)
{
    __shared__ int fixed[5000];
    extern __shared__ int kept[];
    fixed[threadIdx.x] = threadIdx.x;
    for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = kept[n - 1 - i] + fixed[i % blockDim.x] - threadIdx.x;
}
"""


@pytest.fixture(scope="module")
def module():
    return bridge.SourceModule(SOURCE)


@pytest.fixture(scope="module")
def plain(compile_kernel):
    """PyCUDA's own functions."""
    source = SOURCE.replace("#include <stdint.h>", "typedef signed char int8_t;")  # NVRTC's own
    return functools.cache(lambda name: compile_kernel(f'extern "C" {{ {source} }}', name))


@pytest.fixture
def forget(monkeypatch):
    """Let the compiler report no types, as nvcc's does."""

    def forget():
        monkeypatch.setattr("bridge.kernels.module.read_signature", lambda *_: None)
        monkeypatch.setattr("bridge.kernels.module.warn", lambda _: None)

    return forget


@pytest.fixture(params=["known", "unknown"])
def ours(request, module, forget):
    """A kernel whose parameters are known, and one whose are not."""
    if request.param == "unknown":
        forget()
    return module.get_function


@pytest.fixture(params=["known", "unknown", "launch"])
def function(request, module, plain, forget):
    """The same, and a function of PyCUDA's own, as `launch` takes it."""
    if request.param == "unknown":
        forget()
    if request.param != "launch":
        return module.get_function
    return lambda name: (
        lambda *args, **keywords: bridge.launch(plain(name), *args, **{"grid": 1, **keywords})
    )


@pytest.fixture
def known(module):
    return module.get_function


ONE = {"block": (32, 1, 1)}


class Holder(drv.PointerHolderBase):
    """As in a gist that many copied: PyCUDA reads `gpudata`, and never calls `get_pointer`."""

    def __init__(self, gpudata):
        super().__init__()
        self.gpudata = gpudata

    def get_pointer():
        pass


# --- arguments -------------------------------------------------------------------------------


MAKE = {
    "GPUArray": lambda a: a,
    "cupy.ndarray": bridge.as_cupy,
    "array interface": lambda a: Exporter(bridge.as_cupy(a)),
    "DLPack": lambda a: DLPackExporter(bridge.as_cupy(a)),
    "an address": lambda a: np.uintp(int(a.gpudata)),
    "a pointer holder": lambda a: Plain(bridge.as_cupy(a).data),
    "a holder with gpudata": lambda a: Holder(int(a.gpudata)),
    "a holder of an allocation": lambda a: Holder(a.gpudata),
    "what holds an allocation": lambda a: SimpleNamespace(gpudata=a.gpudata),
    "what holds an int": lambda a: SimpleNamespace(gpudata=int(a.gpudata)),
    "what holds an address": lambda a: SimpleNamespace(gpudata=np.uintp(int(a.gpudata))),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_arrays_of_any_library_are_taken(function, make):
    a = gpuarray.zeros(N, np.int32)
    function("fill")(make(a), np.int32(N), np.int32(7), **ONE)
    assert (a.get() == 7).all()


ALLOCATORS = {
    "mem_alloc": lambda: drv.mem_alloc,
    "DeviceMemoryPool": lambda: DeviceMemoryPool().allocate,
    "pycuda_allocator": bridge.pycuda_allocator,
}
GRID, BLOCK = (1, 1), (32, 1, 1)
FORMS = {
    "call": lambda fill, p: fill(p, np.int32(N), np.int32(7), **ONE),
    "on a stream": lambda fill, p: fill(p, N, 7, **ONE, stream=cupy.cuda.Stream(non_blocking=True)),
    "prepared_call": lambda fill, p: fill.prepared_call(GRID, BLOCK, p, N, 7),
    "prepared_async_call": lambda fill, p: fill.prepared_async_call(
        GRID, BLOCK, cupy.cuda.Stream(non_blocking=True), p, N, 7
    ),
    "prepared_timed_call": lambda fill, p: fill.prepared_timed_call(GRID, BLOCK, p, N, 7)(),
    "launch": lambda fill, p: bridge.launch(fill, p, N, 7, grid=1, block=32),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", [*ALLOCATORS, np.int64, np.uintp])
def test_device_allocations_and_addresses_are_taken(known, kind, form):
    allocator = ALLOCATORS[kind]() if kind in ALLOCATORS else drv.mem_alloc
    a = gpuarray.zeros(N, np.int32, allocator=allocator)
    form(known("fill").prepare("Pii"), a.gpudata if kind in ALLOCATORS else kind(int(a.gpudata)))
    drv.Context.synchronize()
    assert (a.get() == 7).all()


EMPTY = {
    "None": lambda: None,
    "cupy.ndarray": lambda: cupy.zeros(0, np.float32),
    "GPUArray": lambda: gpuarray.GPUArray((0, 3), np.float32),
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_what_has_no_memory_is_a_null_pointer(function, make):
    x = cupy.zeros(1, np.int32)
    function("is_null")(x, make(), **ONE)
    assert x.get()[0] == 1


SCALARS = [np.int8(-3), np.uint16(65535), np.int32(-7), np.float32(0.5), np.float64(1e300)]
SCALARS += [np.int64(-(2**40)), np.uint8(200)]
VALUES = [1, -3, 65535, -7, 0.5, 1e300, -(2**40), 200]


HALVES = np.array([1.5, -0.1], np.float16)
STRUCT = np.int8(1), np.array((2, 3.5, 4.5), POINT)[()], np.int32(6)
NAMED = np.float32(1), np.array((2, 3), PAIR)[()], np.int8(4)
VECTORS = gpuarray.vec.make_float2(0, 4), gpuarray.vec.make_float3(1, 2, 3)
# Kernel, type of its output, arguments behind that, and what it finds.
WITH_A_WIDTH = {
    "bool": ("scalars", "f8", (True, *SCALARS), VALUES),
    "numpy.bool": ("scalars", "f8", (np.True_, *SCALARS), VALUES),
    "float16": ("half_bits", "u4", HALVES, HALVES.view(np.uint16).tolist()),
    "a struct, where C puts it": ("structs", "f8", STRUCT, [1, 2, 3.5, 4.5, 6]),
    "types of the source's own, by size": ("named", "f4", NAMED, [1, 2, 3, 4]),
    "CUDA vectors": ("vectors", "f4", VECTORS, [4, 6]),
}
OF_ONE = np.array(1, np.int8), np.array([(2, 3.5, 4.5)], POINT), np.array([6], np.int32)
COMPLEX = np.float32(1), np.complex64(2 + 3j), np.int8(4)
INTS, NEGATIVE = (np.int32(256), 0, 0, 0, 3, 2**60, 0, 0), (np.int32(-1), np.int64(-1))
BY_THE_PARAMETER = {
    "ints for a bool and floats": ("scalars", "f8", INTS, [1, 0, 0, 0, 3, 2.0**60, 0, 0]),
    "negative ints for unsigned": ("unsigned_bits", "u8", NEGATIVE, [2**32 - 1, 2**64 - 1]),
    "complex numbers for a struct and pairs": ("named", "c8", COMPLEX, [1 + 2j, 3 + 4j]),
    "host arrays of one": ("structs", "f8", OF_ONE, [1, 2, 3.5, 4.5, 6]),
}


@pytest.mark.parametrize("case", WITH_A_WIDTH.values(), ids=WITH_A_WIDTH)
def test_what_has_a_width_arrives_as_it_is(function, case):
    kernel, dtype, args, expected = case
    out = cupy.zeros(len(expected), dtype)
    function(kernel)(out, *args, **ONE)
    assert out.get().tolist() == expected


@pytest.mark.parametrize("case", BY_THE_PARAMETER.values(), ids=BY_THE_PARAMETER)
def test_other_numbers_take_the_parameters_type(known, case):
    test_what_has_a_width_arrives_as_it_is(known, case)


BY_VALUE = """
enum mode { fast, slow };
struct box { float *of; };
__global__ void vectors(float *out, float2 v, const float2 *w) { out[0] = v.x + v.y + w[0].y; }
__global__ void values(int *out, mode m, box b) { out[0] = m; out[1] = b.of != 0; }
"""


def test_structs_and_vectors_go_by_value_only_as_what_they_are():
    module = bridge.SourceModule(BY_VALUE)
    vectors, values = map(module.get_function, ("vectors", "values"))
    x, n, box = cupy.zeros(4, "f"), cupy.zeros(2, "i"), np.zeros((), [("of", "u8")])[()]
    for v in (np.complex64(1 + 2j), gpuarray.vec.make_float2(1, 2), np.array([1, 2], "f")):
        vectors(x, v, cupy.full(1, 4j, "F"), **ONE)
        assert x[0] == 7
    values(n, np.int32(1), box, **ONE)
    assert n.tolist() == [1, 0]
    pair = gpuarray.vec.make_int2(1, 2)
    for call, args in (
        (vectors, (x, pair, x)),
        (vectors, (x, np.float64(1), x)),
        (vectors, (x, x, x)),
        (vectors, (x, np.complex64(1), cupy.zeros(1, gpuarray.vec.int2))),
        (values, (n, np.float32(1), box)),
        (values, (n, np.int32(1), x)),
        (values, (n, np.int32(1), None)),
    ):
        with pytest.raises(TypeError, match="takes (8 bytes|4 bytes|float32|..'x'|a CUDA v)"):
            call(*args, **ONE)


class Handler(drv.ArgumentHandler):
    """Of a user's own."""

    def post_call(self, stream):
        drv.memcpy_dtoh(self.array, self.get_device_alloc())


def test_programs_use_a_function_as_pycudas():
    fill, x = bridge.SourceModule(SOURCE).module.get_function("fill"), cupy.zeros(N, np.int32)
    fill.block = (32, 1, 1)
    fill(x, N, 5, block=fill.block)
    assert (x == 5).all()
    assert isinstance(fill, drv.Function)
    assert type(pickle.loads(pickle.dumps(fill))) is bridge.kernels.function.Function
    count = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    assert count(fill.ptr, 64, 0) >= count(fill.ptr, 1024, 0) > 0
    for wrong in "nosuch", "shared_size":
        with pytest.raises(AttributeError, match=f"'Function' object has no attribute '{wrong}'"):
            getattr(fill, wrong)


def test_a_kernel_without_parameters(function):
    function("none")(**ONE)


def test_arguments_that_copy_are_taken(function):
    source, target = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    function("copy")(drv.Out(target), drv.In(source), np.int32(N), **ONE)
    assert (target == source).all()
    for stream in None, drv.Stream(1):
        with cupy.cuda.Stream(non_blocking=True):  # the copy may arrive late: `test_hostcuda`
            out, given = cupy.zeros(N, np.int32), drv.In(source)  # to free it would wait
            function("copy")(out, given, np.int32(N), stream=stream, **ONE)
            assert (out.get() == source).all()
        for kind in drv.InOut, Handler:
            both = np.zeros(N, np.int32)
            with cupy.cuda.Stream(non_blocking=True):
                function("fill")(kind(both), np.int32(N), np.int32(7), stream=stream, **ONE)
            assert (both == 7).all()


SCALARS = {
    "a NumPy scalar": np.int32(7),
    "a numpy.void": np.void(np.int32(7).tobytes()),
    "a memoryview": memoryview(np.full(1, 7, np.int32)),
}


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=SCALARS)
def test_in_copies_what_is_no_array(function, scalar):
    x = cupy.zeros(1, np.int32)
    function("copy")(x, drv.In(scalar), np.int32(1), **ONE)
    assert x[0] == 7


def test_in_copies_a_scalar_in_a_prepared_call(known):
    x = cupy.zeros(1, np.int32)
    known("copy").prepare("PPi").prepared_call((1, 1), (32, 1, 1), x, drv.In(np.int32(7)), 1)
    assert x[0] == 7


def test_a_scalar_that_is_copied_is_checked_as_an_array(known):
    x, messages = cupy.zeros(1, np.int32), []
    for wrong in np.float32(7), np.full(1, 7, np.float32), memoryview(np.full(1, 7, np.float32)):
        with pytest.raises(TypeError, match="is an array of float32, but") as info:
            known("copy")(x, drv.In(wrong), 1, **ONE)
        messages.append(str(info.value))
    assert len(set(messages)) == 1
    for kind in drv.Out, drv.InOut:  # a scalar is not writable
        with pytest.raises(TypeError, match="Out with the numpy.int32 7; it copies .*, In also"):
            known("copy")(kind(np.int32(7)), x, 1, **ONE)


class Lazy:
    """An exporter whose array is made when it is asked for."""

    def __init__(self, x):
        self.x = x

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.x.copy().__dlpack__(**keywords)


def test_what_is_exported_for_a_call_lives_until_the_kernel_is_queued(function):
    arrays = [cupy.full(2, number, np.float32) for number in (1, 20, 300)]
    function("add_three")(to := cupy.zeros(2, np.float32), *map(Lazy, arrays), block=2)
    assert to.get().tolist() == [321, 321]


def test_an_empty_slice_may_begin_where_the_memory_ends(function):
    for array in (gpuarray.zeros(128, np.float32)[128:], cupy.zeros(128, np.float32)[128:]):
        function("is_null")(flag := cupy.zeros(1, np.int32), array, block=1)
        assert flag.get().tolist() in ([0], [1])
        assert bridge.as_cupy(array).shape == cupy.from_dlpack(array).shape == (0,)


def test_strides_that_were_changed_in_place_are_seen(known):
    """PyCUDA's ``flags`` stay what they were when they were first asked for."""
    a = gpuarray.zeros((2, 4), np.int32)
    assert a.flags.forc
    known("fill")(a, 8, 1, **ONE)
    a.shape, a.strides, a.size = (2, 2), (16, 4), 4
    with pytest.raises(ValueError, match="argument 0.* is not contiguous"):
        known("fill")(a, 4, 2, **ONE)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("gpudata", [-1, 2**64])
def test_what_is_no_address_is_refused(known, gpudata, form):
    fill = known("fill").prepare("Pii")
    a = gpuarray.GPUArray(3, np.int32, gpudata=gpudata)
    with pytest.raises(ValueError, match=f"gpudata is {gpudata}, which is no address"):
        form(fill, a)


def test_strided_arrays_are_taken_if_said_so(function):
    x = cupy.zeros((10, 10), np.int32)[:, ::2]
    for array in (x, bridge.as_pycuda(x)):
        with pytest.raises(ValueError, match=r"argument 0.* is not contiguous \(shape \(10, 5\), "):
            function("fill")(array, np.int32(5), np.int32(7), **ONE)
        x[:] = 0
        function("fill")(array, np.int32(5), np.int32(7), strided=True, **ONE)
        assert (x.get()[0] == [7, 7, 7, 0, 0]).all()


BFLOAT16 = """
struct __nv_bfloat16 { unsigned short bits; };  // as in cuda_bf16.h
__global__ void brain(unsigned short *out, const __nv_bfloat16 *x, __nv_bfloat16 last)
{
    out[0] = x[0].bits; out[1] = x[1].bits; out[2] = last.bits;
}

__global__ void scale(float *x, float factor) { x[0] *= factor; }
"""


def test_bfloat16(package):
    bfloat16 = np.dtype(package("ml_dtypes").bfloat16)
    module = bridge.SourceModule(BFLOAT16)
    brain, scale = module.get_function("brain"), module.get_function("scale")
    host = np.array([1.5, -3, 0.1], bfloat16)
    bits = host.view(np.uint16)
    out, x = cupy.zeros(3, np.uint16), cupy.asarray(bits)
    for last in host[2], 0.1:
        brain(out, x, last, block=1)
        assert np.array_equal(out.get(), bits)
        out[...] = 0
    for wrong in np.float16, np.float32:
        match = f"of {np.dtype(wrong)}, but the kernel takes bfloat16: .*ml_dtypes.bfloat16"
        with pytest.raises(TypeError, match=match):
            brain(out, cupy.zeros(3, wrong), 1, block=1)
    with pytest.raises(TypeError, match=r"takes bfloat16 by value; pass ml_dtypes.bfloat16"):
        brain(out, x, np.timedelta64(1), block=1)
    for value in 1e300, 10**400:
        with pytest.raises(OverflowError, match="does not fit into bfloat16"):
            brain(out, x, value, block=1)
    assert not out.any()
    if not HOLDS_BFLOAT16:
        return
    with pytest.raises(TypeError, match="array of bfloat16, but the kernel takes float32"):
        scale(gpuarray.GPUArray((3,), bfloat16, gpudata=x.data.ptr), 1, block=1)
    # Its bits, for a kernel that declares them so.
    brain(bridge.as_pycuda(out).view(bfloat16), x, host[2], block=1)
    assert np.array_equal(out.get(), bits)


def test_where_nothing_is_known_nothing_is_guessed(module, forget):
    forget()
    fill, x = module.get_function("fill"), cupy.zeros(N, np.int32)
    for value, message in (
        (5, "argument 1 is 5, but the kernel takes 4 bytes by value; pass a NumPy number"),
        (np.longdouble(1), "argument 1 is a float128 of 16 bytes, but the kernel's"),
    ):
        with pytest.raises(TypeError, match=f"fill: {message}"):
            fill(x, value, np.int32(7), **ONE)


def test_of_nvccs_modules_the_sizes_are_known(nvcc):
    function = bridge.SourceModule(SOURCE, backend="nvcc").get_function("fill")
    x = cupy.zeros(N, np.int32)
    function(x, np.int32(N), np.int32(7), **ONE)
    assert (x.get() == 7).all()
    with pytest.raises(TypeError, match="is a int64 of 8 bytes, but the kernel's parameter has 4"):
        function(x, np.int64(N), np.int32(7), **ONE)
    assert repr(function) == "<bridge.kernels.function.Function fill(8 bytes, 4 bytes, 4 bytes)>"


# --- launches --------------------------------------------------------------------------------

EXTENTS = {
    "ints": ({"grid": 2, "block": 3}, [2, 1, 1, 3, 1, 1]),
    "three": ({"grid": (2, 3, 4), "block": (2, 3, 4)}, [2, 3, 4, 2, 3, 4]),
    "lists of NumPy's": ({"grid": [np.int64(2), 3], "block": [np.int32(2)]}, [2, 3, 1, 2, 1, 1]),
    "shared memory": ({"block": 1, "shared": np.int64(64)}, [1, 1, 1, 1, 1, 1]),
}


@pytest.mark.parametrize(("keywords", "expected"), EXTENTS.values(), ids=EXTENTS)
def test_grid_and_block(function, keywords, expected):
    x = cupy.zeros(6, np.int32)
    function("where")(x, **keywords)
    assert x.get().tolist() == expected


def test_shared_memory_beyond_48_kilobytes(known):
    """The limit belongs to the kernel, not to the object that `get_function` returns."""
    one, other = known("reverse"), known("reverse").prepare("Pi")
    n = 25_000  # ints
    x = cupy.arange(10_000, dtype=np.int32)
    one(x, 10_000, block=256, shared=40_000)  # beside the kernel's own 20,000
    assert (x.get() == np.arange(10_000)[::-1]).all()
    x = cupy.arange(n, dtype=np.int32)
    one(x, n, block=256, shared=4 * n)
    assert (x.get() == np.arange(n)[::-1]).all()
    other.prepared_call((1, 1), (256, 1, 1), x[-15_000:], 15_000, shared_size=60_000)
    assert (x.get()[-15_000:] == np.arange(15_000)).all()
    one(x, n, block=256, shared=4 * n)  # it is not lowered
    other.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000)
    one(x, n, block=256, shared=4 * n)


def test_a_kernel_is_timed_in_seconds(known):
    x, fill = cupy.zeros(N, np.int32), known("fill").prepare("Pii")
    assert 0 <= fill(x, N, 7, time_kernel=True, **ONE) < 1
    assert (x.get() == 7).all()
    assert 0 <= fill.prepared_timed_call(GRID, BLOCK, x, N, 7)() < 1


def test_attributes(known):
    fill = known("fill")
    assert fill.max_threads_per_block == 1024
    assert fill.get_attribute(drv.function_attribute.NUM_REGS) == fill.num_regs > 0
    assert fill.shared_size_bytes == fill.local_size_bytes == 0
    fill.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 60_000)
    fill.set_cache_config(drv.func_cache.PREFER_L1)
    with pytest.raises(drv.LogicError, match="INVALID_VALUE"):
        fill.set_cache_config(99)


def test_a_thread_without_pycuda_may_launch(known):
    """CuPy works on every thread, and so do kernels on CuPy's arrays."""
    x = cupy.zeros(N, np.int32)
    fill = known("fill")
    on_a_thread(lambda: fill(x, N, 7, **ONE))
    assert (x.get() == 7).all()


OF_PYCUDA = {"GPUArray": lambda a: a, "DeviceAllocation": lambda a: a.gpudata}
ON_THREADS = [(form, memory) for form in FORMS for memory in OF_PYCUDA]


@pytest.mark.parametrize(("form", "memory"), [*ON_THREADS, ("call", "InOut")])
def test_pycudas_memory_on_a_thread_without_pycuda_is_refused(known, form, memory):
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    ways = {**OF_PYCUDA, "InOut": lambda a: drv.InOut(a.get())}
    fill, given = known("fill").prepare("Pii"), ways[memory](a)
    with pytest.raises(bridge.ContextError, match="PyCUDA has no context on this thread"):
        on_a_thread(lambda: FORMS[form](fill, given))


def test_a_launch_in_another_context_than_the_primary_one_is_refused(known):
    """Also on other streams, on which CUDA itself would launch: the stream says where."""
    fill, x = known("fill").prepare("Pii"), cupy.zeros(N, np.int32)
    stream = cupy.cuda.Stream(non_blocking=True)

    def on_the_current_one():
        with stream:
            fill(x, N, 7, **ONE)

    calls = [lambda stream=stream: fill(x, N, 7, stream=stream, **ONE) for stream in (None, stream)]
    calls += [on_the_current_one, lambda: fill.prepared_call(GRID, BLOCK, x.data.ptr, N, 7)]
    for _ in "at first", "again":
        x[:] = 0
        with second_context():
            for call in calls:
                with pytest.raises(bridge.ContextError, match="is not the primary context"):
                    call()
        assert not x.any()
        for call in calls:
            x[:] = 0
            drv.Context.synchronize()  # the stream is not ordered with the default one
            call()
            drv.Context.synchronize()
            assert (x.get() == 7).all()


def test_threads_do_not_mix_their_arguments(known):
    fill = known("fill")
    arrays = [cupy.zeros(N, np.int32) for _ in range(8)]
    start = threading.Barrier(len(arrays))

    def work(index):
        start.wait()
        for round_ in range(50):
            fill(arrays[index], N, 100 * index + round_, **ONE)

    on_threads(work, *range(len(arrays)))
    for index, array in enumerate(arrays):
        assert (array.get() == 100 * index + 49).all()


# --- prepared calls --------------------------------------------------------------------------


PREPARED = {
    "a string": "Pii",
    "NumPy's types": [np.intp, np.int32, np.int32],
    "PyCUDA's": ["P", "i", np.dtype(np.int32)],
    "an array's type": [gpuarray.GPUArray, "i", "i"],
    "counts": "P2i",
    "two in one": ["P", "i i"],
}


@pytest.mark.parametrize("types", PREPARED.values(), ids=PREPARED)
def test_prepared_call(ours, types):
    fill = ours("fill")
    assert fill.prepare(types) is fill
    x = cupy.zeros(N, np.int32)
    for value, array in enumerate((x, bridge.as_pycuda(x), x.data.ptr)):
        fill.prepared_call(GRID, BLOCK, array, N, value)
        assert (x.get() == value).all()


def test_all_kinds_of_numbers_are_prepared(ours):
    scalars = ours("scalars").prepare("P?bHifdqB")
    x = cupy.zeros(8)
    scalars.prepared_async_call((1, 1), (1, 1, 1), None, x, *VALUES)
    assert x.get().tolist() == VALUES


def test_structs_and_complex_numbers_are_prepared(ours):
    x = cupy.zeros(4, np.float32)
    named = ours("named")
    for types, value in (
        (["P", "f", "8s", "b"], np.array((2, 3), PAIR).tobytes()),
        (["P", "f", np.complex64, "b"], 2 + 3j),
    ):
        x[:] = 0
        named.prepare(types).prepared_call((1, 1), (1, 1, 1), x, 1.0, value, 4)
        assert x.get().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("allocator", ALLOCATORS.values(), ids=ALLOCATORS)
def test_memory_is_prepared_as_an_integer_and_as_nothing_else(known, allocator):
    """As legacy code does, which declares addresses as integers."""
    memory, out = allocator()(4 * N), cupy.zeros(2, np.uint64)
    bits = known("unsigned_bits").prepare("PIQ")
    bits.prepared_call(GRID, (1, 1, 1), out, 5, memory)
    assert out.get().tolist() == [5, int(memory)]
    with pytest.raises(TypeError, match="argument 2 .* is a cupy.ndarray, .* takes uint64"):
        bits.prepared_call(GRID, (1, 1, 1), out, 5, out)
    scalars = known("scalars").prepare("P?bHifdqB")
    message = r"argument 5 .* is device memory \(a [\w.]+\), but the kernel takes float32"
    with pytest.raises(TypeError, match=message):
        scalars.prepared_call(GRID, (1, 1, 1), None, True, 1, 1, 1, memory, 1.0, 1, 1)


def test_what_is_too_large_for_a_prepared_half_is_refused(known):
    half_bits, out = known("half_bits").prepare("Pee"), cupy.zeros(2, np.uint32)
    match = "half_bits: argument 1 .* does not fit into float16 .*too large to"
    for value in 70000.0, np.float32(1e6):
        with pytest.raises(OverflowError, match=match):
            half_bits.prepared_call(1, 1, out, value, 0.0)
    half_bits.prepared_call(1, 1, out, 1.0, 2.0)
    assert out.tolist() == [0x3C00, 0x4000]


def test_a_complex_number_is_no_prepared_real_one(known):
    named, out = known("named").prepare("Pf8sb"), cupy.zeros(4, np.float32)
    match = "argument 1 .*, but the kernel takes float32 by value; pass its real"
    for value in 1 + 2j, np.complex64(1 + 2j):
        with pytest.raises(TypeError, match=match):
            named.prepared_call(1, 1, out.data.ptr, value, bytes(8), 1)


class OneNumber:
    """A device array of one integer, as PyTorch has it: an index, for which the host waits."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.__cuda_array_interface__ = array.__cuda_array_interface__

    def __index__(self):
        raise AssertionError("the host waits")


def test_a_device_array_of_one_number_is_prepared_as_a_pointer(known):
    x = cupy.zeros(1, np.int32)
    fill = known("fill").prepare("Pii")
    fill.prepared_call((1, 1), (1, 1, 1), OneNumber(x), 1, 7)
    assert x.get() == 7
    with pytest.raises(TypeError, match="argument 1 .* is a .*OneNumber, .* takes int32"):
        fill.prepared_call((1, 1), (1, 1, 1), x, OneNumber(x), 7)


def test_a_struct_of_another_size_is_refused(known):
    match = "named: argument 2 .*, but the kernel takes .* by value; (for a struct, )?pass"
    for types, value in ("8s", b"1"), ("8s", None), (np.complex64, [1, 2]):
        named = known("named").prepare(["P", "f", types, "b"])
        with pytest.raises(TypeError, match=match):
            named.prepared_call(1, 1, cupy.zeros(4, np.float32), 1.0, value, 4)


# --- order -----------------------------------------------------------------------------------


@pytest.fixture(params=["call", "prepared", "launch"])
def copy(request, known, plain):
    """Queue ``to[...] = source`` on a stream, in one of the ways that there are."""

    def call(to, source, stream=None):
        known("copy")(to, source, N, stream=stream, **ONE)

    def prepared(to, source, stream=None):
        copy = known("copy").prepare("PPi")
        source = source.data.ptr if isinstance(source, cupy.ndarray) else source
        if stream is None:
            copy.prepared_call(GRID, BLOCK, to.data.ptr, source, N)
        else:
            copy.prepared_async_call(GRID, BLOCK, stream, to, source, N)

    def launch(to, source, stream=None):
        bridge.launch(plain("copy"), to, source, np.int32(N), grid=1, block=32, stream=stream)

    ways = {"call": call, "prepared": prepared, "launch": launch}
    return ways[request.param]


@every_pair
def test_a_launch_is_part_of_cupys_current_stream(cupy_kind, pycuda_kind, copy, latch):
    """CuPy writes, the kernel copies, CuPy reads: all behind a latch on CuPy's stream."""
    cupy_stream, pycuda_stream = CUPY_STREAMS[cupy_kind](), PYCUDA_STREAMS[pycuda_kind]()
    x, y, z = (cupy.zeros(N, np.int32) for _ in range(3))
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    copy(y, x)  # loaded before a latch holds it up
    with latch.hold(cupy_stream), cupy_stream:
        x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        copy(y, x, pycuda_stream)
        z.data.copy_from_device_async(y.data, y.nbytes, cupy_stream)
    assert (z.get() == 7).all()


def test_a_launch_is_ordered_before_a_signals_handler_may_raise(copy, latch):
    """Which it does where Python runs next: here, to keep the host memory that the kernel reads."""
    current, stream = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    x, y = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    host = drv.pagelocked_zeros(N, np.int32, mem_flags=drv.host_alloc_flags.DEVICEMAP)
    copy(x, host, stream)
    drv.Context.synchronize()
    host[:] = 7
    with latch.hold(stream), current:
        with interrupted_in("keep_until_done"):
            copy(x, host, stream)
        y.data.copy_from_device_async(x.data, x.nbytes, current)
    assert (y.get() == 7).all()


@pytest.mark.parametrize("how", ["given", "current"])
def test_a_launch_is_on_the_stream_that_is_given_or_current(how, copy, latch):
    """The control for the test above: it is not on another."""
    stream = drv.Stream(1)
    x, y = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    copy(y, x)
    with latch.hold(stream):
        if how == "given":
            copy(y, x, stream)
        else:
            with bridge.as_cupy_stream(stream):
                copy(y, x)
        assert not stream.is_done()


@pytest.mark.parametrize("given", [*OF_PYCUDA.values(), MAKE["what holds an allocation"]])
def test_a_launch_comes_between_pycudas_work(given, copy, latch, put):
    """After the work that is queued on any of PyCUDA's streams, and before their later work."""
    current, first, second = cupy.cuda.Stream(non_blocking=True), drv.Stream(1), drv.Stream(1)
    a, y = gpuarray.to_gpu(np.zeros(N, np.int32)), cupy.zeros(N, np.int32)
    copy(y, given(a))
    with latch.hold(first), current:
        put(a.gpudata, N, 7, first)
        copy(y, given(a))
        put(a.gpudata, N, 1, second)
    assert (set(y.get().tolist()), set(a.get().tolist())) == ({7}, {1})


def test_a_prepared_call_orders_a_bare_address(known, latch, put):
    """PyCUDA's programs pass ``a.gpudata``, which is an int for slices and for views."""
    a, y = bridge.as_pycuda(cupy.zeros(N, np.int32)), cupy.zeros(N, np.int32)
    call, stream = known("copy").prepare("PPi").prepared_call, drv.Stream(1)
    call(GRID, BLOCK, y.data.ptr, a.gpudata, N)
    with latch.hold(stream), cupy.cuda.Stream(non_blocking=True):
        put(a.gpudata, N, 7, stream)
        call(GRID, BLOCK, y.data.ptr, a.gpudata, N)
    assert (y.get() == 7).all()


def test_pycudas_own_launches_stay_as_they_are(plain, latch, put):
    """They read the address from the array interface, and nothing there waits for other streams."""
    held, a, copy = drv.Stream(1), gpuarray.zeros(N, np.int32), gpuarray.zeros(N, np.int32)
    with latch.hold(held):
        put(a.gpudata, N, 0, held)
        for stream in drv.Stream(1), None:
            plain("copy")(copy, a, np.int32(N), stream=stream, **ONE)
            (stream or cupy.cuda.Stream.null).synchronize()


def test_an_address_is_not_ordered(known, latch, put):
    """The control: a number says nothing of where the memory comes from."""
    current = cupy.cuda.Stream(non_blocking=True)
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    y = cupy.zeros(N, np.int32)
    known("copy")(y, a, N, **ONE)
    with latch.hold(None):
        put(a.gpudata, N, 7)
        with current:
            known("copy")(y, np.uintp(int(a.gpudata)), N, **ONE)
        current.synchronize()
    assert (y.get() == 0).all()

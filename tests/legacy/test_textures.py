"""Texture and surface references: they answer what texture objects answer, and are ordered."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from contexts import interrupted_in
from cupy.cuda import runtime, texture
from error_tables import error_of, rows_of
from pycuda import gpuarray

import bridge
from bridge.legacy import textures

COPY = """
texture<%s> image;
__global__ void copy(float *out, const float *x, const float *y, int n)
{
    int i = threadIdx.x;
    if (i < n) out[i] = %s;
}
"""
FETCHES = {
    1: "tex1D(image, x[i])",
    2: "tex2D(image, x[i], y[i])",
    3: "tex3D(image, x[i], y[i], x[i])",
}
N = 64


def module_of(declared, fetch):
    return bridge.SourceModule(COPY % (declared, fetch))


def fetch(module, x, y):
    out = cupy.zeros(len(x), np.float32)
    copy, image = module.get_function("copy"), module.get_texref("image")
    copy(out, cupy.asarray(x), cupy.asarray(y), len(x), block=N, texrefs=[image])
    return out.get()


def by_object(array, description, dimensions, x, y):
    """The same samples through a texture object and a RawKernel."""
    source = COPY.partition("__global__")[2] % FETCHES[dimensions]
    source = source.replace("(float *out", "(cudaTextureObject_t image, float *out", 1)
    for name in ("tex1D", "tex2D", "tex3D"):
        source = source.replace(f"{name}(", f"{name}<float>(")
    kernel = cupy.RawKernel(f'extern "C" __global__ {source}', "copy")
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    image = texture.TextureObject(resource, description)
    out = cupy.zeros(len(x), np.float32)
    kernel((1,), (N,), (image, out, cupy.asarray(x), cupy.asarray(y), np.int32(len(x))))
    return out.get()


def cuda_array(values, flags=0):
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, *[*values.shape[::-1], 0, 0][:3], flags)
    array.copy_from(values)
    return array


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("filter", ["POINT", "LINEAR"])
@pytest.mark.parametrize("mode", ["CLAMP", "WRAP", "MIRROR", "BORDER"])
def test_they_answer_what_texture_objects_answer(mode, filter, normalized, dimensions):
    random = np.random.default_rng(0)
    values = random.random((3, 4, 5)[3 - dimensions :], np.float32)
    array = cuda_array(values)
    x, y = (random.random((2, N)) * 12 - 4).astype(np.float32) / (4 if normalized else 1)
    description = texture.TextureDescriptor(
        (int(getattr(drv.address_mode, mode)),) * 3,
        int(getattr(drv.filter_mode, filter)),
        normalizedCoords=int(normalized),
    )
    expected = by_object(array, description, dimensions, x, y)
    module = module_of(f"float, {dimensions}", FETCHES[dimensions])
    image = module.get_texref("image")
    image.set_array(array)
    for dimension in range(3):
        image.set_address_mode(dimension, getattr(drv.address_mode, mode))
    image.set_filter_mode(getattr(drv.filter_mode, filter))
    image.set_flags(drv.TRSF_NORMALIZED_COORDINATES if normalized else 0)
    found = fetch(module, x, y)
    assert (found == expected).all()
    assert len(set(found)) > 2


AT = np.arange(8, dtype=np.float32)
ZERO = np.zeros(8, np.float32)
FLOATS = np.arange(8, dtype=np.float32) * 1.5


def test_linear_memory_of_either_library():
    module = module_of("float, 1", "tex1Dfetch(image, int(x[i]))")
    image = module.get_texref("image")
    assert gpuarray.to_gpu(FLOATS).bind_to_texref_ext(image) == 0  # the array lives in `image`
    gc.collect()
    gpuarray.zeros(8, np.float32)
    assert (fetch(module, AT, ZERO) == FLOATS).all()
    for array in cupy.asarray(FLOATS) + 1, bridge.as_pycuda(cupy.asarray(FLOATS) + 1):
        image.set_array(array)
        assert (fetch(module, AT, ZERO) == FLOATS + 1).all()
        assert image.get_format() == (drv.array_format.FLOAT, 1)
    assert fetch(module, AT + 6, ZERO).tolist() == [10, 11.5, 0, 0, 0, 0, 0, 0]


def test_an_offset_is_returned():
    module = module_of("float", "tex1Dfetch(image, int(x[i]))")
    image = module.get_texref("image")
    values = cupy.arange(1024, dtype=np.float32)
    part = values[128 + 3 :]
    with pytest.raises(drv.LogicError, match="12 bytes behind a multiple of 512; pass allow_off"):
        image.set_address(part.data.ptr, part.nbytes)
    assert image.set_address(part.data.ptr, 20, allow_offset=True) == 12
    assert fetch(module, AT + 3, ZERO).tolist() == [131, 132, 133, 134, 135, 0, 0, 0]
    assert image.get_address() == values.data.ptr + 512


def test_rows_of_memory():
    module = module_of("float, 2", FETCHES[2])
    image = module.get_texref("image")
    values = np.arange(3 * 8, dtype=np.float32).reshape(3, 8)
    image.set_array(cupy.asarray(values))
    assert fetch(module, AT, AT).tolist() == [0, 9, 18, 19, 20, 21, 22, 23]
    pointer, pitch = drv.mem_alloc_pitch(8 * 4, 3, 4)
    copy = drv.Memcpy2D()
    copy.set_src_host(values)
    copy.set_dst_device(pointer)
    copy.width_in_bytes, copy.src_pitch, copy.dst_pitch, copy.height = 32, 32, pitch, 3
    copy(aligned=True)
    descriptor = drv.ArrayDescriptor()
    descriptor.width, descriptor.height = 8, 3
    descriptor.format, descriptor.num_channels = drv.array_format.FLOAT, 1
    image.set_address_2d(pointer, descriptor, pitch)
    image.set_filter_mode(drv.filter_mode.LINEAR)
    assert fetch(module, AT + 1, ZERO + 1).tolist() == [4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 11]


INTEGERS, FRACTIONS = np.array([[0, 1, 100, 255]], np.uint8), "cudaReadModeNormalizedFloat"


@pytest.mark.parametrize(
    ("declared", "fetch_", "expected"),
    [
        ("unsigned char, 2", "tex2D(image, x[i], 0)", INTEGERS[0]),
        (f"unsigned char, 2, {FRACTIONS}", "tex2D(image, x[i], 0)", INTEGERS[0] / 255),
        ("float, 2", "tex2D(image, x[i], 0)", INTEGERS[0] / 255),  # the driver's default
        ("uchar4, 2", "tex2D(image, 0, 0).z + 1000 * x[i]", [100, 1100, 2100, 3100]),
        (f"uchar4, 2, {FRACTIONS}", "tex2D(image, x[i], 0).w", [1, 1, 1, 1]),
    ],
)
def test_integers_and_fractions(declared, fetch_, expected):
    module = module_of(declared, fetch_)
    order = INTEGERS.reshape(1, -1, 4 if "4" in declared else 1)
    array = drv.make_multichannel_2d_array(order, "C")
    drv.bind_array_to_texref(array, module.get_texref("image"))
    np.testing.assert_allclose(fetch(module, AT[:4], ZERO[:4]), expected, rtol=1e-6)


def test_a_texture_object_of_cupy():
    module = module_of("float, 2", FETCHES[2])
    array = cuda_array(np.arange(8, dtype=np.float32).reshape(2, 4))
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    wrapping = texture.TextureDescriptor((runtime.cudaAddressModeWrap,) * 2)
    image, out = texture.TextureObject(resource, wrapping), cupy.zeros(4, np.float32)
    module.get_texref("image").set_array(image)
    assert fetch(module, AT[:4], ZERO[:4] + 1).tolist() == [4, 5, 6, 7]
    take = bridge.SourceModule("""
        __global__ void take(float *out, cudaTextureObject_t image)
        { out[threadIdx.x] = tex2D<float>(image, threadIdx.x, 1); }
    """).get_function("take")
    take(out, image, block=4)
    assert out.tolist() == [4, 5, 6, 7]
    with pytest.raises(TypeError, match="is a cupy.ndarray, but the kernel takes uint64 by value"):
        take(out, out, block=4)


def test_surfaces():
    module = bridge.SourceModule("""
        surface<void, 2> image;
        surface<void, cudaSurfaceType2DLayered> layers;
        __global__ void add(int n)
        {
            float v;
            surf2Dread(&v, image, 4 * threadIdx.x, threadIdx.y);
            surf2Dwrite(v + n, image, 4 * threadIdx.x, threadIdx.y, cudaBoundaryModeTrap);
        }
    """)
    with pytest.raises(drv.LogicError, match=r"get_texref: surface 'image' is no texture ref"):
        module.get_texref("image")
    image, add = module.get_surfref("image"), module.get_function("add")
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    array = cuda_array(values, runtime.cudaArraySurfaceLoadStore)
    image.set_array(array)
    assert image.get_array() is array
    add(5, block=(4, 2))
    out = cupy.zeros((2, 4), np.float32)
    array.copy_to(out)
    assert (out.get() == values + 5).all()


def test_double_and_complex_numbers_in_pairs():
    """PyCUDA's <pycuda-helpers.hpp>, which drops them for CUDA 12."""
    source = """
        #include <pycuda-helpers.hpp>
        texture<fp_tex_double, 1, cudaReadModeElementType> a;
        texture<fp_tex_cfloat> b;
        __global__ void copy(double *x, pycuda::complex<float> *y)
        {
            x[threadIdx.x] = fp_tex1Dfetch(a, threadIdx.x);
            y[threadIdx.x] = fp_tex1Dfetch(b, threadIdx.x);
        }
    """
    module = bridge.SourceModule(source)
    doubles = np.random.default_rng(1).random(8)
    pairs = doubles.astype(np.complex64) * 1j
    gpuarray.to_gpu(doubles).bind_to_texref_ext(module.get_texref("a"), allow_double_hack=True)
    gpuarray.to_gpu(pairs).bind_to_texref_ext(module.get_texref("b"), allow_complex_hack=True)
    x, y = cupy.zeros(8), cupy.zeros(8, np.complex64)
    module.get_function("copy")(x, y, block=8)
    assert (x.get() == doubles).all()
    assert (y.get() == pairs).all()


# ---- order --------------------------------------------------------------------------------------


def linear_module():
    cupy.cuda.Device().synchronize()
    textures._destroy_unused()  # PyCUDA's arrays, whose end makes the host wait
    return module_of("float, 1", "tex1Dfetch(image, i)")


@pytest.fixture
def linear():
    """A kernel that copies linear memory through a texture, its reference, and their module."""
    module = linear_module()
    return module.get_function("copy"), module.get_texref("image"), module


def held_and_rebound(copy, image, latch, values, is_control=False):
    """Fetch the first array behind a latch, then the second on a stream that nothing orders.

    A control lets the second one end before the latch opens.
    """
    outs = [cupy.full(8, -1, np.float32) for _ in values]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in values]
    image.set_array(values[0])
    copy(outs[0], outs[0], outs[0], 0, block=8)  # writes the first object
    with latch.hold(streams[0]):
        for array, out, stream in zip(values, outs, streams, strict=True):
            if array is not values[0]:
                image.set_array(array)
            with stream:
                copy(out, out, out, 8, block=8)
        if is_control:
            streams[1].synchronize()
    return [out.get() for out in outs]


def test_a_queued_kernel_reads_the_texture_of_its_launch(linear, latch):
    values = [cupy.full(8, i, np.float32) for i in (1, 2)]
    found = held_and_rebound(*linear[:2], latch, values)
    assert [set(out) for out in found] == [{1}, {2}]


@pytest.mark.parametrize("forgotten", ["readers", "written"])
def test_without_a_wait_it_does_not(linear, latch, forgotten, monkeypatch):
    """The control: each of the two waits is needed."""
    wait, (copy, image, module) = runtime.streamWaitEvent, linear

    def skip(stream, event):
        references = next(iter(module._resources.values()))
        written = references._written and references._written.ptr
        if (event == written) != (forgotten == "written"):
            wait(stream, event)

    monkeypatch.setattr(textures.runtime, "streamWaitEvent", skip, raising=True)
    monkeypatch.setattr(textures, "_destroy_unused", lambda: None)  # it reads the old object
    values = [cupy.full(8, i, np.float32) for i in (1, 2)]
    out = cupy.full(8, -1, np.float32)
    if forgotten == "readers":
        found = held_and_rebound(copy, image, latch, values, is_control=True)
        assert [set(out) for out in found] != [{1}, {2}]
        return
    image.set_array(values[0])
    copy(out, out, out, 8, block=8)
    held, free = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with latch.hold(held):
        image.set_array(values[1])
        with held:
            copy(out, out, out, 0, block=8)  # writes the object behind the latch
        with free:
            copy(out, out, out, 8, block=8)
            free.synchronize()
            assert set(out.get()) == {1}


def test_what_was_bound_lives_until_the_kernel_has_run(linear, latch):
    """Memory of CuPy's pool would be reused at once."""
    copy, image, _ = linear
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.full(8, -1, np.float32)
    with latch.hold(stream), stream:
        image.set_array(cupy.full(8, 1, np.float32))
        copy(out, out, out, 8, block=8)
        image.set_array(cupy.full(8, 2, np.float32))
        copy(out[:0], out, out, 0, block=8)
        with cupy.cuda.Stream(non_blocking=True):
            cupy.full(8, 3, np.float32)
    assert set(out.get()) == {1}


def test_work_on_pycudas_streams_comes_before_the_fetch(linear, latch, put):
    copy, image, _ = linear
    a, stream = gpuarray.zeros(8, np.float32), drv.Stream(1)
    a.bind_to_texref_ext(image)
    out = cupy.full(8, -1, np.float32)
    copy(out, out, out, 8, block=8)
    with latch.hold(stream):
        put(a.gpudata, 8, 0x3F800000, stream)  # 1.0f
        copy(out, out, out, 8, block=8)
    assert set(out.get()) == {1}


def test_captures(linear):
    copy, image, _ = linear
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x, out = cupy.full(8, 1, np.float32), cupy.full(8, -1, np.float32)
        image.set_array(x)
        stream.begin_capture()
        try:
            with pytest.raises(ValueError, match="texture 'image' is changed, but a kernel of its"):
                copy(out, out, out, 8, block=8)
        finally:
            graph = stream.end_capture()
        copy(out, out, out, 8, block=8)
        stream.begin_capture()
        copy(out, out, out, 8, block=8)
        graph = stream.end_capture()
        x[...] = 2
        graph.launch(stream)
    stream.synchronize()
    assert set(out.get()) == {2}
    image.set_array(cupy.full(8, 3, np.float32))
    with pytest.raises(ValueError, match="or was: from then on the module's textures stay; bind"):
        copy(out, out, out, 8, block=8)


# ---- the rest -----------------------------------------------------------------------------------


def test_prepared_calls_need_their_references(linear):
    copy, image, module = linear
    copy.prepare("PPPi", texrefs=[image])
    out = cupy.zeros(8, np.float32)
    with pytest.raises(drv.LogicError, match=r"^texture 'image' is not bound; call its set_array"):
        copy.prepared_call((1, 1), (8, 1, 1), out.data.ptr, 0, 0, 8)
    other = module.get_function("copy").prepare("PPPi")
    other.param_set_texref(image)
    with pytest.raises(drv.LogicError, match="is not bound"):
        other.prepared_call((1, 1), (8, 1, 1), out.data.ptr, 0, 0, 8)
    image.set_array(cupy.full(8, 1, np.float32))
    copy.prepared_call((1, 1), (8, 1, 1), out.data.ptr, 0, 0, 8)
    assert set(out.get()) == {1}


WRONG = r"""
set_array(5)
    TypeError: set_array: the argument is 5; a pycuda.driv
set_array(cupy.zeros(2, "F"))
    TypeError: cupy.ndarray of complex64 and shape (2,); a pyc
set_array(cupy.zeros((4, 4), "f").T[:3])
    TypeError: array in C order
set_array(cupy.zeros(8, "f"))
    TypeError: shape (8,); rows are accepted: (height, width, 1)
set_array(cupy.zeros((4, 8, 4), "f"))
    TypeError: float32 and shape (4, 8, 4); rows are accepted: (height, width, 1)
set_address(cupy.zeros(8, "f"), 32)
    TypeError: set_address: devptr is a cupy.ndarray; an address is accepted, a.gpudata of PyC
set_format(drv.array_format.FLOAT, 3)
    ValueError: a texel has 1, 2 or 4 channels, not 3
set_address_mode(3, drv.address_mode.WRAP)
    ValueError: set_address_mode: dim is 3; 0, 1 or 2
set_format(99, 1)
    TypeError: 99 is no pycuda.driver.array_format;
set_filter_mode(7)
    TypeError: 7 is no pycuda.driver.filter_mode;
get_array()
    LogicError: no array is bound
get_address()
    LogicError: no memory is bound
"""


@pytest.mark.parametrize(("call", "kind", "phrase"), rows_of(WRONG))
def test_what_cannot_be_bound(call, kind, phrase):
    image = module_of("float, 2", FETCHES[2]).get_texref("image")
    found, text = error_of(lambda: eval(f"image.{call}", {**globals(), "image": image}))
    assert (found.__name__, text[:17], phrase in text) == (kind, "texture 'image': ", True)


@pytest.mark.parametrize(
    ("declared", "wrong", "said"),
    [("float", "i4", "1 x i4, .* 1 x f4"), ("unsigned char", "u2", "1 x u2, .* 1 x u1")],
)
def test_texels_that_the_kernel_would_misread(declared, wrong, said):
    module = module_of(f"{declared}, 2", FETCHES[2])
    image, x = module.get_texref("image"), cupy.full(8, 7, np.float32)
    image.set_array(cupy.zeros((2, 32), wrong))
    with pytest.raises(TypeError, match=f"a texel has {said}; bind another array, or set_format"):
        module.get_function("copy")(x, x, x, 8, block=8)
    assert set(x.get()) == {7}
    image.set_array(cupy.zeros((2, 32), "f4" if declared == "float" else "u1"))
    module.get_function("copy")(x, x, x, 8, block=8)


def test_what_cuda_refuses():
    module = module_of("float, 2", FETCHES[2])
    image, x = module.get_texref("image"), cupy.zeros(8, np.float32)
    image.set_array(cupy.zeros((4, 7), np.float32))
    for _ in range(2):
        with pytest.raises(drv.LogicError, match=r"CUDA refuses .*; rows, here 28 bytes apart, ne"):
            module.get_function("copy")(x, x, x, 8, block=8)
    image.set_array(cupy.zeros((4, 8), np.float32))
    module.get_function("copy")(x, x, x, 8, block=8)


def test_names_of_variables_that_are_none():
    module = bridge.SourceModule(
        "texture<float, 2> one; __constant__ float c[8]; __constant__ int d;"
    )
    with pytest.raises(drv.LogicError, match="no variable 'two' in .*; its source has c, d, o"):
        module.get_texref("two")
    volume = module_of("float, 3", FETCHES[3]).get_texref("image")
    with pytest.raises(
        TypeError, match="the texture has 3 dimensions, copy it into a pycuda.driver."
    ):
        volume.set_array(cupy.zeros((4, 4, 4), np.float32))
    for name in "cd":
        with pytest.raises(drv.LogicError, match=f"the variable '{name}' is no texture or surface"):
            module.get_texref(name)


class Watched(gpuarray.GPUArray):
    """An array that a weak reference can watch."""


def test_what_no_kernel_reads_is_let_go():
    """A loop that waits for its kernels needs memory for what is bound, and for nothing else."""
    module = linear_module()
    copy, image = module.get_function("copy"), module.get_texref("image")
    out, seen = cupy.zeros(8, np.float32), []
    for value in range(4):
        array = Watched(8, np.float32).fill(value)
        image.set_array(array)
        seen.append(weakref.ref(array))
        del array
        copy(out, out, out, 8, block=8)
        cupy.cuda.Device().synchronize()
        assert set(out.get()) == {value}
        assert [one() is None for one in seen] == [True] * value + [False]
    made = len(textures._to_destroy)
    module._resources.clear()
    del copy, image
    gc.collect()
    assert [one() for one in seen] == [None] * 4
    assert len(textures._to_destroy) == made


def test_objects_are_destroyed_while_threads_bind():
    """Each thread has a module of its own; what is no longer read is in one list."""

    def work(number):
        module = module_of("float, 1", "tex1Dfetch(image, i)")
        copy, image = module.get_function("copy"), module.get_texref("image")
        with bridge.primary_context(), cupy.cuda.Stream(non_blocking=True):
            out = cupy.zeros(8, np.float32)
            for value in range(number, 400, 4):
                image.set_array(cupy.full(8, value, np.float32))
                copy(out, out, out, 8, block=8)
            return set(out.get())

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [{396}, {397}, {398}, {399}]
    finally:
        sys.setswitchinterval(usual)


def test_a_texture_is_changed_after_the_kernels_of_a_thread_that_has_ended(linear, latch):
    """The per-thread default streams have one handle, and a new thread the id of one that ended."""
    copy, image, _ = linear
    old, new, x = (cupy.full(8, value, np.float32) for value in (7, 1, 0))
    image.set_array(old)
    copy(x, x, x, 8, block=8)
    held, thread_ids = cupy.cuda.Stream(non_blocking=True), []
    results = [cupy.zeros(8, np.float32) for _ in range(2)]

    def read():
        if thread_ids and threading.get_ident() != thread_ids[0]:
            return
        thread_ids.append(threading.get_ident())
        is_second = len(thread_ids) == 2
        with bridge.primary_context(), cupy.cuda.Stream.ptds as stream:
            if not is_second:
                bridge.wait_stream(stream, held)
            copy(results[is_second], x, x, 8, block=8)
            if is_second:
                image.set_array(new)
                copy(x, x, x, 8, block=8)

    with latch.hold(held):
        while len(thread_ids) < 2:  # Python soon gives the first thread's id again
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
    assert [{*result.get()} for result in results] == [{7}, {7}]


def test_a_kernel_that_reads_a_texture_is_ordered_before_a_signals_handler_may_raise(linear, latch):
    """Both with later work, and with a change of the texture."""
    copy, image, _ = linear
    old, new, x = (cupy.full(8, value, np.float32) for value in (7, 1, 0))
    y, z = cupy.zeros_like(x), cupy.zeros_like(x)
    image.set_array(old)
    copy(x, x, x, 8, block=8)
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    with latch.hold(stream), current:
        with interrupted_in("__exit__"):
            copy(y, x, x, 8, block=8, stream=stream)
        z.data.copy_from_device_async(y.data, y.nbytes, current)
        image.set_array(new)
        copy(x, x, x, 8, block=8)
    assert {*y.get()} == {*z.get()} == {7}


DESTROYED = """
import gc
from contextlib import nullcontext
from types import SimpleNamespace
from bridge.legacy import textures
SOURCE = (
    "texture<float, 1> image;"
    "__global__ void copy(float *out) { out[threadIdx.x] = tex1Dfetch(image, threadIdx.x); }"
)
modules, images, devices = [], [], []
for device_id in range(2):
    with bridge.primary_context(device_id):
        modules.append(bridge.SourceModule(SOURCE))
        images.append(modules[-1].get_texref("image"))
        images[-1].set_array(cupy.full(8, device_id + 1, np.float32))
        out = cupy.zeros(8, np.float32)
        modules[-1].get_function("copy")(out, block=8, texrefs=images[-1:])
        cupy.cuda.Device().synchronize()
def destroy(self, made, destroyer=textures.TextureReference._destroyer):
    devices.append((cupy.cuda.runtime.getDevice(), destroyer(made)))
textures.TextureReference._destroyer = destroy
if CONTROL:
    textures.cupy = SimpleNamespace(cuda=SimpleNamespace(Device=nullcontext))
with bridge.primary_context(1):
    del modules[0], images[0]
    gc.collect()
    modules[0].get_function("copy")(out, block=8, texrefs=images)
    print(out.get()[0], devices)
"""


@pytest.mark.parametrize("control", [False, True])
def test_an_object_is_destroyed_on_its_own_device(run, control):
    """In the control, on whatever device is current."""
    found = run(DESTROYED.replace("CONTROL", str(control)), devices=2)
    assert found == f"2.0 [({int(control)}, 0)]\n"


def test_a_reference_of_another_module(linear):
    copy, image, _ = linear
    image.set_array(x := cupy.zeros(8, np.float32))
    with pytest.raises(ValueError, match="texrefs: texture 'image' is of another module"):
        copy(x, x, x, 8, block=8, texrefs=[linear_module().get_texref("image")])


def test_pycudas_own_kernels_under_run(run):
    """`gpuarray.take` reads its source through a texture."""
    script = """
        import pycuda.autoinit
        a = gpuarray.to_gpu(np.arange(10, dtype=np.float32) * 2)
        i = gpuarray.to_gpu(np.array([3, 1, 4, 1, 5], np.uint32))
        print(gpuarray.take(a, i).get(), gpuarray.take(a.astype(np.float64), i).get())
    """
    out = run(script, start="import bridge.legacy.run; bridge.legacy.run.replace()\n")
    assert out == "[ 6.  2.  8.  2. 10.] [ 6.  2.  8.  2. 10.]\n"

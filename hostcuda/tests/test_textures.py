"""Texture and surface objects answer what the CUDA C++ Programming Guide says.

Without ``--hostcuda`` the same tests ask a GPU (except for those of hostcuda's messages).
"""

import itertools

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from cupy.cuda import runtime, texture
from pycuda import gpuarray

ADDRESSES = {
    "clamp": runtime.cudaAddressModeClamp,
    "wrap": runtime.cudaAddressModeWrap,
    "mirror": runtime.cudaAddressModeMirror,
    "border": runtime.cudaAddressModeBorder,
}
FILTERS = {"point": runtime.cudaFilterModePoint, "linear": runtime.cudaFilterModeLinear}
KINDS = {
    "i": runtime.cudaChannelFormatKindSigned,
    "u": runtime.cudaChannelFormatKindUnsigned,
    "f": runtime.cudaChannelFormatKindFloat,
}
BORDER = 7.0
CUDA_ARRAY_LAYERED = 1  # cudaArrayLayered of driver_types.h


def channels_of(dtype, count=1):
    bits = 8 * np.dtype(dtype).itemsize
    return texture.ChannelFormatDescriptor(
        *([bits] * count + [0] * (4 - count)), KINDS[np.dtype(dtype).kind]
    )


def array_of(image, channels=1, flags=0):
    """Return a CUDA array with the image: (depth,) (height,) width * channels."""
    sizes = [*image.shape[::-1], 0, 0][:3]
    sizes[0] //= channels
    array = texture.CUDAarray(channels_of(image.dtype, channels), *sizes, flags)
    array.copy_from(image)
    return array


def on_array(array):
    return texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)


def how(address="clamp", filter="point", fractions=False, normalized=False, border=None):
    return texture.TextureDescriptor(
        (ADDRESSES[address],) * 3,
        FILTERS[filter],
        runtime.cudaReadModeNormalizedFloat if fractions else runtime.cudaReadModeElementType,
        normalizedCoords=int(normalized),
        borderColors=border,
    )


# ---- what a fetch answers, by NumPy -------------------------------------------------------------


def index(i, n, address, normalized):
    """Return the texel that stands for index i of n, or -1 for the border."""
    if address == "border":
        return np.where((i < 0) | (i >= n), -1, i)
    if address == "wrap" and normalized:
        return i % n
    if address == "mirror" and normalized:
        return np.where(i % (2 * n) < n, i % n, n - 1 - i % n)
    return np.clip(i, 0, n - 1)


def expected(image, coordinates, address, filter, normalized):
    """Sample an image (z, y, x) at rows of coordinates (x, y, z)."""
    shape = image.shape[::-1]
    total = np.zeros(len(coordinates))
    x = coordinates * (np.array(shape) if normalized else 1)
    if filter == "linear":
        x = x - 0.5
    first = np.floor(x).astype(int)
    fraction = x - first if filter == "linear" else np.zeros_like(x)
    for corner in itertools.product((0, 1), repeat=image.ndim):
        weight = np.prod(np.where(corner, fraction, 1 - fraction), axis=1)
        at = [
            index(first[:, d] + corner[d], shape[d], address, normalized) for d in range(image.ndim)
        ]
        outside = np.any(np.array(at) < 0, axis=0)
        total += weight * np.where(outside, BORDER, image[tuple(at[::-1])])
    return total


SAMPLE = r"""
template <int D> __device__ float fetch(cudaTextureObject_t t, const float *p);
template <> __device__ float fetch<1>(cudaTextureObject_t t, const float *p)
{ return tex1D<float>(t, p[0]); }
template <> __device__ float fetch<2>(cudaTextureObject_t t, const float *p)
{ float v; tex2D(&v, t, p[0], p[1]); return v; }
template <> __device__ float fetch<3>(cudaTextureObject_t t, const float *p)
{ return tex3D<float>(t, p[0], p[1], p[2]); }
template <int D> __global__ void sample(float *out, cudaTextureObject_t t, const float *p, int n)
{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fetch<D>(t, p + i * D);
}
"""


@pytest.fixture(scope="module")
def sample():
    names = [f"sample<{d}>" for d in (1, 2, 3)]
    module = cupy.RawModule(code=SAMPLE, name_expressions=names)

    def run(t, coordinates):
        n, dimensions = coordinates.shape
        out = cupy.zeros(n, np.float32)
        function = module.get_function(names[dimensions - 1])
        function((n // 64 + 1,), (64,), (out, t, cupy.asarray(coordinates), np.int32(n)))
        return out.get()

    return run


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_sampling(sample, address, filter, normalized, dimensions):
    random = np.random.default_rng(1)
    shape = (2, 4, 8)[3 - dimensions :]
    image = random.integers(0, 1000, shape).astype(np.float32)
    # Multiples of 1/64 of a texel, so that the eight bits of a GPU's weights are exact.
    coordinates = random.integers(-20 * 64, 20 * 64, (500, dimensions)) / 64
    if normalized:
        coordinates /= shape[::-1]
    coordinates = coordinates.astype(np.float32)
    array = array_of(image)
    t = texture.TextureObject(
        on_array(array), how(address, filter, normalized=normalized, border=(BORDER,) * 4)
    )
    found = sample(t, coordinates)
    if dimensions == 1:  # a row of a plane
        image, coordinates = image[None], np.pad(coordinates, ((0, 0), (0, 1)))
    # A GPU rounds the weights of several dimensions, which are products, to eight bits as well.
    room = 2**dimensions * 1000 / 512 if filter == "linear" and dimensions > 1 else 1e-4
    np.testing.assert_allclose(
        found, expected(image, coordinates, address, filter, normalized), rtol=1e-6, atol=room
    )
    assert len(set(found)) > 3  # the control: the coordinates reach more than one texel


def test_levels_are_the_first():
    source = """extern "C" __global__ void k(float *o, cudaTextureObject_t t)
    { o[threadIdx.x] = tex2DLod<float>(t, threadIdx.x, 1, threadIdx.x - 1.f); }"""
    image = np.arange(8, dtype=np.float32).reshape(2, 4)
    t = texture.TextureObject(on_array(array_of(image)), how())
    out = cupy.zeros(4, np.float32)
    cupy.RawKernel(source, "k")((1,), (4,), (out, t))
    assert out.tolist() == [4, 5, 6, 7]


def test_weights_have_eight_bits(sample):
    """Between two texels a GPU knows 256 places."""
    array = array_of(np.array([0, 1], np.float32))
    t = texture.TextureObject(on_array(array), how(filter="linear"))
    places = np.arange(0, 4096, dtype=np.float32)[:, None] / 4096
    found = sample(t, 0.5 + places)
    assert set(found * 256 % 1) == {0}
    assert np.abs(found - places[:, 0]).max() <= 1 / 256


# ---- formats ------------------------------------------------------------------------------------

CHANNELS = r"""
template <class T, class V> __global__ void read(T *out, cudaTextureObject_t t, int n)
{
  V v = tex2D<V>(t, threadIdx.x, blockIdx.x);
  memcpy(out + (blockIdx.x * blockDim.x + threadIdx.x) * n, &v, sizeof v);
}
"""
C_NAMES = {
    "int8": ("signed char", "char"),
    "uint8": ("unsigned char", "uchar"),
    "int16": ("short", "short"),
    "uint16": ("unsigned short", "ushort"),
    "int32": ("int", "int"),
    "uint32": ("unsigned int", "uint"),
    "float32": ("float", "float"),
    "float16": ("float", "float"),
}


def read_channels(image, channels, result, **description):
    scalar, vector = C_NAMES[result]
    name = f"read<{scalar}, {vector}{channels}>"
    module = cupy.RawModule(code=CHANNELS, name_expressions=[name])
    array = array_of(image, channels)
    t = texture.TextureObject(on_array(array), how(**description))
    out = cupy.zeros(image.shape, "f4" if result == "float16" else result)
    height, width = image.shape
    module.get_function(name)((height,), (width // channels,), (out, t, np.int32(channels)))
    return out.get()


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("dtype", C_NAMES)
def test_formats(dtype, channels):
    low = 0 if dtype.startswith("u") else -100
    image = np.random.default_rng(2).integers(low, 100, (3, 5 * channels)).astype(dtype)
    np.testing.assert_array_equal(read_channels(image, channels, dtype), image)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_integers_read_as_fractions(dtype):
    limits = np.iinfo(dtype)
    image = np.array([[limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max]], dtype)
    found = read_channels(image, 2, "float32", fractions=True)
    np.testing.assert_allclose(found, np.maximum(image / limits.max, -1), atol=1e-6)


# ---- memory that is not a CUDA array ------------------------------------------------------------


def test_linear_memory_is_zero_outside():
    kernel = cupy.RawKernel(
        'extern "C" __global__ void f(int *out, cudaTextureObject_t t)'
        "{ out[threadIdx.x] = tex1Dfetch<int>(t, (int)threadIdx.x - 2); }",
        "f",
    )
    x = cupy.arange(1, 6, dtype=np.int32)
    resource = texture.ResourceDescriptor(
        runtime.cudaResourceTypeLinear, arr=x, chDesc=channels_of(np.int32), sizeInBytes=4 * 4
    )
    out = cupy.full(8, -1, np.int32)
    t = texture.TextureObject(resource, how())
    kernel((1,), (8,), (out, t))
    assert out.tolist() == [0, 0, 1, 2, 3, 4, 0, 0]


def test_rows_of_memory(sample):
    x = cupy.arange(3 * 16, dtype=np.float32).reshape(3, 16)
    resource = texture.ResourceDescriptor(
        runtime.cudaResourceTypePitch2D,
        arr=x,
        chDesc=channels_of(np.float32),
        width=10,
        height=3,
        pitchInBytes=64,
    )
    t = texture.TextureObject(resource, how(filter="linear"))
    found = sample(t, np.array([[0.5, 0.5], [10, 0.5], [99, 99], [3, 1.5]], np.float32))
    assert found.tolist() == [0, 9, 41, 18.5]


LAYERS = r"""
extern "C" __global__ void one(float *out, cudaTextureObject_t t)
{ out[threadIdx.x] = tex1DLayered<float>(t, 1.5f, (int)threadIdx.x - 1); }
extern "C" __global__ void two(float *out, cudaTextureObject_t t)
{ out[threadIdx.x] = tex2DLayered<float>(t, 1.5f, 0.5f, (int)threadIdx.x - 1); }
extern "C" __global__ void add(cudaSurfaceObject_t s)
{ float v = surf2DLayeredread<float>(s, 4 * threadIdx.x, 0, 1);
  surf2DLayeredwrite(v + 100, s, 4 * threadIdx.x, 0, 1); }
"""


def test_layers():
    module = cupy.RawModule(code=LAYERS)
    image = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4)
    flags = CUDA_ARRAY_LAYERED | runtime.cudaArraySurfaceLoadStore
    array = array_of(image, flags=flags)
    out = cupy.zeros(5, np.float32)
    t = texture.TextureObject(on_array(array), how())
    module.get_function("two")((1,), (5,), (out, t))
    assert out.tolist() == [17, 1, 9, 17, 17]
    surface = texture.SurfaceObject(on_array(array))
    module.get_function("add")((1,), (4,), (surface,))
    back = np.zeros_like(image)
    array.copy_to(back)
    cupy.cuda.Device().synchronize()
    image[1, 0] += 100
    assert (back == image).all()


# ---- surfaces -----------------------------------------------------------------------------------

SURFACE = r"""
extern "C" __global__
void shift(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int by, int clamp)
{
  int x = threadIdx.x, y = threadIdx.y;
  uchar4 v;
  if (clamp) surf2Dread(&v, from, (x + by) * 4, y + by, cudaBoundaryModeClamp);
  else v = surf2Dread<uchar4>(from, (x + by) * 4, y + by, cudaBoundaryModeZero);
  surf2Dwrite(v, to, x * 4, y);
  surf2Dwrite(v, to, (x + 99) * 4, y, cudaBoundaryModeZero);  // nowhere
}
extern "C" __global__ void cube(cudaSurfaceObject_t s)
{ surf3Dwrite(surf3Dread<float>(s, 4 * threadIdx.x, threadIdx.y, threadIdx.z) + 1.0f, s,
    4 * threadIdx.x, threadIdx.y, threadIdx.z); }
extern "C" __global__ void line(cudaSurfaceObject_t s)
{ surf1Dwrite(surf1Dread<float>(s, 4 * threadIdx.x) + 1.0f, s, 4 * threadIdx.x); }
"""


def writable(image, channels=1):
    array = array_of(image, channels, runtime.cudaArraySurfaceLoadStore)
    return array, texture.SurfaceObject(on_array(array))


def back(array, like):
    out = cupy.zeros_like(cupy.asarray(like))
    array.copy_to(out)
    return out.get()


@pytest.mark.parametrize("clamp", [0, 1])
def test_surfaces_of_two_dimensions(clamp):
    module = cupy.RawModule(code=SURFACE)
    image = np.random.default_rng(3).integers(1, 255, (3, 4 * 4), np.uint8)
    (_one, source), (to, target) = writable(image, 4), writable(np.zeros_like(image), 4)
    module.get_function("shift")((1,), (4, 3), (source, target, np.int32(2), np.int32(clamp)))
    pixels = image.reshape(3, 4, 4)
    rows, columns = np.clip(np.arange(3) + 2, 0, 2), np.clip(np.arange(4) + 2, 0, 3)
    wanted = pixels[rows][:, columns]
    if not clamp:
        wanted[1:] = wanted[:, 2:] = 0
    assert (back(to, image).reshape(3, 4, 4) == wanted).all()


@pytest.mark.parametrize(("name", "shape"), [("line", (5,)), ("cube", (2, 3, 4))])
def test_surfaces_of_one_and_three_dimensions(name, shape):
    image = np.random.default_rng(4).random(shape, np.float32)
    array, surface = writable(image)
    cupy.RawModule(code=SURFACE).get_function(name)((1,), shape[::-1], (surface,))
    assert (back(array, image) == image + 1).all()


# ---- PyCUDA's arrays ----------------------------------------------------------------------------


def test_arrays_of_pycuda():
    """Copies of rows and boxes into CUDA arrays and back, at offsets too."""
    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    try:
        image = np.random.default_rng(5).random((6, 8), np.float32)
        array = drv.matrix_to_array(image, "C")
        out = np.zeros((2, 3), np.float32)
        copy = drv.Memcpy2D()
        copy.set_src_array(array)
        copy.set_dst_host(out)
        copy.src_x_in_bytes, copy.src_y = 4 * 4, 3
        copy.width_in_bytes, copy.height, copy.dst_pitch = 3 * 4, 2, 3 * 4
        copy(aligned=True)
        assert (out == image[3:5, 4:7]).all()
        copy.height = 4  # past the last row
        with pytest.raises(drv.LogicError, match="invalid argument"):
            copy(aligned=True)
        line = drv.matrix_to_array(image[:1], "C")
        x = cupy.zeros(6, np.float32)
        drv.memcpy_atod(x.data.ptr, line, 8, 6 * 4)
        assert (x.get() == image[0, 2:]).all()
        drv.memcpy_dtoa(line, 4, x.data.ptr, 6 * 4)
        drv.memcpy_atod(x.data.ptr, line, 0, 6 * 4)
        assert (x.get() == [image[0, 0], *image[0, 2:7]]).all()
        cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        array = drv.gpuarray_to_array(gpuarray.to_gpu(cube), "C")
        box = drv.Memcpy3D()
        out = np.zeros((1, 2, 3), np.float32)
        box.set_src_array(array)
        box.set_dst_host(out)
        box.src_x_in_bytes, box.src_y, box.src_z = 4, 1, 1
        box.width_in_bytes, box.height, box.depth = 3 * 4, 2, 1
        box.dst_pitch, box.dst_height = 3 * 4, 2
        box()
        assert (out == cube[1:, 1:, 1:]).all()
    finally:
        context.pop()


# ---- what is refused ----------------------------------------------------------------------------


def test_what_cannot_be_made():
    integers = array_of(np.zeros((2, 2), np.int32))
    with pytest.raises(runtime.CUDARuntimeError):
        texture.TextureObject(on_array(integers), how(filter="linear"))


# ---- hostcuda's messages ------------------------------------------------------------------------

PROGRAM = """
import cupy, numpy as np
from cupy.cuda import runtime, texture
from pycuda import gpuarray
channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
array = texture.CUDAarray(channel, 8, 2, 0, runtime.cudaArraySurfaceLoadStore)
array.copy_from(np.zeros((2, 8), np.float32))
resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
kernel = cupy.RawKernel(r'''extern "C" __global__ void paint(cudaSurfaceObject_t s, int y)
{ surf2Dwrite(1.0f, s, 4 * threadIdx.x, y); }''', "paint")
surface = texture.SurfaceObject(resource)
image = texture.TextureObject(resource, texture.TextureDescriptor())
"""


@pytest.fixture
def run(run_program):
    return lambda text, *options: run_program(PROGRAM + text, *options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("surface, np.int32(2)", "used a surface outside of its texels"),
        ("np.uint64(5), np.int32(0)", "used what is no surface object"),
        ("image, np.int32(0)", "used what is no surface object"),
        (
            "texture.SurfaceObject(resource), np.int32(0)",
            "used a texture or surface object that was destroyed before it ran",
        ),
    ],
)
def test_a_wrong_use_names_the_kernel(call, message, run):
    done = run(f"kernel((1,), (8,), ({call})); cupy.cuda.Device().synchronize()\n")
    assert done.returncode == 1
    where = "hostcuda: kernel paint, block (0,0,0), thread (0,0,0): "
    assert f"{where}{message} (line 2)\n" in done.stderr
    assert "cudaErrorLaunchFailure" in done.stderr


def test_a_race_for_a_surface_is_found(run):
    text = """
streams = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
with streams[0]:
    kernel((1,), (8,), (surface, np.int32(1)))
out = np.full((2, 8), 5, np.float32)
array.copy_to(out, streams[1])
cupy.cuda.Device().synchronize()
print(out[1, 0])
"""
    done = run(text, "--orders", "3")
    assert done.returncode == 1
    assert "a copy of 64 bytes" in done.stderr + done.stdout
    assert "kernel paint" in done.stderr + done.stdout
    fixed = text.replace("out = np", "streams[0].synchronize()\nout = np")
    assert run(fixed, "--orders", "3").returncode == 0

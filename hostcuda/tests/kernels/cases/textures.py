"""Texture and surface objects, made by CuPy.

Source: CUDA C++ Programming Guide, "Texture Fetching": point sampling takes texel floor(x); linear
filtering of x uses x - 0.5, its fraction in 8 bits (1.8 fixed point), so that halves and quarters are
exact; wrap and mirror need normalised coordinates; border gives 0; integers read as normalised floats
are divided by their greatest value. Surfaces are addressed in bytes in x.
"""

import cupy
from cupy.cuda import runtime as rt
from cupy.cuda.texture import (
    ChannelFormatDescriptor,
    CUDAarray,
    ResourceDescriptor,
    SurfaceObject,
    TextureDescriptor,
    TextureObject,
)

from . import Kernel, L, f4, i4, np, u1, u4

KINDS = {"f": rt.cudaChannelFormatKindFloat, "i": rt.cudaChannelFormatKindSigned}
KINDS["u"] = rt.cudaChannelFormatKindUnsigned
WRAP, CLAMP = rt.cudaAddressModeWrap, rt.cudaAddressModeClamp
MIRROR, BORDER = rt.cudaAddressModeMirror, rt.cudaAddressModeBorder
LINEAR, POINT = rt.cudaFilterModeLinear, rt.cudaFilterModePoint
ELEMENT, NORMALISED = rt.cudaReadModeElementType, rt.cudaReadModeNormalizedFloat


def _array(data, channels=1, flags=0):
    bits = [8 * data.dtype.itemsize] * channels + [0] * (4 - channels)
    shape = (*data.shape[:-1], data.shape[-1] // channels)
    made = CUDAarray(
        ChannelFormatDescriptor(*bits, KINDS[data.dtype.kind]), *shape[::-1], flags=flags
    )
    made.copy_from(data)
    return made


def texture(data, mode=CLAMP, sampling=POINT, read=ELEMENT, normalised=0, channels=1):
    """Return an input: a texture object over a CUDA array."""

    def make():
        resource = ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=_array(data, channels))
        how = TextureDescriptor((mode,) * 3, sampling, read, normalizedCoords=normalised)
        return TextureObject(resource, how)

    return "cudaTextureObject_t", make


def linear_memory(data):
    """Return an input: a texture object over linear memory."""

    def make():
        bits = 8 * data.dtype.itemsize
        channel = ChannelFormatDescriptor(bits, 0, 0, 0, KINDS[data.dtype.kind])
        held = cupy.asarray(data)
        resource = ResourceDescriptor(
            rt.cudaResourceTypeLinear, arr=held, chDesc=channel, sizeInBytes=data.nbytes
        )
        return TextureObject(resource, TextureDescriptor((CLAMP,), POINT, ELEMENT))

    return "cudaTextureObject_t", make


def surface(data):
    """Return an input: a surface object."""

    def make():
        array = _array(data, flags=rt.cudaArraySurfaceLoadStore)
        return SurfaceObject(ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=array))

    return "cudaSurfaceObject_t", make


N = f4([10, 20, 30, 40])
GRID = f4(np.arange(12).reshape(3, 4))
CUBE = f4(np.arange(24).reshape(2, 3, 4))
AT = np.arange(8)

KERNELS = {
    "point_1d_clamps": Kernel(
        "o[t] = tex1D<float>(a, t - 2 + 0.5f);",
        N[np.clip(AT - 2, 0, 3)],
        (texture(N),),
        block=8,
    ),
    "point_1d_border": Kernel(
        "o[t] = tex1D<float>(a, t - 2 + 0.5f);",
        f4([0, 0, 10, 20, 30, 40, 0, 0]),
        (texture(N, BORDER),),
        block=8,
    ),
    "linear_1d": Kernel(
        "o[t] = tex1D<float>(a, t * 0.5f);",
        f4([10, 10, 15, 20, 25, 30, 35, 40]),
        (texture(N, sampling=LINEAR),),
        block=8,
    ),
    "linear_1d_quarters": Kernel(
        "o[t] = tex1D<float>(a, 0.5f + t * 0.25f);",
        f4(10 + 2.5 * AT),
        (texture(N, sampling=LINEAR),),
        block=8,
    ),
    "normalised_wrap": Kernel(
        "o[t] = tex1D<float>(a, (t - 2 + 0.5f) / 4);",
        N[(AT - 2) % 4],
        (texture(N, WRAP, normalised=1),),
        block=8,
    ),
    "normalised_mirror": Kernel(
        "o[t] = tex1D<float>(a, (t - 2 + 0.5f) / 4);",
        f4([20, 10, 10, 20, 30, 40, 40, 30]),
        (texture(N, MIRROR, normalised=1),),
        block=8,
    ),
    "normalised_linear_wrap": Kernel(
        "o[t] = tex1D<float>(a, t / 4.f);",
        f4([25, 15, 25, 35] * 2),
        (texture(N, WRAP, LINEAR, normalised=1),),
        block=8,
    ),
    "point_2d": Kernel(
        "o[t] = tex2D<float>(a, t % 4 + 0.5f, t / 4 + 0.5f);",
        f4(range(12)),
        (texture(GRID),),
        block=12,
    ),
    "linear_2d": Kernel(
        "o[t] = tex2D<float>(a, t % 3 + 1.f, t / 3 + 1.f);",
        f4([2.5, 3.5, 4.5, 6.5, 7.5, 8.5]),
        (texture(GRID, sampling=LINEAR),),
        block=6,
    ),
    "linear_2d_quarters": Kernel(
        "o[t] = tex2D<float>(a, 0.75f + t, 0.75f);",
        f4([1.25, 2.25, 3.25]),
        (texture(GRID, sampling=LINEAR),),
        block=3,
    ),
    "clamped_2d": Kernel(
        "o[0] = tex2D<float>(a, -5.f, 7.f); o[1] = tex2D<float>(a, 9.f, -3.f);",
        f4([8, 3]),
        (texture(GRID),),
        block=1,
    ),
    "point_3d": Kernel(
        "o[t] = tex3D<float>(a, t % 4 + .5f, t / 4 % 3 + .5f, t / 12 + .5f);",
        f4(range(24)),
        (texture(CUBE),),
        block=24,
    ),
    "linear_3d": Kernel(
        "o[0] = tex3D<float>(a, 1.f, 1.f, 1.f); o[1] = tex3D<float>(a, 2.5f, 1.5f, 1.f);",
        # The mean of 8 texels; halfway between 6 and 18
        f4([8.5, 12]),
        (texture(CUBE, sampling=LINEAR),),
        block=1,
    ),
    "integers": Kernel(
        "o[t] = tex1D<int>(a, t + 0.5f);",
        i4([-5, 2**31 - 1, -(2**31), 7]),
        (texture(i4([-5, 2**31 - 1, -(2**31), 7])),),
        block=4,
    ),
    "bytes": Kernel(
        "o[t] = tex1D<unsigned char>(a, t + 0.5f);",
        u4([0, 255, 128, 1]),
        (texture(u1([0, 255, 128, 1])),),
        block=4,
    ),
    "bytes_as_floats": Kernel(
        "o[t] = tex1D<float>(a, t + 0.5f);",
        f4([0, 1, np.float32(51) / np.float32(255), np.float32(204) / np.float32(255)]),
        (texture(u1([0, 255, 51, 204]), read=NORMALISED),),
        block=4,
        ulp=1,
    ),
    "vectors_of_4": Kernel(
        "float4 x = tex1D<float4>(a, t + 0.5f); o[t] = x.x + 10 * x.y + 100 * x.z + 1000 * x.w;",
        f4([3210, 3210 + 4 * 1111]),
        (texture(f4(range(8)), channels=4),),
        block=2,
    ),
    "linear_memory": Kernel(
        "o[t] = tex1Dfetch<float>(a, 31 - t);",
        f4(31 - L) / 2,
        (linear_memory(f4(L) / 2),),
    ),
    "gather": Kernel(
        """float4 g = tex2Dgather<float4>(a, 1.f, 1.f, 0);
        o[0] = g.x; o[1] = g.y; o[2] = g.z; o[3] = g.w;""",
        # Counter-clockwise from the lower left: (0, 1), (1, 1), (1, 0), (0, 0)
        f4([4, 5, 1, 0]),
        (texture(GRID),),
        block=1,
    ),
    "surface_of_2_dimensions": Kernel(
        """int x = t % 4, y = t / 4;
        float v = surf2Dread<float>(a, 4 * x, y);
        __syncthreads();
        surf2Dwrite(v * 10, a, 4 * (3 - x), y);
        __syncthreads();
        o[t] = surf2Dread<float>(a, 4 * x, y);""",
        f4((np.arange(12).reshape(3, 4)[:, ::-1] * 10).ravel()),
        (surface(GRID),),
        block=12,
    ),
    "surface_of_integers": Kernel(
        """surf1Dwrite(t * t - 5, a, 4 * t);
        __syncthreads();
        o[t] = surf1Dread<int>(a, 4 * (7 - t));""",
        i4((7 - AT) ** 2 - 5),
        (surface(i4(AT)),),
        block=8,
    ),
    "surface_boundaries": Kernel(
        """surf1Dwrite(99, a, 4 * 20, cudaBoundaryModeZero);
        o[0] = surf1Dread<int>(a, 4 * 20, cudaBoundaryModeZero);
        o[1] = surf1Dread<int>(a, 4 * 20, cudaBoundaryModeClamp);
        o[2] = surf1Dread<int>(a, -4, cudaBoundaryModeClamp);""",
        i4([0, 7, 0]),
        (surface(i4(AT)),),
        block=1,
    ),
    "surface_of_3_dimensions": Kernel(
        "o[t] = surf3Dread<float>(a, t % 4 * 4, t / 4 % 3, t / 12);",
        f4(range(24)),
        (surface(CUBE),),
        block=24,
    ),
}

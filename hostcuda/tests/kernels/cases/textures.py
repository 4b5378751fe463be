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

from . import Fails, Kernel, L, f4, i1, i2, i4, np, u1, u2, u4

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


def texture(
    data, mode=CLAMP, sampling=POINT, read=ELEMENT, normalised=0, channels=1, flags=0, **more
):
    """Return an input: a texture object over a CUDA array; `mode` may have one for each dimension."""

    def make():
        array = _array(data, channels, flags)
        resource = ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=array)
        modes = mode if isinstance(mode, tuple) else (mode,) * 3
        how = TextureDescriptor(modes, sampling, read, normalizedCoords=normalised, **more)
        return TextureObject(resource, how)

    return "cudaTextureObject_t", make


def linear_memory(data, channels=1, read=ELEMENT):
    """Return an input: a texture object over linear memory."""

    def make():
        bits = [8 * data.dtype.itemsize] * channels + [0] * (4 - channels)
        channel = ChannelFormatDescriptor(*bits, KINDS[data.dtype.kind])
        held = cupy.asarray(data)
        resource = ResourceDescriptor(
            rt.cudaResourceTypeLinear, arr=held, chDesc=channel, sizeInBytes=data.nbytes
        )
        return TextureObject(resource, TextureDescriptor((CLAMP,), POINT, read))

    return "cudaTextureObject_t", make


def rows_of_memory(data, width, **how):
    """Return an input: a texture object over the first texels of each row of a matrix."""

    def make():
        channel = ChannelFormatDescriptor(8 * data.itemsize, 0, 0, 0, KINDS[data.dtype.kind])
        resource = ResourceDescriptor(
            rt.cudaResourceTypePitch2D,
            arr=cupy.asarray(data),
            chDesc=channel,
            width=width,
            height=len(data),
            pitchInBytes=data.strides[0],
        )
        return TextureObject(resource, TextureDescriptor((CLAMP,) * 2, POINT, ELEMENT, **how))

    return "cudaTextureObject_t", make


def surface(data, channels=1, flags=0):
    """Return an input: a surface object."""

    def make():
        array = _array(data, channels, flags | rt.cudaArraySurfaceLoadStore)
        return SurfaceObject(ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=array))

    return "cudaSurfaceObject_t", make


N = f4([10, 20, 30, 40])
GRID = f4(np.arange(12).reshape(3, 4))
CUBE = f4(np.arange(24).reshape(2, 3, 4))
AT = np.arange(8)
PICTURE = np.arange(64).reshape(8, 8) * 37 % 64 * 16
LAYERED = 1  # cudaArrayLayered


def between(data, at):
    """Return a linear fetch of a line at these places, with what is beyond its ends clamped."""
    return np.interp(np.asarray(at) - 0.5, np.arange(len(data)), data)


def enlarged(picture):
    """Return a picture with twice as many rows and columns, by linear fetches."""
    at = (np.arange(16) + 0.5) / 2
    rows = np.array([between(row, at) for row in picture])
    return np.array([between(column, at) for column in rows.T]).T


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
    # ---- addresses
    "border_colours": Kernel(
        "o[t] = tex1D<float>(a, t - 2 + 0.5f);",
        f4([7, 7, 10, 20, 30, 40, 7, 7]),
        (texture(N, BORDER, borderColors=(7.0, 0.0, 0.0, 0.0)),),
        block=8,
    ),
    "border_is_half_of_a_linear_fetch": Kernel(
        "o[t] = tex1D<float>(a, t * 0.5f) * 2;",
        # A line is a row of a plane, and half of each fetch is the border above (so on an H100).
        f4([5, 10, 15, 20, 25, 30, 35, 40, 20, 0]),
        (texture(N, BORDER, LINEAR),),
        block=10,
    ),
    "clamped_linear_normalised": Kernel(
        "o[t] = tex1D<float>(a, t / 8.f - 0.25f);",
        f4(between(N, np.arange(16) / 2 - 1)),
        (texture(N, sampling=LINEAR, normalised=1),),
        block=16,
    ),
    "normalised_linear_mirror": Kernel(
        "o[t] = tex1D<float>(a, t / 8.f - 1.f);",
        # A place x before the texture is that at -x.
        f4(between(N, [abs(x / 2 - 4) for x in range(16)])),
        (texture(N, MIRROR, LINEAR, normalised=1),),
        block=16,
    ),
    # CUDA Runtime API: without normalised coordinates, wrap and mirror are switched to clamp.
    "wrap_of_texels_clamps": Kernel(
        "o[t] = tex1D<float>(a, t - 2 + 0.5f);",
        N[np.clip(AT - 2, 0, 3)],
        (texture(N, WRAP),),
        block=8,
    ),
    "modes_of_each_dimension": Kernel(
        "o[t] = tex2D<float>(a, (t % 8 - 2 + 0.5f) / 4, (t / 8 - 1 + 0.5f) / 3);",
        f4([GRID[np.clip(y - 1, 0, 2), (x - 2) % 4] for y in range(5) for x in range(8)]),
        (texture(GRID, (WRAP, CLAMP, CLAMP), normalised=1),),
        block=40,
    ),
    "point_takes_the_floor": Kernel(
        "o[t] = tex1D<float>(a, t * 0.375f - 0.25f);",
        f4([10, 10, 10, 10, 20, 20, 30, 30, 30, 40, 40, 40]),
        (texture(N),),
        block=12,
    ),
    "picture_enlarged": Kernel(
        "o[i] = tex2D<float>(a, (t + 0.5f) / 2, (blockIdx.x + 0.5f) / 2);",
        f4(enlarged(PICTURE).ravel()),
        (texture(f4(PICTURE), sampling=LINEAR),),
        grid=16,
        block=16,
    ),
    "result_by_a_pointer": Kernel(
        """float x, y; float2 z;
        tex1D(&x, a, t + 0.5f); tex2D(&y, b, t + 0.5f, 1.5f); tex1Dfetch(&z, c, t);
        o[t] = x + y + z.x * z.y;""",
        f4(N + GRID[1] + f4([0, 6, 20, 42])),
        (texture(N), texture(GRID), linear_memory(f4(AT), channels=2)),
        block=4,
    ),
    # ---- texels
    "linear_of_bytes": Kernel(
        "o[t] = tex1D<float>(a, 0.5f + t / 4.f);",
        f4([0, 0.25, 0.5, 0.75, 1]),
        (texture(u1([0, 255]), sampling=LINEAR, read=NORMALISED),),
        block=5,
        ulp=256,  # a GPU keeps 16 bits
    ),
    "signed_bytes_as_floats": Kernel(
        "o[t] = tex1D<float>(a, t + 0.5f);",
        f4([-1, -1, 0, 1, np.float32(64) / np.float32(127)]),
        (texture(i1([-128, -127, 0, 127, 64]), read=NORMALISED),),
        block=5,
        ulp=1,
    ),
    "shorts_as_floats": Kernel(
        "float2 v = tex2D<float2>(a, t + 0.5f, 0.5f); o[2 * t] = v.x; o[2 * t + 1] = v.y;",
        f4([0, 1, np.float32(13107) / np.float32(65535), np.float32(52428) / np.float32(65535)]),
        (texture(u2([[0, 65535, 13107, 52428]]), read=NORMALISED, channels=2),),
        block=2,
        ulp=1,
    ),
    "vectors_of_shorts": Kernel(
        "short4 v = tex1D<short4>(a, t + 0.5f); o[t] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w;",
        i4([-32768 + 20 + 300 + 4000, 5 - 60 + 700 - 8000]),
        (texture(i2([-32768, 2, 3, 4, 5, -6, 7, -8]), channels=4),),
        block=2,
    ),
    "halves_as_floats": Kernel(
        "o[t] = tex1D<float>(a, t + 0.5f);",
        f4([1.5, -2048, 2.0**-24, 65504]),
        (texture(np.array([1.5, -2048, 2.0**-24, 65504], np.float16)),),
        block=4,
    ),
    "srgb_keeps_its_ends": Kernel(
        "float4 v = tex1D<float4>(a, 0.5f); o[0] = v.x; o[1] = v.y; o[2] = v.z; o[3] = v.w;",
        f4([0, 1, 0, np.float32(51) / np.float32(255)]),
        (texture(u1([0, 255, 0, 51]), read=NORMALISED, channels=4, sRGB=1),),
        block=1,
        ulp=1,
    ),
    "linear_memory_of_bytes": Kernel(
        "uchar4 v = tex1Dfetch<uchar4>(a, t); o[t] = v.x | v.y << 8 | v.z << 16 | v.w << 24;",
        u4((np.arange(128) * 7 % 256).astype("u1").view("u4")),
        (linear_memory(u1(np.arange(128) * 7 % 256), channels=4),),
    ),
    "rows_of_memory": Kernel(
        "o[t] = tex2D<int>(a, t % 5 + 0.5f, t / 5 + 0.5f);",
        i4([n // 5 * 32 + n % 5 for n in range(15)]),
        (rows_of_memory(i4(np.arange(96).reshape(3, 32)), 5),),
        block=15,
    ),
    "rows_of_memory_normalised": Kernel(
        "o[t] = tex2D<float>(a, (t % 8 + 0.5f) / 8, (t / 8 + 0.5f) / 4);",
        f4([n // 8 * 16 + n % 8 for n in range(32)]),
        (rows_of_memory(f4(np.arange(64).reshape(4, 16)), 8, normalizedCoords=1),),
    ),
    "layers_of_planes": Kernel(
        "o[t] = tex2DLayered<float>(a, t % 4 + 0.5f, t / 4 % 3 + 0.5f, t / 12);",
        f4(range(24)),
        (texture(CUBE, flags=LAYERED),),
        block=24,
    ),
    "layers_are_not_mixed": Kernel(
        "o[t] = tex2DLayered<float>(a, t + 1.f, 1.5f, t % 2);",
        f4([4.5, 17.5, 6.5]),
        (texture(CUBE, sampling=LINEAR, flags=LAYERED),),
        block=3,
    ),
    "gather_of_a_channel": Kernel(
        """uint4 g = tex2Dgather<uint4>(a, 1.f, 1.f, 2);
        o[0] = g.x; o[1] = g.y; o[2] = g.z; o[3] = g.w;""",
        u4([10, 14, 6, 2]),
        (texture(u4(np.arange(16).reshape(2, 8)), channels=4),),
        block=1,
    ),
    "gather_at_corners": Kernel(
        """float4 g = t ? tex2Dgather<float4>(a, 4.f, 3.f) : tex2Dgather<float4>(a, 0.f, 1.f);
        o[4 * t] = g.x; o[4 * t + 1] = g.y; o[4 * t + 2] = g.z; o[4 * t + 3] = g.w;""",
        f4([4, 4, 0, 0, 11, 11, 11, 11]),
        (texture(GRID),),
        block=2,
    ),
    # ---- surfaces
    "surface_of_vectors": Kernel(
        """float2 v = surf2Dread<float2>(a, 8 * (t % 2), t / 2);
        __syncthreads();
        surf2Dwrite(make_float2(v.y, -v.x), a, 8 * (t % 2), t / 2);
        __syncthreads();
        v = surf2Dread<float2>(a, 8 * (t % 2), 2 - t / 2);
        o[2 * t] = v.x; o[2 * t + 1] = v.y;""",
        f4([9, -8, 11, -10, 5, -4, 7, -6, 1, -0.0, 3, -2]),
        (surface(GRID, channels=2),),
        block=6,
    ),
    "surface_of_bytes": Kernel(
        """surf1Dwrite((unsigned char)(250 + t), a, t);
        __syncthreads();
        unsigned char v; surf1Dread(&v, a, t ^ 1);
        o[t] = v;""",
        u4([251, 250, 253, 252, 255, 254, 1, 0]),
        (surface(u1(AT)),),
        block=8,
    ),
    "surface_of_layers": Kernel(
        """surf2DLayeredwrite(100.f + t, a, 4 * (t % 4), t / 4 % 3, 1 - t / 12);
        __syncthreads();
        o[t] = surf2DLayeredread<float>(a, 4 * (t % 4), t / 4 % 3, t / 12);""",
        f4([*range(112, 124), *range(100, 112)]),
        (surface(CUBE, flags=LAYERED),),
        block=24,
    ),
    "surface_written_in_3_dimensions": Kernel(
        """surf3Dwrite(t * 2.f, a, t % 4 * 4, t / 4 % 3, t / 12);
        __syncthreads();
        o[t] = surf3Dread<float>(a, (3 - t % 4) * 4, 2 - t / 4 % 3, 1 - t / 12, cudaBoundaryModeZero);""",
        f4(2 * (23 - np.arange(24))),
        (surface(CUBE),),
        block=24,
    ),
    "surface_traps_outside": Kernel(
        "surf1Dwrite(1, a, 4 * (t + 8)); o[t] = 1;",
        Fails((700, 715, 716, 717, 718, 719)),
        (surface(i4(AT)),),
        block=1,
    ),
}

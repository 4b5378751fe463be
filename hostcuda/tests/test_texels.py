"""What a texture makes of its texels: sRGB, borders, and the weights of a linear fetch.

Source: CUDA C++ Programming Guide, "Texture Fetching", and numbers of an H200.
"""

import cupy
import numpy as np
import pytest
from cupy.cuda import runtime, texture

KINDS = {
    "i": runtime.cudaChannelFormatKindSigned,
    "u": runtime.cudaChannelFormatKindUnsigned,
    "f": runtime.cudaChannelFormatKindFloat,
}


def texture_of(image, channels=1, linear=False, fractions=True, border=None, srgb=False):
    """Return a texture object on a CUDA array: (depth,) (height,) width * channels."""
    bits = [8 * image.itemsize] * channels + [0] * (4 - channels)
    format = texture.ChannelFormatDescriptor(*bits, KINDS[image.dtype.kind])
    array = texture.CUDAarray(format, image.shape[-1] // channels, *image.shape[-2::-1])
    array.copy_from(image)
    how = texture.TextureDescriptor(
        (runtime.cudaAddressModeClamp if border is None else runtime.cudaAddressModeBorder,) * 3,
        runtime.cudaFilterModeLinear if linear else runtime.cudaFilterModePoint,
        runtime.cudaReadModeNormalizedFloat if fractions else runtime.cudaReadModeElementType,
        sRGB=srgb,
        borderColors=border,
    )
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    return texture.TextureObject(resource, how)


def fetch(call, t, places, dtype="f4"):
    """Return the four channels that `call` answers at places x, y."""
    vector = {"f4": "float4", "i4": "int4"}[dtype]
    source = f"""extern "C" __global__ void k({vector} *o, cudaTextureObject_t t, const float *p)
    {{ int i = threadIdx.x + blockIdx.x * blockDim.x; float x = p[2 * i], y = p[2 * i + 1];
       o[i] = {call.replace("tex", "tex2D").replace("V", vector)}; }}"""
    out = cupy.zeros((len(places), 4), dtype)
    given = cupy.asarray(places, dtype=np.float32)
    cupy.RawKernel(source, "k")((len(places),), (1,), (out, t, given))
    return out.get()


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_srgb_bytes_are_decoded_but_for_alpha(channels):
    image = np.repeat(np.arange(256, dtype=np.uint8), channels)[None]
    x = np.stack([np.arange(256) + 0.5, np.zeros(256)], 1)
    found = fetch("tex<V>(t, x, y)", texture_of(image, channels, srgb=True), x)
    s = np.arange(256) / 255
    decoded = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    colours = 3 if channels == 4 else 1
    for channel in range(channels):
        expected = decoded if channel < colours else s
        np.testing.assert_allclose(found[:, channel], expected, rtol=2**-7, atol=2**-14)
    assert found[100, 0] == 0.126953125  # a GPU keeps eight bits
    assert len({*found[:, 0]}) == 256


@pytest.mark.parametrize("dtype", [np.uint16, np.int8, np.float32])
def test_srgb_has_no_effect_on_other_formats(dtype):
    image = np.arange(1, 5).astype(dtype)[None]
    given = {"fractions": dtype != np.float32}
    plain, srgb = (
        fetch("tex<V>(t, x, y)", texture_of(image, srgb=srgb, **given), [[2, 0]])
        for srgb in (False, True)
    )
    assert plain[0, 0] == srgb[0, 0] > 0


BORDER = (7.5, -8.25, 0.3, 1.0)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float32, BORDER),
        (np.uint8, (1, 0, 76 / 255, 1)),
        (np.int8, (1, -1, 38 / 127, 1)),
        (np.uint16, (1, 0, 19660 / 65535, 1)),
    ],
)
def test_a_border_is_what_a_texel_can_hold(dtype, expected):
    image = np.ones((1, 16), dtype)
    t = texture_of(image, 4, fractions=dtype != np.float32, border=BORDER)
    np.testing.assert_allclose(fetch("tex<V>(t, x, y)", t, [[-2, 0]])[0], expected, rtol=1e-7)


def bits(x):
    return int(np.float32(x).view(np.int32))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int32, [bits(7.5), bits(-8.25), bits(0.3), bits(1)]),
        (np.uint16, [0, 0, bits(0.3) & 0xFFFF, 0]),
        (np.int8, [0, 0, (bits(0.3) & 0xFF) - 256, 0]),
    ],
)
def test_a_border_of_integers_is_the_bits_of_the_floats(dtype, expected):
    """As CUDA's documentation of the texture descriptor says."""
    t = texture_of(np.ones((1, 16), dtype), 4, fractions=False, border=BORDER)
    assert fetch("tex<V>(t, x, y)", t, [[-2, 0]], "i4")[0].tolist() == expected


@pytest.mark.parametrize("component", range(4))
def test_gather_beyond_the_border(component):
    image = np.arange(1, 65, dtype=np.float32).reshape(4, 16)
    t = texture_of(image, 4, fractions=False, border=BORDER)
    outside = fetch(f"texgather<V>(t, x, y, {component})", t, [[-3, -3]])[0]
    assert outside.tolist() == [np.float32(BORDER[component])] * 4
    corner = fetch(f"texgather<V>(t, x, y, {component})", t, [[0, 0]])[0]
    assert corner[1] == component + 1  # the texel to the right and below
    assert corner[[0, 2, 3]].tolist() == [np.float32(BORDER[component])] * 3


def shares(x, y):
    """Return the weights of four texels, of 256: the product is rounded, and the sum stays."""
    both = (x * y + 128) // 256
    return 256 - x - y + both, x - both, y - both, both


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_weights_of_a_plane_are_of_256(dtype):
    most = np.iinfo(dtype).max
    image = np.random.default_rng(2).integers(0, most + 1, (2, 2)).astype(dtype)
    x, y = np.random.default_rng(3).integers(0, 257, (2, 500))
    places = np.stack([x, y], 1) / 256 + 0.5
    found = fetch("tex<V>(t, x, y)", texture_of(image, linear=True), places)[:, 0]
    level = image.ravel().astype(int) * (65535 // most)
    mixed = sum(share * at for share, at in zip(shares(x, y), level, strict=True))
    assert (found == ((mixed + 128) // 256 / 65535).astype(np.float32)).all()


def test_halves_are_mixed_to_a_half():
    image = np.array([[1, 1.001]], np.float16)
    places = np.stack([0.5 + np.arange(256) / 256, np.zeros(256)], 1)
    found = fetch("tex<V>(t, x, y)", texture_of(image, linear=True, fractions=False), places)[:, 0]
    assert {*found} == {1, np.float32(image[0, 1])}

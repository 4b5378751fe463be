"""An image enlarged by a texture: normalised coordinates, linear filter, bytes as fractions."""

import numpy as np
import pycuda.driver as drv

GONE = "texture is not a template"
H, W, OUT_H, OUT_W = 6, 8, 12, 16
SOURCE = """
texture<unsigned char, 2, cudaReadModeNormalizedFloat> image;

__global__ void resize(float *out, int out_w, int out_h)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < out_w && y < out_h)
        out[y * out_w + x] = tex2D(image, (x + 0.5f) / out_w, (y + 0.5f) / out_h);
}
"""
TOLERANCE = 2e-5  # coordinates at quarters of a texel are exact; a GPU filters bytes in 17 bits


def inputs():
    return np.random.default_rng(50).integers(0, 256, (H, W), np.uint8)


def run(SourceModule):
    mod = SourceModule(SOURCE)
    tex = mod.get_texref("image")
    drv.bind_array_to_texref(drv.make_multichannel_2d_array(inputs()[..., None], "C"), tex)
    tex.set_flags(drv.TRSF_NORMALIZED_COORDINATES)
    tex.set_filter_mode(drv.filter_mode.LINEAR)
    tex.set_address_mode(0, drv.address_mode.CLAMP)
    tex.set_address_mode(1, drv.address_mode.CLAMP)
    out = np.empty((OUT_H, OUT_W), np.float32)
    func = mod.get_function("resize")
    func(
        drv.Out(out), np.int32(OUT_W), np.int32(OUT_H), block=(8, 4, 1), grid=(2, 3), texrefs=[tex]
    )
    return {"out": out}


def expected():
    image = np.pad(inputs() / 255, 1, "edge")
    at = [np.arange(n) / 2 + 0.75 for n in (OUT_H, OUT_W)]  # in the padded image
    rows = np.array([np.interp(at[1], np.arange(W + 2), row) for row in image])
    out = np.array([np.interp(at[0], np.arange(H + 2), column) for column in rows.T]).T
    return {"out": out.astype(np.float32)}

"""The game of life between two CUDA arrays: read by a texture that wraps, written by a surface."""

import numpy as np
import pycuda.driver as drv

GONE = "texture is not a template"
N, STEPS = 16, 5
SOURCE = """
texture<float, 2, cudaReadModeElementType> cells;
surface<void, 2> next;

__global__ void step(int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    float count = 0;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx)
            if (dx || dy)
                count += tex2D(cells, (x + dx + 0.5f) / n, (y + dy + 0.5f) / n);
    float alive = tex2D(cells, (x + 0.5f) / n, (y + 0.5f) / n);
    surf2Dwrite(count == 3 || (alive && count == 2) ? 1.0f : 0.0f, next, x * sizeof(float), y);
}
"""


def inputs():
    return np.random.default_rng(52).integers(0, 2, (N, N)).astype(np.float32)


def copy(array, host, into):
    box = drv.Memcpy2D()
    if into:
        box.set_src_host(host)
        box.set_dst_array(array)
    else:
        box.set_src_array(array)
        box.set_dst_host(host)
    box.width_in_bytes = box.src_pitch = box.dst_pitch = host.strides[0]
    box.height = host.shape[0]
    box(aligned=True)


def run(SourceModule):
    descr = drv.ArrayDescriptor3D()
    descr.width, descr.height, descr.depth = N, N, 0
    descr.format, descr.num_channels = drv.array_format.FLOAT, 1
    descr.flags = drv.array3d_flags.SURFACE_LDST
    now, later = drv.Array(descr), drv.Array(descr)
    copy(now, inputs(), True)

    mod = SourceModule(SOURCE)
    step = mod.get_function("step")
    cells, following = mod.get_texref("cells"), mod.get_surfref("next")
    for axis in 0, 1:
        cells.set_address_mode(axis, drv.address_mode.WRAP)
    cells.set_flags(drv.TRSF_NORMALIZED_COORDINATES)
    for _ in range(STEPS):
        cells.set_array(now)
        following.set_array(later)
        step(np.int32(N), block=(8, 8, 1), grid=(2, 2), texrefs=[cells])
        now, later = later, now
    out = np.empty((N, N), np.float32)
    copy(now, out, False)
    return {"cells": out}


def expected():
    cells = inputs()
    for _ in range(STEPS):
        shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dx or dy]
        count = sum(np.roll(cells, shift, (0, 1)) for shift in shifts)
        cells = ((count == 3) | ((cells == 1) & (count == 2))).astype(np.float32)
    return {"cells": cells}

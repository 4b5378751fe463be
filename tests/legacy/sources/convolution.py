"""2D convolution with a mask in constant memory, set through get_global."""

import numpy as np
import pycuda.driver as drv

TOLERANCE = 1e-6
H, W, R = 40, 52, 2


def inputs():
    rng = np.random.default_rng(11)
    mask = rng.random((2 * R + 1, 2 * R + 1))
    return rng.random((H, W), dtype=np.float32), (mask / mask.sum()).astype(np.float32)


def run(SourceModule):
    mod = SourceModule("""
    #define R 2
    #define SIZE (2 * R + 1)

    __constant__ float mask[SIZE * SIZE];

    __global__ void convolve(float *dest, const float *src, const int w, const int h)
    {
        const int x = __mul24(blockIdx.x, blockDim.x) + threadIdx.x;
        const int y = __mul24(blockIdx.y, blockDim.y) + threadIdx.y;
        if (x >= w || y >= h) return;

        float sum = 0.0f;
        for (int j = -R; j <= R; j++)
            for (int i = -R; i <= R; i++) {
                // the border is repeated outwards
                int sx = min(max(x + i, 0), w - 1);
                int sy = min(max(y + j, 0), h - 1);
                sum += src[sy * w + sx] * mask[(j + R) * SIZE + (i + R)];
            }
        dest[y * w + x] = sum;
    }
    """)
    image, mask = inputs()
    mask_gpu, size = mod.get_global("mask")
    assert size == mask.nbytes
    drv.memcpy_htod(mask_gpu, mask)

    dest = np.empty_like(image)
    convolve = mod.get_function("convolve")
    convolve(
        drv.Out(dest),
        drv.In(image),
        np.int32(W),
        np.int32(H),
        block=(16, 16, 1),
        grid=((W + 15) // 16, (H + 15) // 16, 1),
    )
    return {"dest": dest}


def expected():
    image, mask = inputs()
    padded = np.pad(image.astype(np.float64), R, "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, mask.shape)
    return {"dest": np.einsum("yxji,ji->yx", windows, mask).astype(np.float32)}

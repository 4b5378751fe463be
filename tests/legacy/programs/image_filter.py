"""A Gaussian filter of a grey image, as image programs have it: bare memory, copies by hand."""

import numpy as np
import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from pycuda.compiler import SourceModule

RADIUS, H, W = 3, 48, 70

module = SourceModule(
    """
    __constant__ float weights[2 * RADIUS + 1];

    __global__ void rows(unsigned char *image, float *out, int w, int h)
    {
        int x = blockIdx.x * blockDim.x + threadIdx.x;
        int y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x >= w || y >= h) return;
        float sum = 0;
        for (int k = -RADIUS; k <= RADIUS; k++)
            sum += weights[k + RADIUS] * image[y * w + min(max(x + k, 0), w - 1)];
        out[y * w + x] = sum;
    }

    __global__ void columns(float *in, unsigned char *image, int w, int h)
    {
        int x = blockIdx.x * blockDim.x + threadIdx.x;
        int y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x >= w || y >= h) return;
        float sum = 0.5f;
        for (int k = -RADIUS; k <= RADIUS; k++)
            sum += weights[k + RADIUS] * in[min(max(y + k, 0), h - 1) * w + x];
        image[y * w + x] = (unsigned char) sum;
    }
    """,
    options=[f"-DRADIUS={RADIUS}"],
)

image = np.random.default_rng(3).integers(0, 256, (H, W)).astype(np.uint8)
weights = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / 1.5) ** 2).astype(np.float32)
weights /= weights.sum()

on_device = cuda.mem_alloc(image.nbytes)
between = cuda.mem_alloc(4 * image.size)
cuda.memcpy_htod(on_device, image)
cuda.memcpy_htod(module.get_global("weights")[0], weights)
size = {"block": (16, 16, 1), "grid": ((W + 15) // 16, (H + 15) // 16)}
module.get_function("rows")(on_device, between, np.int32(W), np.int32(H), **size)
module.get_function("columns")(between, on_device, np.int32(W), np.int32(H), **size)
result = np.empty_like(image)
cuda.memcpy_dtoh(result, on_device)

padded = np.pad(image.astype(np.float32), RADIUS, mode="edge")
wide = sum(w * padded[:, k : k + W] for k, w in enumerate(weights))
expected = sum(w * wide[k : k + H] for k, w in enumerate(weights))
assert np.abs(result - expected).max() < 1
print("filtered:", result.shape, result.dtype, int(result.sum()))

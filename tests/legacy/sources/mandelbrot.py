"""Escape times of the Mandelbrot set in double precision, without fused multiply-add."""

import numpy as np
import pycuda.driver as drv

W, H, MAX_ITER = 96, 64, 60

SOURCE = """
__global__ void mandelbrot(int *iterations, double x_min, double y_min, double step)
{
    int px = blockIdx.x * blockDim.x + threadIdx.x;
    int py = blockIdx.y * blockDim.y + threadIdx.y;
    double cr = x_min + px * step;
    double ci = y_min + py * step;
    double zr = 0.0, zi = 0.0;
    int n = 0;

    while (n < MAX_ITER && zr * zr + zi * zi <= 4.0) {
        double t = zr * zr - zi * zi + cr;
        zi = 2.0 * zr * zi + ci;
        zr = t;
        n++;
    }
    iterations[py * WIDTH + px] = n;
}
"""


def run(SourceModule):
    options = ["-DWIDTH=" + str(W), "-D", f"MAX_ITER={MAX_ITER}", "--fmad=false"]
    mod = SourceModule(SOURCE, options=options)
    func = mod.get_function("mandelbrot")

    iterations_gpu = drv.mem_alloc(W * H * np.dtype(np.int32).itemsize)
    x_min, y_min, step = np.float64(-2.0), np.float64(-1.0), np.float64(1 / 32)
    func(iterations_gpu, x_min, y_min, step, block=(32, 8, 1), grid=(W // 32, H // 8))
    return {"iterations": drv.from_device(iterations_gpu, (H, W), np.int32)}


def expected():
    ci, cr = np.mgrid[:H, :W] / 32 - np.array([1.0, 2.0])[:, None, None]
    zr, zi, n = np.zeros((H, W)), np.zeros((H, W)), np.zeros((H, W), np.int32)
    for _ in range(MAX_ITER):
        inside = zr * zr + zi * zi <= 4.0
        t = zr * zr - zi * zi + cr
        zi = np.where(inside, 2.0 * zr * zi + ci, zi)
        zr = np.where(inside, t, zr)
        n += inside
    return {"iterations": n}

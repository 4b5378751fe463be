"""Seven-point stencil on a 3D grid of 3D blocks."""

import numpy as np
import pycuda.driver as drv

NX, NY, NZ = 20, 17, 11


def inputs():
    return np.random.default_rng(33).integers(0, 1000, (NZ, NY, NX)).astype(np.float64)


def run(SourceModule):
    mod = SourceModule("""
    struct Extent { int nx, ny, nz; };

    __device__ __forceinline__ int at(const Extent &e, int x, int y, int z)
    {
        return (z * e.ny + y) * e.nx + x;
    }

    __global__ void laplace(double *out, const double *in, int nx, int ny, int nz)
    {
        Extent e = {nx, ny, nz};
        int x = blockIdx.x * blockDim.x + threadIdx.x;
        int y = blockIdx.y * blockDim.y + threadIdx.y;
        int z = blockIdx.z * blockDim.z + threadIdx.z;

        if (x < 1 || y < 1 || z < 1 || x >= nx - 1 || y >= ny - 1 || z >= nz - 1)
            return;
        out[at(e, x, y, z)] =
            in[at(e, x - 1, y, z)] + in[at(e, x + 1, y, z)] +
            in[at(e, x, y - 1, z)] + in[at(e, x, y + 1, z)] +
            in[at(e, x, y, z - 1)] + in[at(e, x, y, z + 1)] - 6.0 * in[at(e, x, y, z)];
    }
    """)
    u = inputs()
    out = np.zeros_like(u)
    func = mod.get_function("laplace")
    sizes = np.int32(NX), np.int32(NY), np.int32(NZ)
    func(drv.InOut(out), drv.In(u), *sizes, block=(8, 4, 4), grid=(3, 5, 3))
    return {"laplacian": out}


def expected():
    u = inputs()
    inner = (slice(1, -1),) * 3
    out = np.zeros_like(u)
    out[inner] = -6 * u[inner]
    for axis in range(3):
        for shift in (-1, 1):
            out[inner] += np.roll(u, shift, axis)[inner]
    return {"laplacian": out}

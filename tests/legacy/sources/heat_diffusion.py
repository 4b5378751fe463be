"""Heat in a plate, explicit Euler: two buffers whose pointers are swapped."""

import numpy as np
import pycuda.driver as drv

TOLERANCE = 1e-5
N, STEPS, ALPHA = 40, 50, 0.2


def inputs():
    plate = np.random.default_rng(22).random((N, N), dtype=np.float32)
    plate[0] = 10
    return plate


def run(SourceModule):
    mod = SourceModule("""
    #define IDX(i, j) ((i) * n + (j))

    __global__ void diffuse(const float *T, float *T_new, const int n, const float alpha)
    {
        int j = threadIdx.x + blockIdx.x * blockDim.x;
        int i = threadIdx.y + blockIdx.y * blockDim.y;

        if (i > 0 && i < n - 1 && j > 0 && j < n - 1) {
            float laplacian = T[IDX(i - 1, j)] + T[IDX(i + 1, j)] + T[IDX(i, j - 1)]
                            + T[IDX(i, j + 1)] - 4.0f * T[IDX(i, j)];
            T_new[IDX(i, j)] = T[IDX(i, j)] + alpha * laplacian;
        }
    }
    """)
    func = mod.get_function("diffuse")
    plate = inputs()
    a_gpu = drv.mem_alloc(plate.nbytes)
    b_gpu = drv.mem_alloc(plate.nbytes)
    drv.memcpy_htod(a_gpu, plate)
    drv.memcpy_dtod(b_gpu, a_gpu, plate.nbytes)  # the edges stay as they are

    func.prepare([np.intp, np.intp, np.int32, np.float32])
    for _ in range(STEPS):
        func.prepared_call((5, 5), (8, 8, 1), a_gpu, b_gpu, N, ALPHA)
        a_gpu, b_gpu = b_gpu, a_gpu
    result = np.empty_like(plate)
    drv.memcpy_dtoh(result, a_gpu)
    a_gpu.free()
    b_gpu.free()
    return {"plate": result}


def expected():
    t = inputs().astype(np.float64)
    for _ in range(STEPS):
        around = t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]
        t[1:-1, 1:-1] += ALPHA * (around - 4 * t[1:-1, 1:-1])
    return {"plate": t.astype(np.float32)}

"""Halves of an array in two streams, with page-locked memory and asynchronous copies."""

import numpy as np
import pycuda.driver as drv

N = 4096


def run(SourceModule):
    mod = SourceModule("""
    __global__ void work(int *x, int n, int rounds)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n)
            return;
        int v = x[i];
        for (int r = 0; r < rounds; r++)
            v = (v * 17 + 3) & 0xffff;
        x[i] = v;
    }
    """)
    work = mod.get_function("work")
    half = N // 2

    host = drv.pagelocked_empty(N, np.int32)
    host[:] = np.arange(N)
    streams = [drv.Stream() for _ in range(2)]
    buffers = [drv.mem_alloc(half * host.itemsize) for _ in streams]
    done = [drv.Event() for _ in streams]

    for k, stream in enumerate(streams):
        part = host[k * half : (k + 1) * half]
        drv.memcpy_htod_async(buffers[k], part, stream)
        args = (buffers[k], np.int32(half), np.int32(10 + k))
        work(*args, block=(128, 1, 1), grid=(half // 128, 1), stream=stream)
        drv.memcpy_dtoh_async(part, buffers[k], stream)
        done[k].record(stream)
    for event in done:
        event.synchronize()
    return {"x": np.array(host)}


def expected():
    x = np.arange(N, dtype=np.int32)
    for half, rounds in ((x[: N // 2], 10), (x[N // 2 :], 11)):
        for _ in range(rounds):
            half[:] = (half * 17 + 3) & 0xFFFF
    return {"x": x}

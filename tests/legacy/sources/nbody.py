"""N-body gravitation: float4 positions, tiles of bodies in shared memory, leapfrog steps."""

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

TOLERANCE = 1e-5
N, THREADS, STEPS = 128, 32, 5
DT, SOFTENING = 0.01, 0.05


def inputs():
    rng = np.random.default_rng(10)
    position = rng.normal(size=(N, 4)).astype(np.float32)
    position[:, 3] = rng.random(N) / N  # the mass
    return position, np.zeros((N, 4), np.float32)


def run(SourceModule):
    mod = SourceModule("""
    __device__ float3 interact(float4 bi, float4 bj, float3 a, float soft2)
    {
        float3 r = make_float3(bj.x - bi.x, bj.y - bi.y, bj.z - bi.z);
        float d2 = r.x * r.x + r.y * r.y + r.z * r.z + soft2;
        float inv = rsqrtf(d2);
        float s = bj.w * inv * inv * inv;
        a.x += r.x * s;  a.y += r.y * s;  a.z += r.z * s;
        return a;
    }

    __global__ void step(float4 *next, const float4 *pos, float4 *vel, int n, float dt, float soft2)
    {
        __shared__ float4 tile[32];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 me = pos[i];
        float3 acc = make_float3(0.0f, 0.0f, 0.0f);

        for (int start = 0; start < n; start += blockDim.x) {
            tile[threadIdx.x] = pos[start + threadIdx.x];
            __syncthreads();
            for (int j = 0; j < blockDim.x; j++)
                acc = interact(me, tile[j], acc, soft2);
            __syncthreads();
        }
        float4 v = vel[i];
        v.x += acc.x * dt;  v.y += acc.y * dt;  v.z += acc.z * dt;
        vel[i] = v;
        next[i] = make_float4(me.x + v.x * dt, me.y + v.y * dt, me.z + v.z * dt, me.w);
    }
    """)
    step = mod.get_function("step").prepare("PPPiff")
    pos, vel = (gpuarray.to_gpu(array) for array in inputs())
    new = gpuarray.empty_like(pos)
    sizes = (N // THREADS, 1), (THREADS, 1, 1)
    for _ in range(STEPS):
        step.prepared_call(*sizes, new.gpudata, pos.gpudata, vel.gpudata, N, DT, SOFTENING**2)
        pos, new = new, pos
    drv.Context.synchronize()
    return {"position": pos.get(), "velocity": vel.get()}


def expected():
    pos, vel = (array.astype(np.float64) for array in inputs())
    for _ in range(STEPS):
        r = pos[None, :, :3] - pos[:, None, :3]
        d2 = (r * r).sum(-1) + SOFTENING**2
        vel[:, :3] += DT * (r * (pos[:, 3] * d2**-1.5)[:, :, None]).sum(1)
        pos[:, :3] += DT * vel[:, :3]
    return {"position": pos.astype(np.float32), "velocity": vel.astype(np.float32)}

"""An array of structs: particles as a NumPy record array, moved and bounced."""

import numpy as np
import pycuda.driver as drv

N = 200
particle = np.dtype(
    [("pos", np.float32, 3), ("id", np.int32), ("vel", np.float64, 3), ("hits", np.int16)],
    align=True,
)


def inputs():
    rng = np.random.default_rng(17)
    particles = np.zeros(N, particle)
    particles["pos"] = rng.integers(-16, 17, (N, 3)) / 4
    particles["vel"] = rng.integers(-16, 17, (N, 3)) / 8
    particles["id"] = rng.permutation(N)
    return particles


def run(SourceModule):
    mod = SourceModule("""
    struct particle {
        float pos[3];
        int id;
        double vel[3];
        short hits;
    };

    __global__ void move(struct particle *particles, int n, float wall)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;

        struct particle *p = &particles[i];
        for (int axis = 0; axis < 3; axis++) {
            p->pos[axis] += (float)p->vel[axis];
            if (fabsf(p->pos[axis]) > wall) {
                p->vel[axis] = -p->vel[axis];
                p->hits++;
            }
        }
        p->id += 1000;
    }
    """)
    particles = inputs()
    buf = drv.to_device(particles)
    move = mod.get_function("move")
    for _ in range(3):
        move(buf, np.int32(N), np.float32(4), block=(64, 1, 1), grid=((N + 63) // 64, 1))
    particles = drv.from_device(buf, N, particle)
    return {name: np.ascontiguousarray(particles[name]) for name in particle.names}


def expected():
    particles = inputs()
    for _ in range(3):
        particles["pos"] += particles["vel"].astype(np.float32)
        out = np.abs(particles["pos"]) > 4
        particles["vel"][out] *= -1
        particles["hits"] += out.sum(axis=1, dtype=np.int16)
        particles["id"] += 1000
    return {name: np.ascontiguousarray(particles[name]) for name in particle.names}

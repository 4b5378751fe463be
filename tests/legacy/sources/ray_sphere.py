"""Picture of some spheres: parallel rays, diffuse light, spheres in constant memory."""

import numpy as np
import pycuda.driver as drv

TOLERANCE = 1e-5
W, H = 80, 48
SPHERES = [(-0.5, 0.25, 3.0, 0.75), (0.5, 0.0, 6.0, 1.0), (1.25, -0.5, 1.5, 0.25)]
LIGHT = (-0.48, -0.6, -0.64)


def run(SourceModule):
    mod = SourceModule("""
    struct Sphere { float x, y, z, r; };

    __constant__ Sphere spheres[3];
    __constant__ float3 light;

    __device__ bool hit(const Sphere &s, float ox, float oy, float *distance)
    {
        float dx = ox - s.x, dy = oy - s.y;
        float inside = s.r * s.r - dx * dx - dy * dy;
        if (inside <= 0.0f) return false;
        *distance = s.z - sqrtf(inside);
        return true;
    }

    __global__ void render(float *image, int width, int height)
    {
        int px = blockIdx.x * blockDim.x + threadIdx.x;
        int py = blockIdx.y * blockDim.y + threadIdx.y;
        if (px >= width || py >= height) return;

        float ox = (px - width / 2) / 32.0f, oy = (py - height / 2) / 32.0f;
        float nearest = 1e30f, color = 0.1f, distance;
        for (int i = 0; i < 3; i++) {
            if (hit(spheres[i], ox, oy, &distance) && distance < nearest) {
                nearest = distance;
                float nx = (ox - spheres[i].x) / spheres[i].r;
                float ny = (oy - spheres[i].y) / spheres[i].r;
                float nz = (distance - spheres[i].z) / spheres[i].r;
                color = fmaxf(0.0f, nx * light.x + ny * light.y + nz * light.z);
            }
        }
        image[py * width + px] = color;
    }
    """)
    drv.memcpy_htod(mod.get_global("spheres")[0], np.array(SPHERES, np.float32))
    drv.memcpy_htod(mod.get_global("light")[0], np.array(LIGHT, np.float32))
    image = np.empty((H, W), np.float32)
    render = mod.get_function("render")
    render(drv.Out(image), np.int32(W), np.int32(H), block=(16, 16, 1), grid=(5, 3))
    return {"image": image}


def expected():
    oy, ox = np.mgrid[:H, :W] / 32 - np.array([H / 64, W / 64])[:, None, None]
    nearest, image = np.full((H, W), np.inf), np.full((H, W), 0.1)
    for x, y, z, r in SPHERES:
        inside = r * r - (ox - x) ** 2 - (oy - y) ** 2
        distance = z - np.sqrt(np.maximum(inside, 0))
        normal = np.array([ox - x, oy - y, distance - z]) / r
        front = (inside > 0) & (distance < nearest)
        image[front] = np.maximum(0, np.tensordot(LIGHT, normal, 1))[front]
        nearest[front] = distance[front]
    return {"image": image.astype(np.float32)}

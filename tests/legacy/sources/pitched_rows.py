"""Rows in pitched memory, filled and read with 2D copies."""

import numpy as np
import pycuda.driver as drv

H, W = 13, 37


def inputs():
    return np.random.default_rng(41).integers(0, 100, (H, W), dtype=np.int32)


def run(SourceModule):
    mod = SourceModule("""
    __global__ void reverse_rows(char *base, size_t pitch, int width)
    {
        int *row = (int *)(base + blockIdx.x * pitch);
        for (int i = threadIdx.x; i < width / 2; i += blockDim.x) {
            int left = row[i];
            row[i] = row[width - 1 - i];
            row[width - 1 - i] = left;
        }
    }
    """)
    image = inputs()
    image_gpu, pitch = drv.mem_alloc_pitch(image.strides[0], H, image.itemsize)

    copy = drv.Memcpy2D()
    copy.set_src_host(image)
    copy.set_dst_device(image_gpu)
    copy.src_pitch = copy.width_in_bytes = image.strides[0]
    copy.dst_pitch = pitch
    copy.height = H
    copy(aligned=True)

    func = mod.get_function("reverse_rows")
    func(image_gpu, np.uintp(pitch), np.int32(W), block=(32, 1, 1), grid=(H, 1))

    result = np.empty_like(image)
    copy = drv.Memcpy2D()
    copy.set_src_device(image_gpu)
    copy.set_dst_host(result)
    copy.src_pitch = pitch
    copy.dst_pitch = copy.width_in_bytes = result.strides[0]
    copy.height = H
    copy(aligned=True)
    return {"reversed": result}


def expected():
    return {"reversed": np.ascontiguousarray(inputs()[:, ::-1])}

"""Structs that hold pointers: rows of different lengths, each in memory of its own."""

import struct

import numpy as np
import pycuda.driver as drv

LENGTHS = [3, 70, 1, 25, 40]


def inputs():
    rng = np.random.default_rng(19)
    return [rng.integers(0, 100, length).astype(np.float32) for length in LENGTHS]


class RowStruct:
    """What the kernel sees: an int, four bytes of padding, a pointer."""

    mem_size = 8 + np.intp(0).nbytes

    def __init__(self, array, struct_ptr):
        self.data = drv.to_device(array)
        self.shape, self.dtype = array.shape, array.dtype
        drv.memcpy_htod(struct_ptr, struct.pack("iiP", array.size, 0, int(self.data)))

    def get(self):
        return drv.from_device(self.data, self.shape, self.dtype)


def run(SourceModule):
    mod = SourceModule("""
    struct Row {
        int datalen, __padding; // so 64-bit pointers can be aligned
        float *ptr;
    };

    __global__ void accumulate_rows(Row *rows)
    {
        Row *row = &rows[blockIdx.x];
        for (int i = threadIdx.x; i < row->datalen; i += blockDim.x)
            row->ptr[i] = row->ptr[i] * row->ptr[i] + blockIdx.x;
    }
    """)
    func = mod.get_function("accumulate_rows")

    struct_arr = drv.mem_alloc(len(LENGTHS) * RowStruct.mem_size)
    rows = [
        RowStruct(array, int(struct_arr) + i * RowStruct.mem_size)
        for i, array in enumerate(inputs())
    ]
    func(struct_arr, block=(32, 1, 1), grid=(len(rows), 1))

    # one row again, by the address of its struct
    second = np.intp(int(struct_arr) + RowStruct.mem_size)
    func(second, block=(32, 1, 1), grid=(1, 1))
    return {f"row{i}": row.get() for i, row in enumerate(rows)}


def expected():
    rows = [row * row + i for i, row in enumerate(inputs())]
    rows[1] = rows[1] * rows[1]
    return {f"row{i}": row.astype(np.float32) for i, row in enumerate(rows)}

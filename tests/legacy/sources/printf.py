"""printf from some of the threads."""

import numpy as np
import pycuda.driver as drv

PRINTS = ["block 0: 2*0 = 0", "block 1: 2*8 = 16", "block 2: 2*16 = 32", "half is 0.50, as ever"]


def run(SourceModule):
    mod = SourceModule("""
    #include <stdio.h>

    __global__ void say_hi(int *doubled)
    {
        int i = threadIdx.x + blockIdx.x * blockDim.x;
        doubled[i] = 2 * i;
        if (threadIdx.x == 0)
            printf("block %d: 2*%d = %d\\n", blockIdx.x, i, doubled[i]);
        if (i == 5)
            printf("half is %.2f, %s\\n", 0.5f, "as ever");
    }
    """)
    func = mod.get_function("say_hi")
    doubled = np.zeros(24, np.int32)
    func(drv.Out(doubled), block=(8, 1, 1), grid=(3, 1))
    return {"doubled": doubled}


def expected():
    return {"doubled": 2 * np.arange(24, dtype=np.int32)}

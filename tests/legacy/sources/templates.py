"""C++ templates behind extern "C" wrappers, with no_extern_c."""

import numpy as np
import pycuda.driver as drv


def inputs():
    rng = np.random.default_rng(14)
    return {
        "int": rng.integers(-99, 99, 300, dtype=np.int32),
        "double": rng.integers(-99, 99, 300).astype(np.float64),
    }


def run(SourceModule):
    mod = SourceModule(
        """
    template <typename T>
    struct Square {
        __device__ T operator()(T x) const { return x * x; }
    };

    template <typename T>
    struct Negate {
        __device__ T operator()(T x) const { return -x; }
    };

    template <typename T, int STEP, class Op>
    __device__ void apply_every(T *data, int n, Op op)
    {
        int i = (blockIdx.x * blockDim.x + threadIdx.x) * STEP;
        if (i < n)
            data[i] = op(data[i]);
    }

    extern "C" {
    __global__ void square_int(int *data, int n)
    {
        apply_every<int, 2>(data, n, Square<int>());
    }

    __global__ void negate_double(double *data, int n)
    {
        apply_every<double, 3>(data, n, Negate<double>());
    }
    }
    """,
        no_extern_c=True,
    )
    data = inputs()
    for name, array in data.items():
        verb = {"int": "square", "double": "negate"}[name]
        func = mod.get_function(f"{verb}_{name}")
        func(drv.InOut(array), np.int32(array.size), block=(64, 1, 1), grid=(5, 1))
    return data


def expected():
    data = inputs()
    data["int"][::2] **= 2
    data["double"][::3] *= -1
    return data

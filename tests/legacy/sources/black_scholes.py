"""Black-Scholes prices of European calls and puts, with fast mathematics."""

import numpy as np
import pycuda.driver as drv
from numpy import exp, log, sqrt

TOLERANCE = 2e-5  # the hardware's own logarithm and exponential
N = 500
R, V = 0.02, 0.30


def inputs():
    rng = np.random.default_rng(25)
    ranges = ((5, 30), (1, 100), (0.25, 10))
    return [rng.uniform(*limits, N).astype(np.float32) for limits in ranges]


def run(SourceModule):
    mod = SourceModule(
        """
    __device__ float CND(float d)
    {
        const float A[5] = {0.31938153f, -0.356563782f, 1.781477937f, -1.821255978f, 1.330274429f};
        float K = 1.0f / (1.0f + 0.2316419f * fabsf(d));
        float sum = 0.0f;
        for (int i = 4; i >= 0; i--)
            sum = K * (A[i] + sum);
        float cnd = 0.39894228040143f * expf(-0.5f * d * d) * sum;
        return d > 0 ? 1.0f - cnd : cnd;
    }

    __global__ void BlackScholes(float *call, float *put, float *S, float *X, float *T,
                                 float R, float V, int n)
    {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            float sqrtT = sqrtf(T[i]);
            float d1 = (logf(S[i] / X[i]) + (R + 0.5f * V * V) * T[i]) / (V * sqrtT);
            float d2 = d1 - V * sqrtT;
            float expRT = expf(-R * T[i]);
            call[i] = S[i] * CND(d1) - X[i] * expRT * CND(d2);
            put[i] = X[i] * expRT * (1.0f - CND(d2)) - S[i] * (1.0f - CND(d1));
        }
    }
    """,
        options=["-use_fast_math"],
    )
    func = mod.get_function("BlackScholes")
    call, put = np.empty(N, np.float32), np.empty(N, np.float32)
    arrays = [drv.Out(call), drv.Out(put), *map(drv.In, inputs())]
    func(*arrays, np.float32(R), np.float32(V), np.int32(N), block=(128, 1, 1), grid=(2, 1))
    return {"call": call, "put": put}


def cnd(d):
    coefficients = (0.31938153, -0.356563782, 1.781477937, -1.821255978, 1.330274429, 0)
    k = 1 / (1 + 0.2316419 * np.abs(d))
    tail = exp(-0.5 * d * d) / sqrt(2 * np.pi) * np.polyval(coefficients[::-1], k) * k
    return np.where(d > 0, 1 - tail, tail)


def expected():
    s, x, t = (array.astype(np.float64) for array in inputs())
    d1 = (log(s / x) + (R + V * V / 2) * t) / (V * sqrt(t))
    d2 = d1 - V * sqrt(t)
    call = s * cnd(d1) - x * exp(-R * t) * cnd(d2)
    put = x * exp(-R * t) * (1 - cnd(d2)) - s * (1 - cnd(d1))
    return {"call": call.astype(np.float32), "put": put.astype(np.float32)}

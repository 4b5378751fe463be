"""Discrete Fourier transform with pycuda::complex."""

import numpy as np
import pycuda.gpuarray as gpuarray

TOLERANCE = 1e-5
N = 64


def inputs():
    rng = np.random.default_rng(12)
    return (rng.normal(size=N) + 1j * rng.normal(size=N)).astype(np.complex64)


def run(SourceModule):
    mod = SourceModule("""
    #include <pycuda-complex.hpp>

    typedef pycuda::complex<float> cmplx;

    __global__ void dft(cmplx *spectrum, float *power, const cmplx *signal, int n)
    {
        int k = blockIdx.x * blockDim.x + threadIdx.x;
        if (k >= n)
            return;

        cmplx sum(0, 0);
        for (int t = 0; t < n; t++) {
            float angle = -2.0f * 3.14159265358979f * ((k * t) % n) / n;
            cmplx w(cosf(angle), sinf(angle));
            sum += signal[t] * w;
        }
        spectrum[k] = sum;
        power[k] = real(sum * conj(sum));
    }
    """)
    signal = gpuarray.to_gpu(inputs())
    spectrum = gpuarray.empty(N, np.complex64)
    power = gpuarray.empty(N, np.float32)
    dft = mod.get_function("dft")
    dft(spectrum, power, signal, np.int32(N), block=(32, 1, 1), grid=(2, 1))
    return {"spectrum": spectrum.get(), "power": power.get()}


def expected():
    spectrum = np.fft.fft(inputs().astype(np.complex128))
    return {
        "spectrum": spectrum.astype(np.complex64),
        "power": (np.abs(spectrum) ** 2).astype(np.float32),
    }

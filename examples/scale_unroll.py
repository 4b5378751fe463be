"""Generate a kernel for each unroll factor, check it, time it, and keep the fastest.

The pattern of run-time code generation that PyCUDA is used for, on CuPy arrays:

    python examples/scale_unroll.py
"""

from __future__ import annotations

import sys

import cupy

import bridge

FACTORS = (1, 2, 4, 8, 16)
BLOCK = 256


def scale_unroll(factor):
    """Compile ``y[i] = a * x[i]`` with `factor` elements a thread, a block apart."""
    lines = "\n".join(
        f"    if (i + {k * BLOCK} < n) y[i + {k * BLOCK}] = a * x[i + {k * BLOCK}];"
        for k in range(factor)
    )
    source = f"""
__global__ void scale(float *y, const float *x, float a, int n)
{{
    int i = blockIdx.x * {BLOCK * factor} + threadIdx.x;
{lines}
}}
"""
    function = bridge.SourceModule(source).get_function("scale")

    def scale(x, a):
        y = cupy.empty_like(x)
        grid = (x.size + BLOCK * factor - 1) // (BLOCK * factor)
        function(y, x, a, x.size, block=BLOCK, grid=grid)
        return y

    return scale


def milliseconds(function, *args, repeat=20):
    """Return the GPU's time for a call, the median of some."""
    times = []
    for _ in range(repeat):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        function(*args)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return sorted(times)[repeat // 2]


def main(n=1 << 24):
    """Print the time of each factor; return the fastest function."""
    x = cupy.linspace(0, 1, n, dtype=cupy.float32)
    found = {}
    for factor in FACTORS:
        scale = scale_unroll(factor)
        assert (scale(x, 3) == 3 * x).all(), factor
        found[factor] = milliseconds(scale, x, 3)
        rate = 2 * x.nbytes / found[factor] / 1e6 if found[factor] else float("nan")
        print(f"unroll {factor:2}: {found[factor]:.3f} ms, {rate:.0f} GB/s")
    best = min(found, key=found.get)
    print(f"fastest: unroll {best}")
    return scale_unroll(best)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

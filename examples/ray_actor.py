"""Keep a PyCUDA kernel in a Ray actor on each of up to two GPUs, and give them work.

python examples/ray_actor.py
"""

from __future__ import annotations

import os
import sys

import cupy
import numpy as np
import ray
from pycuda import gpuarray

import bridge

SOURCE = """
__global__ void cubic(float *y, const float *x, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] * x[i] * x[i] - x[i];
}
"""


@ray.remote(num_gpus=1)
class Cubic:
    """A process with a GPU, the only one that Ray lets it see, and a kernel on it.

    Ray calls methods on the main thread, or on others (`max_concurrency`). Each one works in the
    context that PyCUDA and CuPy share and has let go of its arrays when it leaves that; so no
    array is lost, and PyCUDA has no reason to abort the process at its end.
    """

    @bridge.primary_context()
    def __init__(self):
        self.cubic = bridge.SourceModule(SOURCE).get_function("cubic")

    @bridge.primary_context()
    def evaluate(self, x, a):
        """Return ``a * x**3 - x`` of a NumPy or CuPy array, as a NumPy array."""
        x = bridge.as_pycuda(cupy.asarray(x, np.float32))
        y = gpuarray.empty_like(x)
        self.cubic(y, x, a, x.size, block=(256, 1, 1), grid=((x.size + 255) // 256, 1))
        return y.get()

    def where(self):
        """Return the process, and the GPU as Ray counts it."""
        return os.getpid(), ray.get_gpu_ids()[0]


def main(n=1_000_000):
    """Share the work among as many actors as there are GPUs, check, and print a line for each."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus == 0:
        sys.exit("ray_actor: Ray knows of no GPU")
    actors = [Cubic.remote() for _ in range(min(gpus, 2))]
    pieces = np.array_split(np.linspace(-1, 1, n, dtype=np.float32), len(actors))
    results = [actor.evaluate.remote(x, 2) for actor, x in zip(actors, pieces, strict=True)]
    for actor, x, y in zip(actors, pieces, ray.get(results), strict=True):
        np.testing.assert_allclose(y, 2 * x**3 - x, atol=1e-6)
        process, gpu = ray.get(actor.where.remote())
        print(f"process {process}, GPU {gpu}: {y.size} elements, sum {y.sum(dtype=float):.3f}")


if __name__ == "__main__":
    ray.init(ignore_reinit_error=True)
    main(*map(int, sys.argv[1:]))

"""Buffers of an inference engine: page-locked memory, bare memory, addresses, one stream.

The engine, which takes addresses and a stream's handle, is a kernel here.
"""

import numpy as np
import pycuda.autoinit
import pycuda.driver as cuda
from pycuda.compiler import SourceModule


class Buffer:
    def __init__(self, shape, dtype):
        self.host = cuda.pagelocked_empty(int(np.prod(shape)), dtype)
        self.device = cuda.mem_alloc(self.host.nbytes)


class Engine:
    SOURCE = """
    __global__ void relu(const float *in, float *out, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = in[i] > 0 ? in[i] : 0;
    }"""

    def __init__(self):
        self.module = SourceModule(self.SOURCE)
        self.relu = self.module.get_function("relu")

    def execute_async(self, bindings, size, stream):
        source, target = map(np.uintp, bindings)
        self.relu(source, target, np.int32(size), block=(64, 1, 1), grid=(16, 1), stream=stream)


shape = (2, 3, 8, 16)
stream = cuda.Stream()
inputs, outputs = Buffer(shape, np.float32), Buffer(shape, np.float32)
bindings = [int(inputs.device), int(outputs.device)]
engine = Engine()
random = np.random.default_rng(5)
for _ in range(3):
    batch = random.standard_normal(shape).astype(np.float32)
    np.copyto(inputs.host, batch.ravel())
    cuda.memcpy_htod_async(inputs.device, inputs.host, stream)
    engine.execute_async(bindings, batch.size, stream)
    cuda.memcpy_dtoh_async(outputs.host, outputs.device, stream)
    stream.synchronize()
    assert (outputs.host.reshape(shape) == np.maximum(batch, 0)).all()
print("three batches of", shape, "on", type(pycuda.autoinit.context).__name__)

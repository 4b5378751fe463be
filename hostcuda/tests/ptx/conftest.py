"""Small kernels with the numbers that CUDA's documentation promises."""

from __future__ import annotations

import numpy as np
import pytest


class Device:
    """Compiles and runs kernels in a context of its own, which may die."""

    def __init__(self, context) -> None:
        self.context = context

    def run(
        self, source, *inputs, out=(32, "i4"), grid=1, block=32, shared=0, options=(), name="k"
    ) -> np.ndarray:
        """Launch `k(out, inputs...)`: arrays are copied to the device, numbers passed by value."""
        import pycuda.driver as cuda

        import hostcuda

        if "__global__ void k(" not in source:  # the body of a kernel
            names = ", ".join(
                [
                    f"{_C[np.dtype(out[1])]} *o",
                    *(
                        f"{_C[x.dtype]} {'*' * x.ndim}{letter}"
                        for x, letter in zip(map(np.asarray, inputs), "abcdef", strict=False)
                    ),
                ]
            )
            before, _, body = source.rpartition("====")
            source = (
                f'{before}\nextern "C" __global__ void k({names}) {{ unsigned i = threadIdx.x + '
                f"blockIdx.x * blockDim.x, l = threadIdx.x % 32; (void)i; (void)l; {body} }}"
            )
        image = hostcuda.compile(source, ("-arch=sm_90", *options))
        self.module = cuda.module_from_buffer(image)
        function = self.module.get_function(name)
        result = np.zeros(*out)
        target = cuda.to_device(result)
        passed = [target]
        self.kept = [target]
        for value in map(np.asarray, inputs):
            if value.ndim:
                self.kept.append(cuda.to_device(value))
                passed.append(self.kept[-1])
            else:
                passed.append(value[()])
        grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        block = block if isinstance(block, tuple) else (block, 1, 1)
        function(*passed, grid=grid, block=block, shared=shared)
        cuda.memcpy_dtoh(result, target)
        return result


_C = {
    np.dtype("i1"): "signed char",
    np.dtype("u1"): "unsigned char",
    np.dtype("i2"): "short",
    np.dtype("u2"): "unsigned short",
    np.dtype("i4"): "int",
    np.dtype("u4"): "unsigned",
    np.dtype("i8"): "long long",
    np.dtype("u8"): "unsigned long long",
    np.dtype("f4"): "float",
    np.dtype("f8"): "double",
}


@pytest.fixture
def gpu():
    """Return a device with a new context."""
    import pycuda.driver as cuda

    cuda.init()
    context = cuda.Device(0).make_context()
    device = Device(context)
    yield device
    device.kept = device.module = None
    cuda.Context.pop()
    context.detach()

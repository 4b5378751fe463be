"""The latch, a kernel that holds a stream; and work that tests queue behind it."""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

from gpus import ON_GPU


def compile_plain(source: str, name: str) -> Any:
    """Compile CUDA C, load it with PyCUDA and return its function."""
    import cupy
    import pycuda.driver as drv

    image, _ = cupy.cuda.compiler.compile_using_nvrtc(source)
    return drv.module_from_buffer(image).get_function(name)


def put(pointer: Any, n: int, value: int, stream: Any = None) -> None:
    """Queue ``array[...] = value`` for an int32 array on a PyCUDA stream."""
    import pycuda.driver as drv

    drv.memset_d32_async(int(pointer), value, n, stream)


class Latch:
    """A kernel that keeps a stream busy until the host lets go.

    With it a test of ordering is certain: what is queued behind it cannot run by luck.  If the
    host waits for the stream, nobody lets go: the kernel gives up and `hold` fails the test.
    """

    def __init__(self, compile_kernel: Any) -> None:
        import cupy
        import numpy as np
        import pycuda.driver as drv

        source = """
        extern "C" __global__ void hold(volatile int *state, int patience)
        {
            while (state[0] == 0 && patience-- > 0) __nanosleep(1000);
            if (state[0] == 0) state[1] = 1;
        }
        """
        put(drv.mem_alloc(4), 1, 0)  # loaded before a latch holds it up
        self._of_pycuda = compile_kernel(source, "hold")
        self._of_cupy = cupy.RawKernel(source, "hold")  # PyCUDA launches on no stream of CuPy's
        self._state = drv.pagelocked_zeros(2, np.int32, mem_flags=drv.host_alloc_flags.DEVICEMAP)
        self._pointer = np.uintp(self._state.base.get_device_pointer())
        self._patience = np.int32(10_000_000 if ON_GPU else 100)

    @contextlib.contextmanager
    def hold(self, stream: Any, seconds: float = 0) -> Iterator[None]:
        """Hold a PyCUDA or CuPy stream (None: the default one) during the block.

        With `seconds`, the latch opens by itself, and the host may wait.
        """
        import cupy
        import pycuda.driver as drv

        opener = threading.Timer(seconds, self._state.fill, [1])

        gc.disable()  # PyCUDA's memory in what an earlier test left would make the host wait
        self._state[:] = 0
        drv.Context.synchronize()
        self._launch(cupy, stream)
        stream = None  # it may end in the block
        if seconds and ON_GPU:  # on the host driver, who waits runs the kernel, which gives up
            opener.start()
        try:
            yield
            if ON_GPU and not seconds:
                time.sleep(0.001)  # what nothing holds up runs now, before the latch opens
            waited = bool(self._state[1])
        finally:
            self._state[0] = 1
            opener.cancel()
            drv.Context.synchronize()
            gc.enable()
        assert seconds or not waited, "the host waited for the stream"

    def _launch(self, cupy: Any, stream: Any) -> None:
        arguments = self._pointer, self._patience
        if isinstance(stream, cupy.cuda.Stream):
            with stream:
                self._of_cupy((1,), (1,), arguments)
        else:
            self._of_pycuda(*arguments, block=(1, 1, 1), stream=stream)

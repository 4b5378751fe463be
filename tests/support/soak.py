"""Threads that work with both libraries on memory that they hand to one another.

``python tests/support/soak.py`` runs eight threads for a minute, the test suite for two seconds.
"""

import argparse
import contextlib
import gc
import queue
import random
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.autoinit

SOURCE = """
extern "C" __global__ void add(int *p, int n, int step, int value)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) p[(long long)i * step] += value + i;
}
"""
LONGEST = 3000


def held():
    """Return the device's free memory once everything is dropped."""
    gc.collect()
    drv.Context.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


def kernels():
    """Return the kernel as a function of `bridge.SourceModule`, and as one of PyCUDA's own."""
    ours = bridge.SourceModule(SOURCE, no_extern_c=True).get_function("add")
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(SOURCE)
    return ours, drv.module_from_buffer(image).get_function("add")


def arguments(array, value):
    """Return the kernel's arguments for a one-dimensional array of either library."""
    return np.int32(array.size), np.int32(array.strides[0] // 4), np.int32(value)


class Workers:
    """Threads that convert, launch, hand arrays to one another, and drop them."""

    def __init__(self, count):
        self.ours, self.plain = kernels()
        self.shared = queue.Queue(maxsize=4 * count)
        self.dropped = queue.Queue()
        self.stop = threading.Event()
        self.allocate = bridge.pycuda_allocator()
        self.count = count

    def run(self, seconds, seed):
        """Let them work that long, and return the rounds of each; raise the first error."""
        with ThreadPoolExecutor(self.count + 1) as threads:
            dropped = threads.submit(self._drop)
            chances = [random.Random(seed + i) for i in range(self.count)]
            working = [threads.submit(self._work, chance) for chance in chances]
            wait(working, seconds, FIRST_EXCEPTION)
            self.stop.set()
            rounds = [one.result() for one in working]
            self.dropped.put(None)
            dropped.result()
            return rounds

    def _drop(self):
        """Let go of arrays on a thread without a context, while the others work."""
        for arrays in iter(self.dropped.get, None):
            arrays.clear()

    @bridge.primary_context()
    def _work(self, chance):
        rounds, pool = 0, DeviceMemoryPool()
        stream = drv.Stream(1)
        streams = [cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)]
        allocators = [drv.mem_alloc, pool.allocate, self.allocate]
        while not self.stop.is_set():
            n, value = chance.randint(1, LONGEST), chance.randint(0, 1000)
            model = np.full(n, value) + np.arange(n)
            with chance.choice(streams):
                x = cupy.zeros(n, np.int32)
                self.ours(x, *arguments(x, value), block=32)
                a = bridge.as_pycuda(x, stream=stream)
                del x
                pointer = np.uintp(int(a.gpudata))
                self.plain(pointer, *arguments(a, value), block=(32, 1, 1), stream=stream)
                y = bridge.as_cupy(a, stream=stream)
                b = gpuarray.GPUArray(n, np.int32, allocator=chance.choice(allocators))
                z = bridge.as_cupy(b)
                z[:] = y
                self.ours(b, *arguments(b, value), block=32)
                np.testing.assert_array_equal(z.get(), 3 * model)
                np.testing.assert_array_equal(y[::2].get(), 2 * model[::2])
                self._swap([a, b, z[1:], y], chance)
                self.dropped.put([bridge.as_cupy(b[1:])])
                del a, b, y, z
            rounds += 1
        return rounds

    def _swap(self, arrays, chance):
        """Hand arrays over, to be dropped by whichever thread takes them."""
        cupy.cuda.get_current_stream().synchronize()
        with contextlib.suppress(queue.Full, queue.Empty):
            self.shared.put_nowait([chance.choice(arrays)])
            if chance.random() < 0.5:
                self.shared.get_nowait()


def share(count, seconds, seed):
    """Let threads work; return the rounds of each, and the bytes of the device left behind."""
    Workers(count).run(min(seconds, 1), seed)  # the driver keeps what the first streams took
    before = held()
    rounds = Workers(count).run(seconds, seed)
    return rounds, before - held()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    done, left = share(options.threads, options.seconds, options.seed)
    print(f"rounds of each thread: {done}; no mismatch; bytes left on the device: {left}")


if __name__ == "__main__":
    main()

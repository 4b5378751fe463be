"""Random work of both libraries on shared memory, against a model in NumPy.

``python tests/soak.py`` runs a million operations, ``--threads 8 --seconds 60`` eight threads for
a minute; the test suite runs short forms of both.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import queue
import random
import sys
import threading
import time

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
BUFFERS = 40
VIEWS = 8  # of each buffer


def kernels():
    """Return the kernel as a function of `bridge.SourceModule`, and as one of PyCUDA's own."""
    ours = bridge.SourceModule(SOURCE, no_extern_c=True).get_function("add")
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(SOURCE)
    return ours, drv.module_from_buffer(image).get_function("add")


def arguments(array, value):
    """Return the kernel's arguments for a one-dimensional array of either library."""
    return np.int32(array.size), np.int32(array.strides[0] // 4), np.int32(value)


def held():
    """Return what both libraries hold once everything is dropped, in bytes of the device."""
    gc.collect()
    drv.Context.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


class View:
    """An array of either library, what NumPy says of it, and where PyCUDA works on it."""

    def __init__(self, array, model, stream=None):
        self.array = array
        self.model = model
        self.stream = stream
        self.cycle = None


class Buffer:
    """One piece of memory: its views, and the CuPy streams that these were made under."""

    def __init__(self, view, stream):
        self.views = [view]
        self.streams = {stream}


class Soak:
    """Operations on a set of buffers, each checked against the model."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.buffers = []
        self.counts = {}
        self.ours, self.plain = kernels()
        self.pool = DeviceMemoryPool()
        self.pycuda_streams = [None, drv.Stream(), drv.Stream(1)]
        self.streams = [
            cupy.cuda.Stream.null,
            cupy.cuda.Stream(),
            cupy.cuda.Stream(non_blocking=True),
            bridge.as_cupy_stream(self.pycuda_streams[2]),
        ]
        self.stream = self.streams[0]
        # Not `Stream.use`: CuPy 14.2 forgets it when it copies a strided array to the host.
        self.current = contextlib.ExitStack()
        self.for_pycuda = [drv.mem_alloc, self.pool.allocate, bridge.pycuda_allocator()]
        self.operations = {
            self.allocate: 10,
            self.convert: 25,
            self.slice: 12,
            self.launch: 25,
            self.launch_raw: 8,
            self.launch_and_drop: 8,
            self.read: 8,
            self.drop: 20,
            self.drop_elsewhere: 4,
            self.drop_in_an_exception: 3,
            self.drop_in_a_cycle: 2,
            self.switch: 2,
            self.collect: 0.05,
        }
        self.elsewhere = queue.Queue()
        self.gone = queue.Queue()
        self.thread = threading.Thread(target=self._drop_what_comes, daemon=True)
        self.thread.start()

    def run(self, operations):
        """Do that many operations; AssertionError at the first mismatch."""
        chosen, weights = list(self.operations), list(self.operations.values())
        try:
            for operation in self.random.choices(chosen, weights, k=operations):
                name = operation.__name__
                self.counts[name] = self.counts.get(name, 0) + 1
                operation()
            for buffer in self.buffers:
                for view in buffer.views:
                    self._check(view)
        finally:
            self.close()

    def close(self):
        """Drop everything."""
        drv.Context.synchronize()
        self.buffers.clear()
        self.elsewhere.put(None)
        self.thread.join()
        self.current.close()
        gc.collect()

    def allocate(self):
        """Make an array of either library, out of any pool."""
        n = self.random.randint(1, LONGEST)
        if self.random.random() < 0.5:
            self._add_buffer(cupy.zeros(n, np.int32))
        else:
            allocator = self.random.choice(self.for_pycuda)
            self._add_buffer(*self._zeros_of_pycuda(n, allocator))

    def _add_buffer(self, zeros, stream=None):
        self.buffers.append(
            Buffer(View(zeros, np.zeros(zeros.size, np.int32), stream), self.stream)
        )
        if len(self.buffers) > BUFFERS:
            self.drop_buffer()

    def _zeros_of_pycuda(self, n, allocator):
        array = gpuarray.GPUArray(n, np.int32, allocator=allocator)
        stream = self.random.choice(self.pycuda_streams)
        drv.memset_d32(int(array.gpudata), 0, n)
        bridge.as_cupy(array)  # what is on CuPy's stream may be older than the view's
        return bridge.as_pycuda(array, stream=stream), stream

    def _any(self):
        if not self.buffers:
            self.allocate()
        buffer = self.random.choice(self.buffers)
        return buffer, self.random.choice(buffer.views)

    def _add(self, buffer, view):
        if len(buffer.views) >= VIEWS:
            buffer.views.pop(self.random.randrange(VIEWS))
        buffer.views.append(view)

    def convert(self):
        """View an array with the other library."""
        buffer, view = self._any()
        if isinstance(view.array, cupy.ndarray):
            stream = self.random.choice(self.pycuda_streams)
            array = bridge.as_pycuda(view.array, stream=stream)
            known = [v for v in buffer.views if v.array is array]
            stream = known[0].stream if known else stream
        else:
            stream = view.stream
            array = bridge.as_cupy(view.array, stream=stream)
        buffer.streams.add(self.stream)
        self._add(buffer, View(array, view.model, stream))

    def slice(self):
        """Take a part of an array, by its own library."""
        buffer, view = self._any()
        size = view.model.size
        start, stop = sorted(self.random.choices(range(size + 1), k=2))
        if start == stop:
            return
        part = slice(start, stop, self.random.choice([1, 1, 2, 3]))
        if self.random.random() < 0.3 and isinstance(view.array, cupy.ndarray):
            part = slice(stop - 1, start - 1 if start else None, -1)
        self._add(buffer, View(view.array[part], view.model[part], view.stream))

    def launch(self):
        """Run a kernel of SourceModule on CuPy's stream."""
        _, view = self._any()
        value = self.random.randint(-1000, 1000)
        array = view.array
        if not isinstance(array, cupy.ndarray) and view.stream is not None:
            array = bridge.as_cupy(array, stream=view.stream)
        self.ours(array, *arguments(array, value), block=32, strided=True)
        self._add_to(view.model, value)

    def launch_raw(self):
        """Run a kernel by PyCUDA alone, on a stream of its own."""
        _, view = self._any()
        value = self.random.randint(-1000, 1000)
        stream, array = view.stream, view.array
        if not isinstance(array, cupy.ndarray):
            array = bridge.as_cupy(array, stream=stream)  # behind what PyCUDA has queued
        array = bridge.as_pycuda(array, stream=stream)
        self._queue(array, value, stream)
        bridge.as_cupy(array, stream=stream)
        self._add_to(view.model, value)

    def launch_and_drop(self):
        """Let go of memory at once, while a kernel that works on it is queued; take it again."""
        n = self.random.randint(1, LONGEST)
        if self.random.random() < 0.5:
            stream = self.random.choice(self.pycuda_streams)
            array = cupy.zeros(n, np.int32)
            if self.random.random() < 0.5:
                self.ours(array, *arguments(array, 1), block=32)
            else:
                self._queue(bridge.as_pycuda(array, stream=stream), 1, stream)
            del array
            self._add_buffer(cupy.zeros(n, np.int32))
        else:
            allocator = self.random.choice(self.for_pycuda)
            array, stream = self._zeros_of_pycuda(n, allocator)
            if self.random.random() < 0.5:
                self.ours(bridge.as_cupy(array, stream=stream), *arguments(array, 1), block=32)
            else:
                self._queue(array, 1, stream)
            del array
            self._add_buffer(*self._zeros_of_pycuda(n, allocator))

    def _queue(self, array, value, stream):
        pointer = np.uintp(int(array.gpudata))
        self.plain(pointer, *arguments(array, value), block=(32, 1, 1), stream=stream)

    @staticmethod
    def _add_to(model, value):
        model += np.arange(model.size, dtype=np.int32) + np.int32(value)

    def read(self):
        """Compare an array with the model."""
        self._check(self._any()[1])

    def _check(self, view):
        array = view.array
        if not isinstance(array, cupy.ndarray):
            array = bridge.as_cupy(array, stream=view.stream)
        np.testing.assert_array_equal(array.get(), view.model)

    def _take(self):
        if not self.buffers:
            return []
        buffer = self.random.choice(self.buffers)
        self._settle(buffer)
        view = buffer.views.pop(self.random.randrange(len(buffer.views)))
        if not buffer.views:
            self.buffers.remove(buffer)
        return [view]

    def _settle(self, buffer):
        """Keep CuPy's own rule: a block goes back to the stream that its view was made under."""
        for stream in buffer.streams - {self.stream}:
            bridge.wait_stream(stream, self.stream)

    def drop(self):
        """Let go of a view."""
        self._take().clear()

    def drop_buffer(self):
        """Let go of all views of a buffer."""
        buffer = self.buffers.pop(self.random.randrange(len(self.buffers)))
        self._settle(buffer)
        self.random.shuffle(buffer.views)
        buffer.views.clear()

    def drop_elsewhere(self):
        """Let go of a view on a thread without a context, while this one goes on or waits."""
        self.elsewhere.put(self._take())
        if self.random.random() < 0.5:
            self.gone.get()

    def _drop_what_comes(self):
        for views in iter(self.elsewhere.get, None):
            views.clear()
            self.gone.put(True)

    def drop_in_an_exception(self):
        """Let go of a view while a frame that holds it is unwound."""

        def fail(views):
            held = views.pop() if views else None
            raise ValueError(str(held))

        with contextlib.suppress(ValueError):
            fail(self._take())

    def drop_in_a_cycle(self):
        """Leave a view to the garbage collector."""
        for view in self._take():
            view.cycle = view

    def switch(self):
        """Let CuPy go on with another stream, behind the one so far."""
        stream = self.random.choice(self.streams)
        bridge.wait_stream(stream, self.stream)
        self.current.close()
        self.stream = self.current.enter_context(stream)

    def collect(self):
        """Collect garbage."""
        gc.collect()


def soak(operations, seed):
    """Run one soak; return what is left behind: bytes of each pool, and of the device."""
    warm = Soak(seed)  # compilers, events and streams are made once
    warm.run(min(operations, 1000))
    del warm
    before = held()
    used = cupy.get_default_memory_pool().used_bytes()
    work = Soak(seed)
    work.run(operations)
    pool, counts = work.pool, work.counts
    del work
    gc.collect()
    active = pool.active_bytes
    pool.free_held()
    del pool
    after = held()
    left = cupy.get_default_memory_pool().used_bytes() - used
    return counts, {"CuPy's pool": left, "PyCUDA's pool": active, "the device": before - after}


class Workers:
    """Threads that convert, launch, hand arrays to one another, and drop them."""

    def __init__(self, count, seed):
        self.ours, self.plain = kernels()
        self.shared = queue.Queue(maxsize=4 * count)
        self.errors = []
        self.rounds = [0] * count
        self.stop = threading.Event()
        self.allocate = bridge.pycuda_allocator()
        self.threads = [
            threading.Thread(target=self._work, args=(i, random.Random(seed + i)))
            for i in range(count)
        ]

    def run(self, seconds):
        """Let them work that long; raise the first error."""
        for thread in self.threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in self.threads:
            thread.join()
        while not self.shared.empty():
            self.shared.get()
        if self.errors:
            raise self.errors[0]

    def _work(self, index, chance):
        try:
            with bridge.primary_context():
                self._rounds(index, chance)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def _rounds(self, index, chance):
        pool = DeviceMemoryPool()
        pycuda_stream = drv.Stream(1)
        streams = [cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)]
        allocators = [drv.mem_alloc, pool.allocate, self.allocate]
        while not self.stop.is_set():
            n, value = chance.randint(1, LONGEST), chance.randint(0, 1000)
            model = np.full(n, value) + np.arange(n)
            with chance.choice(streams):
                x = cupy.zeros(n, np.int32)
                self.ours(x, *arguments(x, value), block=32)
                a = bridge.as_pycuda(x, stream=pycuda_stream)
                del x
                self.plain(
                    np.uintp(int(a.gpudata)),
                    *arguments(a, value),
                    block=(32, 1, 1),
                    stream=pycuda_stream,
                )
                y = bridge.as_cupy(a, stream=pycuda_stream)
                b = gpuarray.GPUArray(n, np.int32, allocator=chance.choice(allocators))
                z = bridge.as_cupy(b)
                z[:] = y
                self.ours(b, *arguments(b, value), block=32)
                np.testing.assert_array_equal(z.get(), 3 * model)
                np.testing.assert_array_equal(y[::2].get(), 2 * model[::2])
                self._swap([a, b, z[1:], y], chance)
                del a, b, y, z
            self.rounds[index] += 1

    def _swap(self, arrays, chance):
        """Hand arrays over, to be dropped by whichever thread takes them."""
        cupy.cuda.get_current_stream().synchronize()
        with contextlib.suppress(queue.Full, queue.Empty):
            self.shared.put_nowait([chance.choice(arrays)])
            if chance.random() < 0.5:
                self.shared.get_nowait()


def share(count, seconds, seed):
    """Let threads work; return the rounds of each, and the bytes of the device left behind."""
    Workers(count, seed).run(min(seconds, 1))  # the driver keeps what the first streams took
    before = held()
    workers = Workers(count, seed)
    workers.run(seconds)
    rounds = workers.rounds
    del workers
    return rounds, before - held()


def main():
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.threads:
        rounds, left = share(options.threads, options.seconds, options.seed)
        print(
            f"{options.threads} threads, {options.seconds:.0f} s, rounds {rounds}: all right; "
            f"{left} bytes of the device left behind"
        )
    else:
        counts, left = soak(options.operations, options.seed)
        print(
            f"{options.operations:,} operations, seed {options.seed}, "
            f"{time.perf_counter() - start:.0f} s: no mismatch"
        )
        print("left behind, in bytes: " + ", ".join(f"{k} {v}" for k, v in left.items()))
        print(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

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


@dataclass(eq=False, repr=False)
class View:
    """An array of either library, what NumPy says of it, and where PyCUDA works on it."""

    array: Any
    model: Any
    stream: Any = None


@dataclass(eq=False, repr=False)
class Buffer:
    """One piece of memory: its views, and the CuPy streams that these were made under."""

    views: list
    streams: set


class Soak:
    """Operations on a set of buffers, each checked against the model."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.buffers = []
        self.counts = Counter()
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
                self.counts[operation.__name__] += 1
                operation()
            for buffer in self.buffers:
                for view in buffer.views:
                    self._check(view)
        finally:
            drv.Context.synchronize()
            self.buffers.clear()
            self.elsewhere.put(None)
            self.thread.join()
            self.current.close()
            gc.collect()

    def allocate(self):
        self._add_buffer(*self._zeros(*self._size_and_allocator()))

    def _add_buffer(self, zeros, stream):
        view = View(zeros, np.zeros(zeros.size, np.int32), stream)
        self.buffers.append(Buffer([view], {self.stream}))
        if len(self.buffers) > BUFFERS:
            self.drop_buffer()

    def _size_and_allocator(self):
        """Choose, with None for CuPy's array."""
        of_cupy = self.random.random() < 0.5
        allocator = None if of_cupy else self.random.choice(self.for_pycuda)
        return self.random.randint(1, LONGEST), allocator

    def _zeros(self, n, allocator):
        if allocator is None:
            return cupy.zeros(n, np.int32), None
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
        array, stream = self._in_cupy(view), view.stream
        if array is view.array:
            stream = self.random.choice(self.pycuda_streams)
            array = bridge.as_pycuda(view.array, stream=stream)
            known = [v for v in buffer.views if v.array is array]
            stream = known[0].stream if known else stream
        buffer.streams.add(self.stream)
        self._add(buffer, View(array, view.model, stream))

    @staticmethod
    def _in_cupy(view):
        """Return an array as CuPy's, behind what PyCUDA has queued."""
        is_cupys = isinstance(view.array, cupy.ndarray)
        return view.array if is_cupys else bridge.as_cupy(view.array, stream=view.stream)

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
        array = view.array if view.stream is None else self._in_cupy(view)
        self.ours(array, *arguments(array, value), block=32, strided=True)
        self._add_to(view.model, value)

    def launch_raw(self):
        """Run a kernel by PyCUDA alone, on a stream of its own."""
        _, view = self._any()
        value = self.random.randint(-1000, 1000)
        array = bridge.as_pycuda(self._in_cupy(view), stream=view.stream)
        self._queue(array, value, view.stream)
        bridge.as_cupy(array, stream=view.stream)
        self._add_to(view.model, value)

    def launch_and_drop(self):
        """Let go of memory at once, while a kernel that works on it is queued; take it again."""
        kind = self._size_and_allocator()
        view = View(None, None)
        view.array, view.stream = self._zeros(*kind)
        if self.random.random() < 0.5:
            array = self._in_cupy(view)
            self.ours(array, *arguments(array, 1), block=32)
        else:
            stream = view.stream or self.random.choice(self.pycuda_streams)
            array = bridge.as_pycuda(view.array, stream=stream)
            self._queue(array, 1, stream)
        del array, view
        self._add_buffer(*self._zeros(*kind))

    def _queue(self, array, value, stream):
        pointer = np.uintp(int(array.gpudata))
        self.plain(pointer, *arguments(array, value), block=(32, 1, 1), stream=stream)

    @staticmethod
    def _add_to(model, value):
        model += np.arange(model.size, dtype=np.int32) + np.int32(value)

    def read(self):
        self._check(self._any()[1])

    def _check(self, view):
        np.testing.assert_array_equal(self._in_cupy(view).get(), view.model)

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
        self._take().clear()

    def drop_buffer(self):
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
        def fail(views):
            held = views.pop() if views else None
            raise ValueError(str(held))

        with contextlib.suppress(ValueError):
            fail(self._take())

    def drop_in_a_cycle(self):
        for view in self._take():
            view.cycle = view

    def switch(self):
        """Let CuPy go on with another stream, behind the one so far."""
        stream = self.random.choice(self.streams)
        bridge.wait_stream(stream, self.stream)
        self.current.close()
        self.stream = self.current.enter_context(stream)

    def collect(self):
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

    def __init__(self, count):
        self.ours, self.plain = kernels()
        self.shared = queue.Queue(maxsize=4 * count)
        self.stop = threading.Event()
        self.allocate = bridge.pycuda_allocator()
        self.count = count

    def run(self, seconds, seed):
        """Let them work that long, and return the rounds of each; raise the first error."""
        with ThreadPoolExecutor(self.count) as threads:
            chances = [random.Random(seed + i) for i in range(self.count)]
            working = [threads.submit(self._work, chance) for chance in chances]
            wait(working, seconds, FIRST_EXCEPTION)
            self.stop.set()
            return [one.result() for one in working]

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
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.threads:
        done, left = share(options.threads, options.seconds, options.seed)
        work = f"{options.threads} threads, rounds"
    else:
        done, left = soak(options.operations, options.seed)
        work = f"{options.operations:,} operations, seed {options.seed}"
    print(
        f"{work}, {time.perf_counter() - start:.0f} s: no mismatch; left behind, in bytes: {left}"
    )
    print(done)


if __name__ == "__main__":
    main()

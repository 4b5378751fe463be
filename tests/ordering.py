"""Random work on several streams of both libraries and on several threads, against a serial model.

A schedule is a list of steps: work is queued on an array, the array goes to another stream or to
the other library, its memory is let go of and taken again.  Every step follows the rules that users
are told, and no more: what the bridge is to order, nothing else orders.  Each read must then be
what it is if everything runs in the order in which it was queued.

``python tests/ordering.py`` runs 2,000 schedules.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import threading
import weakref
from typing import Any, NamedTuple

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.autoinit

SOURCE = """
static __device__ void wait(int us) { while (us-- > 0) __nanosleep(1000); }

extern "C" __global__ void start(int *p, int n, int value, int pause)
{ wait(pause); for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = value + i; }

extern "C" __global__ void step(int *p, int n, int value, int pause)
{ wait(pause); for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = 3 * p[i] + value; }

extern "C" __global__ void read(const int *p, int n, int *to, int pause)
{ wait(pause); for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = p[i]; }
"""
N = 16
STEPS = 40
THREADS = 3
STREAMS = 6
PAUSES = [0, 0, 20, 100]  # microseconds; the host driver is lazy by itself


class Place(NamedTuple):
    """A stream, and the library that queues work there."""

    library: str
    stream: Any
    handle: int
    thread: int | None = None  # the per-thread default stream is another one on each

    def is_on(self, other: Place) -> bool:
        """Tell whether this is the same stream."""
        return (self.handle, self.thread) == (other.handle, other.thread)


class Buffer:
    """Memory, the array through which it is used, and where work on it may be pending."""

    def __init__(self, array: Any, place: Place, home: Place, user: Any = None) -> None:
        self.array = array
        self.place = place
        self.home = home  # the stream to which the block goes back
        self.model = np.zeros(N, np.int32)
        self.older: list[Any] = []
        self.met: dict[int, Any] = {}
        self.set_view(array, user, set())

    def set_view(self, array: Any, user: Any, covers: set[int]) -> None:
        """Note an array: when it goes, `covers` wait for what is queued on `user`."""
        self.array = array
        found = self.met.get(id(array))
        if found and found[0]() is array:  # a conversion that ended at its start
            _, self.user, self.covers = found
        else:
            self.user = user
            self.covers = covers | {0} if user is not None else set()
            self.met[id(array)] = weakref.ref(array), self.user, self.covers


class Exporter:
    """An array of a third library, with work pending on a stream."""

    def __init__(self, array: Any, stream: Any) -> None:
        self.array = array
        self.stream = stream


class ByInterface(Exporter):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.data.ptr, False),
            "version": 3,
            "stream": self.stream.ptr or 1,
        }


class ByDlpack(Exporter):
    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        with self.stream:  # CuPy lets the consumer wait for its current stream
            return self.array.__dlpack__(stream=stream, **keywords)


class Threads:
    """Threads that do one thing at a time, in the order in which it comes."""

    def __init__(self, count: int) -> None:
        self.todo: list[Any] = [queue.SimpleQueue() for _ in range(count)]
        self.done: Any = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._work, args=(todo,), daemon=True) for todo in self.todo
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, todo: Any) -> None:
        with bridge.primary_context():
            for action in iter(todo.get, None):
                try:
                    self.done.put((action(), None))
                except BaseException as error:
                    self.done.put((None, error))
                del action

    def run(self, thread: int, action: Any) -> Any:
        """Let a thread do something, and wait for it."""
        self.todo[thread].put(action)
        result, error = self.done.get()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the threads."""
        for todo, thread in zip(self.todo, self.threads, strict=True):
            todo.put(None)
            thread.join()


class Kernels:
    """The kernels as functions of `bridge.SourceModule`, and as PyCUDA's own."""

    def __init__(self) -> None:
        ours = bridge.SourceModule(SOURCE, no_extern_c=True)
        image, _ = cupy.cuda.compiler.compile_using_nvrtc(SOURCE)
        theirs = drv.module_from_buffer(image)
        self.ours = {name: ours.get_function(name) for name in ("start", "step", "read")}
        self.theirs = {name: theirs.get_function(name) for name in ("start", "step", "read")}


class Schedule:
    """One random schedule."""

    MOVES = (
        "to_the_other",
        "to_the_other",
        "wait",
        "name_the_stream",
        "view_on_a_stream",
        "export",
        "export_muted",
    )
    ON_CUPY = ("plain", "call_elsewhere", "launch", "wrapped", "ufunc")
    ON_PYCUDA = ("plain", "of_pycuda")

    def __init__(self, seed: int, kernels: Kernels, threads: Threads, pauses: list[int]) -> None:
        self.random = random.Random(seed)
        self.kernels = kernels
        self.threads = threads
        self.pauses = pauses
        self.pool = DeviceMemoryPool()
        self.from_pool = bridge.cupy_allocator(self.pool)
        self.cupys = cupy.cuda.MemoryPool()
        self.from_cupys = bridge.pycuda_allocator(self.cupys)
        self.buffers: list[Buffer] = []
        self.reads: list[tuple[Any, np.ndarray, str]] = []
        self.results = cupy.zeros((STEPS * 2, N), np.int32)
        self.log: list[str] = []
        self.count = 0
        places = [
            ("cupy", cupy.cuda.Stream.null),
            ("cupy", cupy.cuda.Stream()),
            ("cupy", cupy.cuda.Stream(non_blocking=True)),
            ("cupy", cupy.cuda.Stream(non_blocking=True)),
            ("cupy", cupy.cuda.Stream.ptds),
            ("pycuda", None),
            ("pycuda", drv.Stream()),
            ("pycuda", drv.Stream(1)),
        ]
        self.streams = [places[0], *self.random.sample(places[1:], STREAMS - 1)]

    def run(self) -> None:
        """Queue everything; AssertionError if a read is not what it should be."""
        drv.Context.synchronize()
        for _ in range(STEPS):
            action = self.random.random()
            if not self.buffers or (len(self.buffers) < 4 and action < 0.15):
                self.allocate(self.random.choice(["cupy", "pool", "from cupy's", "from pool"]))
            elif action < 0.3:
                self.drop(self.random.choice(self.buffers))
            elif action < 0.6:
                getattr(self, self.random.choice(self.MOVES))(self.random.choice(self.buffers))
            elif action < 0.8:
                self.work(self.random.choice(self.buffers))
            else:
                self.read(self.random.choice(self.buffers))
        for buffer in self.buffers:
            self.read(buffer)
        self.check()

    def check(self) -> None:
        """Let everything run, and compare the reads."""
        streams = [s for _, s in self.streams if s is not None and s is not cupy.cuda.Stream.ptds]
        self.random.shuffle(streams)  # the host driver runs what is waited for first
        for stream in streams:
            stream.synchronize()
        drv.Context.synchronize()
        for slot, model, text in self.reads:
            np.testing.assert_array_equal(slot.get(), model, err_msg=text)

    # ---- where and on which thread ---------------------------------------------------------------

    def place(self, library: str) -> Place:
        """Choose a stream of a library, and a thread where that matters."""
        stream = self.random.choice([s for kind, s in self.streams if kind == library] or [None])
        if library == "pycuda":
            return Place(library, stream, stream.handle if stream else 0)
        stream = stream or cupy.cuda.Stream.null
        own = stream is cupy.cuda.Stream.ptds
        return Place(library, stream, stream.ptr, self.random.randrange(THREADS) if own else None)

    def run_on(self, *places: Place, action: Any) -> Any:
        """Do something under the first place's stream, on a thread that knows all of them."""
        known = {place.thread for place in places} - {None}
        thread = known.pop() if known else self.random.randrange(THREADS)
        if known:
            return None  # two threads' default streams: nobody can name both

        def under() -> Any:
            if places[0].library == "pycuda":
                return action()
            with places[0].stream:
                return action()

        result = self.threads.run(thread, under)
        return True if result is None else result

    def note(self, text: str, buffer: Buffer) -> None:
        """Write a step down."""
        at = buffer.place
        where = f"{at.library} 0x{at.handle:x}" + (
            f" of thread {at.thread}" if at.thread is not None else ""
        )
        self.log.append(f"{buffer.number}: {text}, {where}")

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, kind: str, place: Place | None = None) -> None:
        """Make an array and write to it."""
        null = Place("pycuda", None, 0)
        if kind == "cupy":
            place = place or self.place("cupy")
            with_pool = self.cupys.malloc
        elif kind == "from pool":
            place = self.place("cupy")
            with_pool = self.from_pool
        else:
            allocator = self.pool.allocate if kind == "pool" else self.from_cupys
            array = self.run_on(
                null, action=lambda: gpuarray.GPUArray(N, np.int32, allocator=allocator)
            )
            return self._begin(Buffer(array, null, null), kind)

        def make() -> Any:
            with cupy.cuda.using_allocator(with_pool):
                return cupy.empty(N, np.int32)

        array = self.run_on(place, action=make)
        home = place if kind == "cupy" else null
        user = place.handle or None if kind != "cupy" else None
        return self._begin(Buffer(array, place, home, user), kind)

    def _begin(self, buffer: Buffer, kind: str) -> None:
        buffer.kind = kind
        buffer.number = self.count = self.count + 1
        if buffer.place.library == "pycuda" and self.random.random() < 0.5:
            self.to_the_other(buffer)  # nothing was queued on the default stream in between
        value = self.random.randrange(1000)
        self._queue(buffer, "start", value)
        buffer.model = np.arange(value, value + N, dtype=np.int32)
        self.buffers.append(buffer)
        self.note(f"allocate, {kind}", buffer)

    def drop(self, buffer: Buffer) -> None:
        """Let go of the memory; take as much again from where it goes."""
        place, home = buffer.place, buffer.home
        covered = buffer.user == place.handle and home.handle in buffer.covers
        if not (place.is_on(home) or covered):  # CuPy's own rule
            action = lambda: bridge.wait_stream(home.stream, place.stream)  # noqa: E731
            if not self.run_on(home, place, action=action):
                return
        self.note("drop", buffer)
        self.buffers.remove(buffer)
        views = [*buffer.older, buffer.array]
        kind = buffer.kind
        del buffer.older, buffer.array
        self.run_on(self.place("cupy"), action=views.clear)
        if self.random.random() < 0.8:
            if kind in ("pool", "from pool"):
                kind = self.random.choice(["pool", "from pool"])
            self.allocate(kind, home if kind == "cupy" else None)

    # ---- moves -----------------------------------------------------------------------------------

    def _moved(
        self, buffer: Buffer, place: Place, array: Any = None, user: Any = None, covers: Any = ()
    ) -> None:
        if array is not None and array is not buffer.array:
            if self.random.random() < 0.7:  # to let go of it may order more than the move does
                buffer.older.append(buffer.array)
            buffer.set_view(array, user, set(covers))
        buffer.place = place

    def to_the_other(self, buffer: Buffer) -> None:
        """Convert, naming the stream."""
        old, array = buffer.place, buffer.array
        if old.library == "cupy":
            new = self.place("pycuda")
            view = self.run_on(old, action=lambda: bridge.as_pycuda(array, stream=new.stream))
        else:
            new = self.place("cupy")
            view = self.run_on(new, action=lambda: bridge.as_cupy(array, stream=old.stream))
        self._moved(buffer, new, view, new.handle, {old.handle})
        self.note("convert", buffer)

    def wait(self, buffer: Buffer) -> None:
        """Go to another stream of the same library."""
        old, new = buffer.place, self.place(buffer.place.library)
        action = lambda: bridge.wait_stream(new.stream, old.stream)  # noqa: E731
        if self.run_on(new, old, action=action):
            self._moved(buffer, new)
            self.note("wait", buffer)

    def name_the_stream(self, buffer: Buffer) -> None:
        """Say of a CuPy array where work on it is pending."""
        old = buffer.place
        if old.library == "cupy":
            new = self.place("cupy")
            array = buffer.array
            action = lambda: bridge.as_cupy(array, stream=old.stream)  # noqa: E731
            if self.run_on(new, old, action=action) is not None:
                self._moved(buffer, new)
                self.note("as_cupy(x, stream=)", buffer)

    def view_on_a_stream(self, buffer: Buffer) -> None:
        """View a GPUArray for a stream: after the default one's work, and CuPy's current one's."""
        array, here = buffer.array, buffer.place
        if here.library == "cupy":
            known = [one for one in buffer.older if isinstance(one, gpuarray.GPUArray)]
            array = self.random.choice(known) if known else None
        elif not here.handle:
            here = self.place("cupy")
        else:
            return
        if array is not None:
            new = self.place("pycuda")
            view = self.run_on(here, action=lambda: bridge.as_pycuda(array, stream=new.stream))
            self._moved(buffer, new, view, new.handle, {here.handle})
            self.note("as_pycuda(a, stream=)", buffer)

    def export(self, buffer: Buffer) -> None:
        """Go through a third library, which says where its work is."""
        old = buffer.place
        if old.library == "cupy":
            new = self.place("cupy")
            kind = self.random.choice([ByInterface, ByDlpack])
            exporter = kind(buffer.array, old.stream)
            view = self.run_on(new, old, action=lambda: bridge.as_cupy(exporter))
            self._exported(buffer, new, view, kind.__name__)

    def export_muted(self, buffer: Buffer) -> None:
        """Go through a third library, saying ourselves where its work is."""
        old = buffer.place
        if old.library == "cupy":
            new = self.place("cupy")
            kind = self.random.choice([ByInterface, ByDlpack])
            exporter = kind(buffer.array, self.place("cupy").stream)
            if exporter.stream is cupy.cuda.Stream.ptds:
                return
            view = self.run_on(new, old, action=lambda: bridge.as_cupy(exporter, stream=old.stream))
            self._exported(buffer, new, view, f"{kind.__name__}, stream=")

    def _exported(self, buffer: Buffer, new: Place, view: Any, text: str) -> None:
        if view is not None:
            buffer.older.append(buffer.array)
            self._moved(buffer, new, view)
            self.note(text, buffer)

    # ---- work ------------------------------------------------------------------------------------

    def _queue(self, buffer: Buffer, name: str, value: Any) -> None:
        """Run a kernel where the buffer is, by the library whose array it is."""
        place, array = buffer.place, buffer.array
        args = np.int32(N), value, np.int32(self.random.choice(self.pauses))
        if name != "read":
            args = args[0], np.int32(value), args[2]
        if place.library == "cupy":
            action = lambda: self.kernels.ours[name](array, *args, block=32)  # noqa: E731
        else:
            pointers = [np.uintp(int(array.gpudata)), args[0], args[1], args[2]]
            if name == "read":
                pointers[2] = np.uintp(value.data.ptr)
            function = self.kernels.theirs[name]
            action = lambda: function(*pointers, block=(32, 1, 1), stream=place.stream)  # noqa: E731
        self.run_on(place, action=action)

    def read(self, buffer: Buffer) -> None:
        """Copy the buffer, to be compared in the end."""
        slot = self.results[len(self.reads)]
        self._queue(buffer, "read", slot)
        self.note("read", buffer)
        self.reads.append((slot, buffer.model.copy(), "\n".join(self.log)))

    def work(self, buffer: Buffer) -> None:
        """Compute with the buffer, in a way in which the order matters."""
        value = np.int32(self.random.randrange(1000))
        on_cupy = buffer.place.library == "cupy"
        how = self.random.choice(self.ON_CUPY if on_cupy else self.ON_PYCUDA)
        if getattr(self, how)(buffer, value):
            buffer.model = 3 * buffer.model + value
            self.note(how, buffer)

    def _args(self, value: Any) -> tuple[Any, ...]:
        return np.int32(N), value, np.int32(self.random.choice(self.pauses))

    def plain(self, buffer: Buffer, value: Any) -> bool:
        """A function of the library whose array it is, on its stream."""
        self._queue(buffer, "step", value)
        return True

    def of_pycuda(self, buffer: Buffer, value: Any) -> bool:
        """A function on a GPUArray of the default stream, called under any stream of CuPy's."""
        if buffer.place.handle:
            return False
        here, array, args = self.place("cupy"), buffer.array, self._args(value)
        if self.random.random() < 0.5:
            function = self.kernels.ours["step"]
            action = lambda: function(array, *args, block=32)  # noqa: E731
        else:
            function = self.kernels.theirs["step"]
            action = lambda: bridge.launch(function, array, *args, grid=1, block=32)  # noqa: E731
        self.run_on(here, action=action)
        return True

    def call_elsewhere(self, buffer: Buffer, value: Any) -> bool:
        """A function launched on another stream than CuPy's."""
        there = self.place(self.random.choice(["cupy", "pycuda"]))
        array, args, function = buffer.array, self._args(value), self.kernels.ours["step"]
        done = self.run_on(
            buffer.place,
            there,
            action=lambda: function(array, *args, block=32, stream=there.stream),
        )
        return bool(done)

    def launch(self, buffer: Buffer, value: Any) -> bool:
        """A function of PyCUDA's, launched on its default stream or another of its."""
        array, args, function = buffer.array, self._args(value), self.kernels.theirs["step"]
        stream = self.place("pycuda").stream
        self.run_on(
            buffer.place,
            action=lambda: bridge.launch(function, array, *args, grid=1, block=32, stream=stream),
        )
        return True

    def wrapped(self, buffer: Buffer, value: Any) -> bool:
        """A function of GPUArrays, which works on PyCUDA's default stream."""
        array, args, function = buffer.array, self._args(value), self.kernels.theirs["step"]

        def work(*arrays: Any) -> None:
            pointer = int(arrays[0].gpudata) if arrays else array.data.ptr
            function(np.uintp(pointer), *args, block=(32, 1, 1))

        arrays = [array] * self.random.randrange(2)  # or it is known to the function anyway
        self.run_on(buffer.place, action=lambda: bridge.wrap_pycuda(work)(*arrays))
        return True

    def ufunc(self, buffer: Buffer, value: Any) -> bool:
        """CuPy's own operations."""
        array = buffer.array

        def work() -> None:
            cupy.multiply(array, 3, out=array)
            cupy.add(array, value, out=array)

        self.run_on(buffer.place, action=work)
        return True


def run(schedules: int, first: int = 0, pauses: list[int] | None = None) -> int:
    """Run schedules; return how many.  AssertionError at the first stale read."""
    kernels, threads = Kernels(), Threads(THREADS)
    try:
        for seed in range(first, first + schedules):
            try:
                Schedule(seed, kernels, threads, pauses or PAUSES).run()
            except AssertionError as error:
                raise AssertionError(f"schedule {seed}: {error}") from None
            finally:
                drv.Context.synchronize()
    finally:
        threads.close()
    return schedules


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    print(run(options.schedules, options.first), "schedules, no stale read")
    return 0


if __name__ == "__main__":
    sys.exit(main())

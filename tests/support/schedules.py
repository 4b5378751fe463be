"""Random work on several streams of both libraries and on several threads, against a serial model.

A schedule is a list of steps: work is queued on an array, the array goes to another stream or to
the other library, its memory is let go of and taken again.  Every step follows the rules that users
are told, and no more: what the bridge is to order, nothing else orders.  Each read must then be
what it is if everything runs in the order in which it was queued.

``python tests/support/schedules.py`` runs 2,000 schedules.
"""

import argparse
import gc
import queue
import random
import sys
import threading
import weakref
from typing import Any, ClassVar, NamedTuple

import cupy
import cupyx
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.autoinit
from bridge.interop import host_memory, ordering

SOURCE = """
static __device__ void wait(int us) { while (us-- > 0) __nanosleep(1000); }
#define KERNEL(name, second, result) \\
extern "C" __global__ void name(int *p, second, int n, int pause) \\
{ wait(pause); for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = result; }

KERNEL(start, int value, value + i)
KERNEL(step, int value, 3 * p[i] + value)
KERNEL(copy, const int *q, q[i])
KERNEL(mix, const int *q, 3 * p[i] + q[i])
"""
CODES = {"start": "Piii", "step": "Piii", "copy": "PPii", "mix": "PPii"}
GRID, BLOCK = (1, 1), (32, 1, 1)
# How the bridge launches: on CuPy's current stream, on the stream given, and PyCUDA's functions.
FORMS = {
    "f": lambda ours, theirs, args, stream: ours(*args, block=32),
    "f, stream=": lambda ours, theirs, args, stream: ours(*args, block=32, stream=stream),
    "launch": lambda ours, theirs, args, stream: bridge.launch(theirs, *args, grid=1, block=32),
    "launch, stream=": lambda ours, theirs, args, stream: bridge.launch(
        theirs, *args, grid=1, block=32, stream=stream
    ),
    "prepared_call": lambda ours, theirs, args, stream: ours.prepared_call(GRID, BLOCK, *args),
    "prepared_async_call": lambda ours, theirs, args, stream: ours.prepared_async_call(
        GRID, BLOCK, stream, *args
    ),
}
WITH_HOST = [form for form in FORMS if not form.startswith("prepared")]  # which take no In and Out
WITHOUT_STREAM = ["f", "launch", "prepared_call"]

N = 16
STEPS = 40
THREADS = 3
STREAMS = 4  # of each schedule: few, so that its steps meet
PAUSES = [0, 0, 20, 100]  # microseconds; the host driver is lazy by itself
PER_THREAD = cupy.cuda.Stream.ptds


class Place(NamedTuple):
    """A stream, and the library that queues work there."""

    library: str
    stream: Any
    handle: int
    thread: int | None = None  # the per-thread default stream is another one on each

    @property
    def key(self):
        """Which stream it is, in whatever library's words."""
        return self.handle, self.thread

    @property
    def of_cupy(self):
        return Place("cupy", bridge.as_cupy_stream(self.stream), *self.key)


DEFAULT = Place("pycuda", None, 0)
EVERY = Place("pycuda", None, -2)  # all of PyCUDA's streams


class Buffer:
    """Memory, the array through which it is used, and where work on it may be pending."""

    def __init__(self, kind, array, place, home):
        self.number = 0
        self.kind = kind
        self.place = place
        self.home = home  # the stream to which the block goes back
        self.model = np.zeros(N, np.int32)
        self.older = []
        self.graphs = []
        self.met = {}
        self.set_view(array, None)

    def set_view(self, array, user, *covers):
        """Note an array: when it goes, `covers` and the default stream wait for `user`."""
        self.array = array
        self.user = user
        self.covers = {place.key for place in (DEFAULT, EVERY, *covers) if user is not None}
        self.meet(array)

    def meet(self, array):
        """Note what is known of an array, for when a conversion gives it back."""
        self.met[id(array)] = weakref.ref(array), self.user, self.covers

    def set_again(self, array):
        found = self.met.get(id(array))
        if found and found[0]() is array:
            self.array = array
            _, self.user, self.covers = found
            return True
        return False

    @property
    def is_on_default(self):
        """Whether it is a GPUArray that PyCUDA's default stream may be working on."""
        return self.place.library == "pycuda" and self.place.handle == 0


class Exporter:
    """An array of a third library, with work pending on a stream."""

    def __init__(self, array, place):
        self.array = array
        self.place = place


class ByInterface(Exporter):
    @property
    def __cuda_array_interface__(self):
        found = dict(self.array.__cuda_array_interface__)
        return {**found, "version": 3, "stream": self.place.handle or 1}


class ByDlpack(Exporter):
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **keywords):
        with self.place.of_cupy.stream:  # CuPy lets the consumer wait for its current stream
            return self.array.__dlpack__(stream=stream, **keywords)


class Threads:
    """Threads that do one thing at a time, in the order in which it comes; 0 is the caller's."""

    def __init__(self, count):
        self.todo = [queue.SimpleQueue() for _ in range(1, count)]
        self.done = queue.SimpleQueue()
        self.answers = []
        self.threads = [
            threading.Thread(target=self._work, args=(todo,), daemon=True) for todo in self.todo
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, todo):
        with bridge.primary_context():
            for action in iter(todo.get, None):
                try:
                    self.answers.append((action(), None))
                except BaseException as error:
                    self.answers.append((None, error))
                del action  # before the other thread goes on: it may drop what this one holds
                self.done.put(None)

    def run(self, thread, action):
        if thread == 0:
            return action()
        self.todo[thread - 1].put(action)
        self.done.get()
        result, error = self.answers.pop()
        if error is not None:
            raise error
        return result

    def close(self):
        for todo, thread in zip(self.todo, self.threads, strict=True):
            todo.put(None)
            thread.join()


class Kernels:
    def __init__(self):
        ours = bridge.SourceModule(SOURCE, no_extern_c=True)
        image, _ = cupy.cuda.compiler.compile_using_nvrtc(SOURCE)
        theirs = drv.module_from_buffer(image)
        self.ours = {name: ours.get_function(name).prepare(CODES[name]) for name in CODES}
        self.theirs = {name: theirs.get_function(name) for name in CODES}


class Schedule:
    """One random schedule."""

    # What a step is, and how often; a step that a buffer does not allow is none.
    KINDS: ClassVar = {"drop": 15, "move": 30, "work": 20, "read": 20}
    MOVES: ClassVar = {
        "to_the_other": 4,
        "convert_unordered": 1,
        "wait": 2,
        "name_the_stream": 2,
        "view_on_a_stream": 4,
        "export": 4,
        "export_muted": 2,
        "slice": 2,
        "slice_wrapped": 1,
        "slice_there_and_back": 4,
    }
    WORK: ClassVar = {
        "plain": 3,
        "call": 6,
        "mix": 3,
        "mix_with_host": 1,
        "mix_with_pinned": 1,
        "wrapped": 2,
        "ufunc": 2,
        "on_a_view": 3,
        "graph": 3,
        "replay": 2,
    }
    READS: ClassVar = {"read_plain": 3, "read_by_call": 3, "read_to_host": 1, "get": 1}
    HOST_WAITS = ("mix_with_host", "read_to_host", "get")
    names = True  # streams in calls
    ALLOCATIONS = ("cupy", "pool", "from cupy's")

    def __init__(self, seed, kernels, threads):
        self.random = random.Random(seed)
        self.kernels = kernels
        self.threads = threads
        self.pool = DeviceMemoryPool()
        self.cupys = cupy.cuda.MemoryPool()
        self.from_cupys = bridge.pycuda_allocator(self.cupys)
        self.buffers = []
        self.reads = []
        self.results = cupy.zeros((STEPS * 2, N), np.int32)
        self.log = []
        self.count = 0
        # A schedule of fewer kinds of steps has more of each, and they hide less of each other:
        # what makes the host wait hides most.
        self.left_out = {
            name
            for name in [*self.MOVES, *self.WORK, *self.READS]
            if self.random.random() < (0.8 if name in self.HOST_WAITS else 0.4)
        }
        self.captured = [drv.Stream(1), drv.Stream(1)]
        pycudas = [drv.Stream(), *self.captured]
        places = [
            ("cupy", cupy.cuda.Stream()),
            ("cupy", cupy.cuda.Stream(non_blocking=True)),
            ("cupy", cupy.cuda.Stream(non_blocking=True)),
            ("cupy", PER_THREAD),
            ("cupy", bridge.as_cupy_stream(self.random.choice(pycudas))),
            ("pycuda", None),
            ("pycuda", PER_THREAD),
            *(("pycuda", stream) for stream in pycudas),
        ]
        self.streams = [("cupy", cupy.cuda.Stream.null), *self.random.sample(places, STREAMS - 1)]

    def run(self):
        """Queue everything; AssertionError if a read is not what it should be."""
        drv.Context.synchronize()
        beside = None  # a capture that the steps do not take part in
        for _ in range(STEPS):
            if beside and self.random.random() < 0.3:
                beside.end_capture()
                beside = None
            elif not beside and self.random.random() < 0.05:
                beside = self.random.choice([cupy.cuda.Stream(non_blocking=True), self.pycudas()])
                beside.begin_capture()
            if not self.buffers or (len(self.buffers) < 4 and self.random.random() < 0.15):
                self.allocate(self.random.choice(self.ALLOCATIONS))
            else:
                getattr(self, self.choose(self.KINDS))(self.random.choice(self.buffers))
        if beside:
            beside.end_capture()
        for buffer in self.buffers:
            self.read(buffer)
        self.check()

    def pycudas(self):
        return bridge.as_cupy_stream(drv.Stream(1))

    def check(self):
        streams = [s for _, s in self.streams if s is not None and s is not PER_THREAD]
        self.random.shuffle(streams)  # the host driver runs what is waited for first
        for stream in streams:
            stream.synchronize()
        drv.Context.synchronize()
        for found, model, text in self.reads:
            got = found.get() if isinstance(found, cupy.ndarray) else found
            np.testing.assert_array_equal(got[: model.size], model, err_msg=text)

    # ---- where and on which thread ---------------------------------------------------------------

    def choose(self, weights):
        drawn = [0 if name in self.left_out else weight for name, weight in weights.items()]
        return self.random.choices(list(weights), drawn if any(drawn) else None)[0]

    def place(self, library, per_thread=True):
        """Choose a stream of a library, and a thread where that matters."""
        if library == "pycuda" and self.random.random() < 0.1:
            stream = drv.Stream(self.random.randrange(2))  # gone with what is done there
        else:
            known = [stream for kind, stream in self.streams if kind == library]
            stream = self.random.choice(known or [None])
        if stream is PER_THREAD:
            if not per_thread or (library == "pycuda" and not self.names):
                return DEFAULT  # PyCUDA cannot launch there
            return Place(library, stream, stream.ptr, self.random.randrange(THREADS))
        handle = getattr(stream, "ptr", None) or getattr(stream, "handle", 0)
        return Place(library, stream, handle)

    def under(self, buffer):
        """Choose what CuPy's current stream may be in a call on a buffer."""
        return self.place("cupy") if self.is_included(buffer) else buffer.place.of_cupy

    # ---- what is told of streams; `Unnamed` tells nothing ----------------------------------------

    def is_included(self, buffer):
        """Tell whether a call that names no stream is in order with a buffer's work."""
        return buffer.is_on_default if self.names else buffer.place.library == "pycuda"

    def named(self, stream):
        return {"stream": stream} if self.names else {}

    def user(self, place):
        """Return whose work the release of a view for a place waits for."""
        return place if self.names or place.library == "cupy" else EVERY

    def inside(self):
        """Choose where a new GPUArray of CuPy's pool is used, and a wrapped function works."""
        return DEFAULT if self.names else self.place("pycuda")

    def run_on(self, action, *places):
        """Do something under the first place's stream, on a thread that knows all of them."""
        known = {place.thread for place in places} - {None}
        thread = known.pop() if known else max(0, self.random.randrange(-6, THREADS))  # 0 is fast
        if known:
            return None  # two threads' default streams: nobody can name both

        def under():
            if places[0].library == "pycuda":
                return action()
            with places[0].stream:
                return action()

        result = self.threads.run(thread, under)
        return True if result is None else result

    def note(self, text, buffer):
        at = buffer.place
        where = f"{at.library} 0x{at.handle:x} of thread {at.thread}"
        self.log.append(f"{buffer.number}: {text}, {where}")

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, kind, place=None):
        if kind == "cupy":
            place = place or self.place("cupy")

            def make():
                with cupy.cuda.using_allocator(self.cupys.malloc):
                    return cupy.empty(N, np.int32)

            buffer = Buffer(kind, self.run_on(make, place), place, place)
        else:
            allocator = self.pool.allocate if kind == "pool" else self.from_cupys
            make = lambda: gpuarray.GPUArray(N, np.int32, allocator=allocator)  # noqa: E731
            array = self.run_on(make, DEFAULT)
            of_cupy = kind == "from cupy's"  # which any PyCUDA stream may use
            place = self.inside() if of_cupy else DEFAULT
            buffer = Buffer(kind, array, place, EVERY if of_cupy else DEFAULT)
        buffer.number = self.count = self.count + 1
        if buffer.place.library == "pycuda" and self.random.random() < 0.5:
            self.to_the_other(buffer)  # nothing was queued on the default stream in between
        value = np.int32(self.random.randrange(1000))
        self._plain(buffer, "start", buffer.array, value)
        buffer.model = np.arange(value, value + N, dtype=np.int32)
        self.buffers.append(buffer)
        self.note(f"allocate, {kind}", buffer)

    def drop(self, buffer):
        """Let go of the memory; take as much again from where it goes."""
        kind, home, place = buffer.kind, buffer.home, self.place("cupy")
        views = self._forget(buffer)
        if views is None:
            return
        # While a blocking stream is captured, CUDA accepts no work on the default stream.
        captive = cupy.cuda.Stream() if self.random.random() < 0.2 else None
        if captive:
            captive.begin_capture()
        self.run_on(self._tie(views) if self.random.random() < 0.2 else views.clear, place)
        if captive:
            captive.end_capture()
        if self.random.random() < 0.8:
            self.allocate(kind, home if kind == "cupy" else None)

    def _forget(self, buffer):
        """Return what keeps a buffer's memory, ready to be let go of."""
        place, home = buffer.place, buffer.home
        is_of_pycuda = place.library == "pycuda" and place.stream is not PER_THREAD
        users = (place.key, EVERY.key) if is_of_pycuda else (place.key,)
        covered = buffer.user and buffer.user.key in users and home.key in buffer.covers
        wait = lambda: bridge.wait_stream(home.stream, place.stream)  # noqa: E731
        if not (home.key in users or covered or self.run_on(wait, home, place)):  # CuPy's own rule
            return None
        self.note("drop", buffer)
        self.buffers.remove(buffer)
        views = [buffer.graphs, *buffer.older, buffer.array]
        vars(buffer).clear()
        return views

    def _tie(self, views):
        """Return what makes garbage of arrays that only the collector finds, and runs it."""

        def collect():
            knot, last = views.copy(), views[-1]
            if isinstance(last, gpuarray.GPUArray):  # the collector does not look into CuPy's
                last.knot = knot
            knot = last = None
            views.clear()
            gc.collect()

        return collect

    # ---- moves -----------------------------------------------------------------------------------

    def move(self, buffer):
        getattr(self, self.choose(self.MOVES))(buffer)

    def _moved(self, buffer, text, place, array=None, user=None, *covers):
        if array is not None and array is not buffer.array:
            if self.random.random() < 0.7:  # letting go may order more than the move does
                buffer.older.append(buffer.array)
            # `as_cupy` gives back, and tells nothing of, what it has been given before.
            if place.library == "pycuda" or not buffer.set_again(array):
                buffer.set_view(array, user, *covers)
        buffer.place = place
        self.note(text, buffer)

    def to_the_other(self, buffer):
        """Convert, naming the stream."""
        old, array = buffer.place, buffer.array
        if old.library == "cupy":
            new = self.place("pycuda")
            view = self.run_on(lambda: bridge.as_pycuda(array, **self.named(new.stream)), old, new)
        else:
            home = buffer.home.library == "cupy" and self.random.random() < 0.4
            new = buffer.home if home else self.place("cupy")
            view = self.run_on(lambda: bridge.as_cupy(array, **self.named(old.stream)), new, old)
        if view is not None:
            self._moved(buffer, "convert", new, view, self.user(new), old)

    def convert_unordered(self, buffer):
        old, array = buffer.place, buffer.array
        new = self.place("pycuda" if old.library == "cupy" else "cupy")
        convert = bridge.as_pycuda if old.library == "cupy" else bridge.as_cupy

        def action():
            bridge.wait_stream(new.stream, old.stream)
            return convert(array, stream=-1)

        view = self.run_on(action, new, old)
        if view is not None:
            self._moved(buffer, "convert, stream=-1", new, view)

    def wait(self, buffer):
        old, new = buffer.place, self.place(buffer.place.library)
        if self.run_on(lambda: bridge.wait_stream(new.stream, old.stream), new, old):
            self._moved(buffer, "wait", new)

    def name_the_stream(self, buffer):
        old = buffer.place
        if old.library == "cupy":
            new = self.place("cupy")
            array = buffer.array
            if self.run_on(lambda: bridge.as_cupy(array, stream=old.stream), new, old) is not None:
                self._moved(buffer, "as_cupy(x, stream=)", new)

    def view_on_a_stream(self, buffer):
        """View a GPUArray for a stream: after the default one's work, and CuPy's current one's."""
        array, here = buffer.array, self.under(buffer)
        if buffer.place.library == "cupy":
            known = [one for one in buffer.older if isinstance(one, gpuarray.GPUArray)]
            array = self.random.choice(known) if known else None
            if array is None or array.size != buffer.array.size:
                return
        new = self.place("pycuda")
        view = self.run_on(lambda: bridge.as_pycuda(array, stream=new.stream), here, new)
        if view is not None and not (view is array and buffer.set_again(view)):
            self._moved(buffer, "as_pycuda(a, stream=)", new, view, new, here)
        elif view is not None:
            self._moved(buffer, "as_pycuda(a)", new)

    def export(self, buffer, muted=False):
        """Go through a third library, which says where its work is."""
        old = buffer.place
        kind = self.random.choice([ByInterface, ByDlpack]) if old.library == "cupy" else ByInterface
        new = self.place("cupy" if muted else self.random.choice(["cupy", "pycuda"]))
        said = self.place("cupy", per_thread=False) if muted else old
        exporter = kind(buffer.array, said)

        def action():
            if muted:
                return bridge.as_cupy(exporter, stream=old.of_cupy.stream)  # None says nothing
            if new.library == "cupy":
                return bridge.as_cupy(exporter)
            return bridge.as_pycuda(exporter, **self.named(new.stream))

        view = self.run_on(action, new, old)
        if view is not None:
            self._moved(buffer, kind.__name__ + ", stream=" * muted, new, view)
            if new.library == "pycuda":
                buffer.meet(view.base.source)  # what `as_cupy` gives back

    def export_muted(self, buffer):
        self.export(buffer, muted=True)

    def slice(self, buffer):
        at = self.random.randrange(1, 4)
        if buffer.model.size - at >= N // 2:
            buffer.older.append(buffer.array)
            buffer.array = buffer.array[at:]
            buffer.meet(buffer.array)
            buffer.model = buffer.model[at:]
            self.note("slice", buffer)

    def slice_wrapped(self, buffer):
        here, array, at = buffer.place, buffer.array, self.random.randrange(1, 4)
        if here.library == "cupy" and buffer.model.size - at >= N // 2:
            cut = bridge.wrap_pycuda(lambda a: a[at:])
            self._moved(buffer, "slice, wrapped", here, self.run_on(lambda: cut(array), here), here)
            buffer.model = buffer.model[at:]

    def slice_there_and_back(self, buffer):
        """Take a slice through CuPy, under the stream to which the block goes back."""
        home, part = buffer.home, buffer.array[1:]
        if buffer.is_on_default and home.library == "cupy" and part.size >= N // 2:
            view = self.run_on(lambda: bridge.as_pycuda(bridge.as_cupy(part)), home)
            self._moved(buffer, "slice, there and back", DEFAULT, view, EVERY, home)
            buffer.model = buffer.model[1:]

    # ---- kernels ---------------------------------------------------------------------------------

    def _numbers(self, size):
        return np.int32(size), np.int32(self.random.choice(PAUSES))

    def _plain(self, buffer, name, *args):
        """Run a kernel where the buffer is, by the library whose array it is."""
        place, args = buffer.place, (*args, *self._numbers(buffer.model.size))
        ours, theirs = self.kernels.ours[name], self.kernels.theirs[name]
        if place.library == "cupy" or place.stream is PER_THREAD:  # on which PyCUDA cannot launch
            self.run_on(lambda: ours(*args, block=32), place.of_cupy)
        else:
            self.run_on(lambda: theirs(*args, block=BLOCK, stream=place.stream), place)

    def _call(self, here, name, *args, of, forms=tuple(FORMS)):
        """Run a kernel on buffers by the bridge, under a stream of CuPy's, on any stream.

        A call that names a stream orders only that one, and CuPy's current stream.
        """
        if not self.names or any(buffer.place.key != here.key for buffer in of):
            forms = [form for form in forms if form in WITHOUT_STREAM]
        form = self.random.choice(forms)
        if form.startswith("launch"):  # on PyCUDA's own streams only
            there = self.place("pycuda", per_thread=False)
        else:
            there = self.place(self.random.choice(["cupy", "pycuda"]))
        ours, theirs = self.kernels.ours[name], self.kernels.theirs[name]
        return bool(self.run_on(lambda: FORMS[form](ours, theirs, args, there.stream), here, there))

    # ---- reads -----------------------------------------------------------------------------------

    def read(self, buffer):
        """Copy the buffer, to be compared in the end."""
        slot = self.results[len(self.reads)]
        how = self.choose(self.READS)
        found = getattr(self, how)(buffer, slot)
        if found is None:
            how, found = "read_plain", self.read_plain(buffer, slot)
        self.note(how, buffer)
        model = buffer.model.copy()
        if how == "read_to_host":
            model = 3 * np.arange(model.size, dtype=np.int32) + model
        self.reads.append((found, model, "\n".join(self.log)))

    def read_plain(self, buffer, slot):
        self._plain(buffer, "copy", slot, buffer.array)
        return slot

    def read_by_call(self, buffer, slot):
        args = slot, buffer.array, *self._numbers(buffer.model.size)
        return slot if self._call(self.under(buffer), "copy", *args, of=[buffer]) else None

    def read_to_host(self, buffer, slot):
        """Compute with an array of the host, which is there and back when the call returns."""
        host = np.arange(buffer.model.size, dtype=np.int32)
        args = drv.InOut(host), buffer.array, *self._numbers(host.size)
        here = self.under(buffer)
        return host if self._call(here, "mix", *args, of=[buffer], forms=WITH_HOST) else None

    def get(self, buffer, slot):
        at, array = buffer.place, buffer.array
        if at.library == "cupy" or buffer.is_on_default:
            return self.run_on(array.get, at)
        return None

    # ---- work ------------------------------------------------------------------------------------

    def work(self, buffer):
        how = self.choose(self.WORK)
        model = getattr(self, how)(buffer, np.int32(self.random.randrange(1000)))
        if model is not None:
            buffer.model = model
            self.note(how, buffer)

    def plain(self, buffer, value):
        self._plain(buffer, "step", buffer.array, value)
        return 3 * buffer.model + value

    def call(self, buffer, value):
        """A function of either library, called through the bridge."""
        args = buffer.array, value, *self._numbers(buffer.model.size)
        done = self._call(self.under(buffer), "step", *args, of=[buffer])
        return 3 * buffer.model + value if done else None

    def mix(self, buffer, value):
        """A function of two arrays, of any library, whose work the call is in order with."""
        here = self.under(buffer)
        others = [
            one
            for one in self.buffers
            if one is not buffer and (one.place.key == here.key or self.is_included(one))
        ]
        if not others:
            return None
        other = self.random.choice(others)
        size = min(buffer.model.size, other.model.size)
        args = buffer.array, other.array, *self._numbers(size)
        if not self._call(here, "mix", *args, of=[buffer, other]):
            return None
        model = buffer.model.copy()
        model[:size] = 3 * model[:size] + other.model[:size]
        self.note("(mixed in)", other)
        return model

    def mix_with_host(self, buffer, value):
        host = np.arange(value, value + buffer.model.size, dtype=np.int32)
        args = buffer.array, drv.In(host), *self._numbers(host.size)
        done = self._call(self.under(buffer), "mix", *args, of=[buffer], forms=WITH_HOST)
        return 3 * buffer.model + host if done else None

    def mix_with_pinned(self, buffer, value):
        """The host has the memory again at once, and writes there."""
        host = cupyx.empty_pinned(buffer.model.size, np.int32)
        host[:] = added = np.arange(value, value + host.size, dtype=np.int32)
        args = buffer.array, host, *self._numbers(host.size)
        done = self._call(self.under(buffer), "mix", *args, of=[buffer], forms=WITH_HOST)
        del host, args
        cupyx.empty_pinned(added.size, np.int32)[:] = -1
        return 3 * buffer.model + added if done else None

    def wrapped(self, buffer, value):
        """A function of GPUArrays, which works on PyCUDA's default stream."""
        if buffer.place.library != "cupy":
            return None
        array, function = buffer.array, self.kernels.theirs["step"]
        args = value, *self._numbers(buffer.model.size)

        def work(*arrays):
            function(*(arrays or (array,)), *args, block=BLOCK, stream=stream)

        stream = self.inside().stream
        arrays = [array] * self.random.randrange(2)  # or it is known to the function anyway
        self.run_on(lambda: bridge.wrap_pycuda(work)(*arrays), buffer.place)
        return 3 * buffer.model + value

    def ufunc(self, buffer, value):
        if buffer.place.library != "cupy":
            return None
        self.run_on(lambda: compute(buffer.array, value), buffer.place)
        return 3 * buffer.model + value

    def on_a_view(self, buffer, value):
        """A function of PyCUDA's on a view, the end of which CuPy's stream waits for."""
        place = buffer.place
        if place.library != "cupy":
            return None
        there, theirs = self.place("pycuda", per_thread=False), self.kernels.theirs["step"]
        args = value, *self._numbers(buffer.model.size)

        def work():
            view = bridge.as_pycuda(buffer.array, **self.named(there.stream))
            theirs(view, *args, block=BLOCK, stream=there.stream)
            same = weakref.ref(view)
            del view
            if same() is not None:  # the array was made from that one, which stays
                bridge.as_cupy(same(), **self.named(there.stream))

        self.run_on(work, place)
        return 3 * buffer.model + value

    # ---- graphs ----------------------------------------------------------------------------------

    def graph(self, buffer, value):
        """Capture work on two streams, one of them CuPy's current one, and launch it."""
        inside, other = self.random.sample(self.captured, 2)
        array, numbers = buffer.array, self._numbers(buffer.model.size)
        ours, theirs = self.kernels.ours["step"], self.kernels.theirs["step"]
        kept = buffer.older if self.random.random() < 0.5 else []

        def call(value, form):
            FORMS[form](ours, theirs, (array, value, *numbers), other)

        def on_a_view(value, form):
            view = bridge.as_pycuda(array, stream=other)
            theirs(view, value, *numbers, block=BLOCK, stream=other)
            if value % 2:
                kept.extend([view, bridge.as_cupy(view, stream=other)])

        def on_a_plain_view(value, form):
            view = bridge.as_pycuda(array)
            FORMS[form](ours, theirs, (view, value, *numbers), other)

        def on_cupys(value, form):
            compute(bridge.as_cupy(array), value)

        kinds = [call, on_a_view, on_a_plain_view, on_cupys]
        steps = [
            (self.random.choice(kinds), value, self.random.choice(list(FORMS)))
            for value in range(value, value + self.random.randrange(1, 4))
        ]
        others = [one for one in self.buffers if one is not buffer and one.user]  # which wait
        views = self._forget(self.random.choice(others)) if others else None

        def capture():
            with bridge.as_cupy_stream(inside) as stream:
                stream.begin_capture()
                try:
                    for work, value, form in steps:
                        work(np.int32(value), form)
                    if views:
                        views.clear()
                finally:
                    graph = stream.end_capture()
            return graph

        graph = self.run_on(capture, DEFAULT)
        buffer.graphs.append((graph, [value for _, value, _ in steps]))
        return self.replay(buffer, value)

    def replay(self, buffer, value):
        if not buffer.graphs:
            return None
        graph, values = self.random.choice(buffer.graphs)
        self.run_on(lambda: graph.launch(buffer.place.of_cupy.stream), buffer.place)
        model = buffer.model
        for one in values:
            model = 3 * model + np.int32(one)
        return model


def compute(array, value):
    cupy.multiply(array, 3, out=array)
    cupy.add(array, value, out=array)


class Unnamed(Schedule):
    """A random schedule in which no call names a stream, and PyCUDA works on any of its streams."""

    MOVES: ClassVar = {
        "to_the_other": 6,
        "export_plainly": 1,
        "export": 4,
        "wait": 2,
        "slice": 2,
        "slice_wrapped": 1,
        "slice_there_and_back": 2,
    }
    WORK: ClassVar = {
        name: often for name, often in Schedule.WORK.items() if name not in ("graph", "replay")
    }
    names = False

    def export_plainly(self, buffer):
        """Give a GPUArray to CuPy itself, which lets the host wait."""
        if buffer.place.library == "pycuda":
            array, convert = buffer.array, self.random.choice([cupy.asarray, cupy.from_dlpack])
            old, new = buffer.place, self.place("cupy")
            view = self.run_on(lambda: convert(array), new)
            self._moved(buffer, convert.__name__, new, view, new, old)


def run(schedules, first=0, kind=Schedule):
    """Run schedules; return how many.  AssertionError at the first stale read."""
    kernels, threads = Kernels(), Threads(THREADS)
    gc.collect()
    gc.freeze()
    gc.disable()  # only where a schedule says so: it is then the same each time, and fast
    lost = []
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    try:
        for seed in range(first, first + schedules):
            try:
                schedule = kind(seed, kernels, threads)
                schedule.run()
                pool, cupys = schedule.pool, schedule.cupys
                del schedule
                gc.collect()
                ordering.release_kept_views()  # what was dropped in a capture
                drv.Context.synchronize()
                host_memory.release_done()
                gc.collect()  # of cycles that were kept
                assert (pool.active_bytes, cupys.used_bytes()) == (0, 0), "memory is left"
                pool.free_held(), cupys.free_all_blocks()
                assert not lost, f"a finalizer raised {lost[0].exc_value!r}"
            except Exception as error:
                raise AssertionError(f"schedule {seed}: {error}") from error
            finally:
                drv.Context.synchronize()
    finally:
        sys.unraisablehook = hook
        lost.clear()
        gc.enable()
        gc.unfreeze()
        threads.close()
    return schedules


def held():
    """Return the device's free memory once everything is dropped."""
    gc.collect()
    drv.Context.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--unnamed", action="store_true", help="no call names a stream")
    options = parser.parse_args()
    kind = Unnamed if options.unnamed else Schedule
    run(50, kind=kind)  # compilers, events and streams are made once
    before = held()
    done = run(options.schedules, options.first, kind=kind)
    print(done, "schedules, no stale read; bytes left on the device:", before - held())


if __name__ == "__main__":
    main()

"""Memory is released wherever its last view ends: on any thread, in a cycle, at exit.

`test_unnamed_streams` has the order of the release on every pair of streams.
"""

import gc
import sys
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from other_threads import on_a_thread
from processes import USUAL
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from races import cupy_reuses, pycuda_reuses

import bridge

pytestmark = pytest.mark.alone
N = 1000
everywhere = pytest.mark.parametrize(
    "collect", [gc.collect, lambda: on_a_thread(gc.collect)], ids=["here", "on another thread"]
)

LET_GO = """
    import contextlib, gc
    from pycuda.tools import DeviceMemoryPool
    from other_threads import on_a_thread
    from bridge.interop import exporting

    exporting.export_in_order()
    gc.freeze()  # the modules, which need not be looked through each time

    N = 1 << 20
    VIEWS = [
        lambda a, s: bridge.as_cupy(a),
        lambda a, s: bridge.as_pycuda(a[2:], stream=s)[2:],
        lambda a, s: bridge.as_cupy(
            bridge.as_pycuda(bridge.as_cupy(a)[1:], stream=s)[1:], stream=s),
        lambda a, s: [a, bridge.as_cupy(a[2:].reshape(-1, 2).T[1:])],  # the array goes last
        lambda a, s: cupy.asarray(a),  # `GPUArray`'s export
    ]

    def of_cupy(allocator):
        return bridge.as_pycuda(cupy.empty(N, np.uint8))

    def of_pycuda(allocator):
        return gpuarray.GPUArray(N, np.uint8, allocator=allocator)

    def free_bytes():
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.runtime.memGetInfo()[0]

    def every_case(let_go):
        with bridge.primary_context():
            pool, stream = DeviceMemoryPool(), drv.Stream(1)
            for view in VIEWS:  # the driver keeps what the first streams took
                view(of_pycuda(drv.mem_alloc), stream)
            before = free_bytes()
        allocators = drv.mem_alloc, pool.allocate, bridge.pycuda_allocator()
        sources = [(of_cupy, None), *((of_pycuda, allocator) for allocator in allocators)]
        for case in ((*source, view) for source in sources for view in VIEWS):
            make, allocator, view = case
            with bridge.primary_context():
                views = [view(make(allocator), stream)]
                gc.collect()
            let_go(views)
            assert not views
            assert pool.active_bytes == 0, case
            assert cupy.get_default_memory_pool().used_bytes() == 0, case
            with bridge.primary_context():
                pool.free_held()
                assert free_bytes() == before, case
        with bridge.primary_context():
            del stream

    def in_an_exception(views):
        def fail():
            held = views.pop()
            raise ValueError
        with contextlib.suppress(ValueError):
            fail()

    def under_another_context(views):
        other = drv.Device(0).make_context()
        views.clear()
        other.pop()
        other.detach()

    def in_a_cycle(views):
        cycle = [views.pop()]
        cycle.append(cycle)
        del cycle
        gc.collect()

    drv.init()
    another = drv.Device(0).make_context()  # its own bytes, once
    another.pop()
    every_case(PLACE)
    every_case(lambda views: on_a_thread(lambda: PLACE(views)))
    another.detach()
"""


PLACES = "list.clear", "in_an_exception", "under_another_context", "in_a_cycle"


@pytest.mark.parametrize("place", PLACES)
def test_pycudas_memory_is_let_go_anywhere(place, run):
    """Also on a thread without a context."""
    run(LET_GO.replace("PLACE", place), start="")


def test_what_is_not_an_arrays_own_is_let_go_anywhere(run):
    """Memory of another array, of a base, and PyCUDA's stream of a view that was its last user."""
    run("""
        import warnings
        from other_threads import on_a_thread

        warnings.simplefilter("always")  # an error cannot leave a finalizer
        a, b = (gpuarray.zeros(9, np.float32) for _ in range(2))
        part = a.T
        a.gpudata, b.gpudata = b.gpudata, a.gpudata
        held = [bridge.as_cupy(part)]
        del a, b, part
        on_a_thread(held.clear)

        block = drv.mem_alloc(9)
        held = [gpuarray.GPUArray(9, np.uint8, gpudata=int(block), base=block)]
        del block
        bridge.as_cupy(held[0])
        on_a_thread(held.clear)

        for start in (lambda action: action()), on_a_thread:
            held = [bridge.as_pycuda(cupy.zeros(9), stream=drv.Stream(1))]
            start(held.clear)
    """)


AT_EXIT = """
from pycuda.tools import DeviceMemoryPool

def make(allocate=drv.mem_alloc):
    return gpuarray.GPUArray(9, np.uint8, allocator=allocate)

def alive():
    global pool, stream, a, b, c, d, x, y, z, of_cupy
    pool, stream = DeviceMemoryPool(), drv.Stream()
    a, b, c = make(), make(pool.allocate), pool.allocate(9)
    pool.allocate(1000)
    x, y = bridge.as_cupy(make(pool.allocate)), bridge.as_cupy(make())
    d = bridge.as_pycuda(cupy.zeros(9), stream=drv.Stream(1))
    z = bridge.as_pycuda(bridge.as_cupy(b)[1:], stream=stream)
    of_cupy = make(bridge.pycuda_allocator())
    for cycle in make(pool.allocate), make():
        cycle.itself = cycle, bridge.as_cupy(cycle)
"""
REVERSED = "of_cupy = z = d = y = x = c = b = a = stream = pool = None\n"  # the names' order


@pytest.mark.parametrize("names", ["", REVERSED], ids=["in order", "reversed"])
@pytest.mark.parametrize("start", ["import bridge.autoinit", "with bridge.primary_context():"])
def test_views_alive_at_exit(start, names, python):
    alive = "    alive()" if start[-1] == ":" else "alive()"
    done = python(f"{names}{USUAL}{AT_EXIT}\n{start}\n{alive}")
    assert (done.returncode, done.stderr) == (0, "")


def test_views_alive_at_exit_of_a_context_that_another_thread_made(run):
    """There the main thread cannot free; plain arrays of PyCUDA's make PyCUDA warn."""
    script = """
from other_threads import on_a_thread
def work():
    global one, two, three, pool
    with bridge.primary_context():
        pool = DeviceMemoryPool()
        one, two = bridge.as_cupy(make(pool.allocate)), bridge.as_cupy(make())
        three, cycle = make(bridge.pycuda_allocator()), make(pool.allocate)
        cycle.itself = cycle, bridge.as_cupy(cycle)
        pool.allocate(1000)
on_a_thread(work)
"""
    run(AT_EXIT + script, start="")


def test_letting_go_leaves_the_current_device_as_it_is(run):
    script = """
        stream = drv.Stream(1)
        for make in (
            lambda: bridge.as_cupy(gpuarray.GPUArray(9, np.uint8)),
            lambda: bridge.as_pycuda(cupy.zeros(9), stream=stream),
        ):
            views = [make()]
            cupy.cuda.Device(1).use()
            views.clear()
            assert cupy.cuda.runtime.getDevice() == 1
            cupy.cuda.Device(0).use()
    """
    run(script, devices=2)


@pytest.mark.parametrize("part", [slice(None), slice(100, None)], ids=["whole", "slice"])
@pytest.mark.parametrize("kind", ["PyCUDA's pool", "pycuda_allocator"])
def test_memory_that_is_taken_from_an_array_is_kept_by_the_views_on_it(kind, part):
    pool, cupys = DeviceMemoryPool(), cupy.cuda.MemoryPool()
    allocate = pool.allocate if kind == "PyCUDA's pool" else bridge.pycuda_allocator(cupys)
    a = gpuarray.GPUArray(300, np.uint8, allocator=allocate)
    view = bridge.as_cupy(a[part])
    a.gpudata = None
    del a
    assert pool.active_bytes + cupys.used_bytes() in (300, 512)
    del view
    assert pool.active_bytes + cupys.used_bytes() == 0


@pytest.fixture(scope="module")
def second_context():
    context = drv.Device(0).make_context()
    context.pop()
    yield context
    context.detach()


def test_memory_of_another_context_is_refused(second_context):
    second_context.push()
    a = gpuarray.zeros(9, np.float32)
    second_context.pop()
    for convert in (
        bridge.as_cupy,
        *((cupy.asarray,) if cupy.__version__ >= "14" else ()),  # CuPy 13 drops the reason
        lambda a: bridge.as_cupy(a.gpudata, shape=9, dtype="f4"),
    ):
        with pytest.raises(bridge.ContextError, match="allocated in another context"):
            convert(a)
    second_context.push()
    del a
    second_context.pop()


@pytest.mark.parametrize("is_thread", [True, False], ids=["a thread", "another context"])
def test_the_release_is_ordered_wherever_it_happens(is_thread, second_context, latch):
    """There the primary context may not be current."""
    here, there = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    to_pycuda = lambda x: bridge.as_pycuda(x, stream=there)  # noqa: E731

    def drop(views):
        if is_thread:
            return on_a_thread(views.clear)
        second_context.push()
        views.clear()
        second_context.pop()

    assert cupy_reuses(to_pycuda, here, there, latch, drop=drop) == {1}
    assert pycuda_reuses(bridge.as_cupy, here, there, latch, drop=drop) == {1}


@pytest.mark.parametrize("captive", [None, cupy.cuda.Stream], ids=["alone", "beside a capture"])
def test_the_release_in_a_cycle_with_its_stream_is_ordered(captive, latch):
    """The stream's finalizer may run first; the default stream can wait for none in a capture."""
    gc.collect()
    there, captive = drv.Stream(1), captive and captive()

    def convert(x):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            a = bridge.as_pycuda(x, stream=stream if captive else there)
        a.itself, a.stream = a, stream
        return a

    def drop(views):
        if captive:
            bridge.wait_stream(views[0].stream, there)
            captive.begin_capture()
        views.clear()
        gc.collect()
        if captive:
            captive.end_capture()

    assert cupy_reuses(convert, cupy.cuda.Stream.null, there, latch, drop=drop) == {1}


@pytest.mark.parametrize("part", [lambda a: a, lambda a: a[1:]], ids=["whole", "slice"])
@everywhere
def test_memory_of_what_another_finalizer_saves_is_kept_and_let_go_later(collect, part):
    """The garbage collector finds an array in a cycle, and the finalizer in it saves the array."""
    saved, pool = [], DeviceMemoryPool()

    class Recycled:
        def __init__(self, array):
            self.array, self.itself = array, self

        def __del__(self):
            saved.append(self.array)

    gc.collect()
    Recycled(bridge.as_cupy(part(gpuarray.GPUArray(N, "i4", allocator=pool.allocate))))
    collect()
    assert (len(saved), pool.active_blocks) == (1, 1)
    on_a_thread(saved.clear)  # PyCUDA would warn, or abort
    assert pool.active_blocks == 0


@everywhere
@pytest.mark.parametrize("pooled", [False, True])
def test_a_cycle_of_an_array_and_its_view_is_collected(pooled, collect):
    """PyCUDA's array with a view of CuPy's, and a CuPy array with one of PyCUDA's."""

    class Noted(cupy.ndarray):  # which has attributes
        pass

    pool, cupys = DeviceMemoryPool(), cupy.cuda.MemoryPool()
    a = gpuarray.GPUArray(N, np.int32, allocator=pool.allocate if pooled else drv.mem_alloc)
    with cupy.cuda.using_allocator(cupys.malloc):
        x = Noted((N,))
    a.view, x.view = bridge.as_cupy(a), bridge.as_pycuda(x)
    gone = weakref.finalize(a, int)
    del a, x
    assert cupys.used_bytes() > 0
    assert gone.alive
    collect()
    assert not gone.alive
    assert (pool.active_bytes, cupys.used_bytes()) == (0, 0)


def test_the_release_runs_in_no_python_frame(second_context):
    """In which a profiler could hold what is freed, and a signal's handler raise."""

    class Keeper:
        def __del__(self):
            pass

    views = [
        [bridge.as_pycuda(cupy.zeros(N), stream=drv.Stream(1))],
        [bridge.as_cupy(gpuarray.GPUArray(N, np.int32), stream=drv.Stream(1))],
        [bridge.as_cupy(gpuarray.GPUArray(N, np.int32, allocator=DeviceMemoryPool().allocate)[1:])],
    ]
    found = []
    second_context.push()
    sys.setprofile(lambda frame, event, _: event == "call" and found.append(frame.f_code.co_name))
    for held in (*views, [Keeper()]):
        held.clear()
    sys.setprofile(None)
    second_context.pop()
    assert found == ["__del__"]

"""A block goes back to its pool only after the other library's last queued use.

`test_unnamed_streams` has every pair of streams; here are the places where views end, and the
controls.
"""

import gc
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import Plain
from processes import USUAL
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from races import (
    CUPY_STREAMS,
    UNORDERED,
    as_plain_array,
    every_pair,
    reuse_cupys_block,
    reuse_pycudas_block,
)
from sampling import on_a_thread, sampled

import bridge

pytestmark = pytest.mark.alone
N = 1000


def as_pycuda(x, stream):
    return bridge.as_pycuda(x, stream=stream)


@every_pair
def test_the_plain_constructor_lets_the_block_go_too_early(
    cupy_kind, pycuda_kind, cupy_stream, pycuda_stream, latch, put
):
    early = (cupy_kind, pycuda_kind) in UNORDERED
    finish = cupy_stream.synchronize if early else None
    used = cupy_stream, pycuda_stream, latch, put, finish
    assert reuse_cupys_block(as_plain_array, *used) == ({7} if early else {1})


@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_work_on_the_per_thread_stream_is_waited_for(cupy_stream, latch):
    def put(pointer, n, value, stream):  # PyCUDA cannot launch there
        view = bridge.as_cupy(pointer, shape=n, dtype="i4", stream=-1, owner=sevens)
        view.data.copy_from_device_async(sevens.data, sevens.nbytes, stream)

    sevens, per_thread = cupy.asarray(np.full(N, 7, np.int32)), cupy.cuda.Stream.ptds
    assert reuse_cupys_block(as_pycuda, cupy_stream, per_thread, latch, put) == {1}


def test_cupy_asarray_lets_pycudas_block_go_too_early(latch, put, pycudas_export):
    cupy_stream = CUPY_STREAMS["non-blocking"]()
    finish = cupy.cuda.Stream.null.synchronize
    assert reuse_pycudas_block(cupy.asarray, cupy_stream, latch, put, before_release=finish) == {7}


def test_streams_are_ordered_before_memory_is_freed(latch, put):
    """What is freed may be used again at once, by another thread or, here, in a finalizer."""
    stream, ones, again = drv.Stream(1), cupy.asarray(np.ones(N, np.int32)), []

    class Owner:
        def __init__(self, x):
            self.x = x

        def __del__(self):
            pointer = self.x.data.ptr
            del self.x
            y = cupy.empty(N, np.int32)
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.get_current_stream())
            again.append((y, y.data.ptr == pointer))

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc), cupy.cuda.Stream(non_blocking=True):
        x = cupy.empty(N, np.int32)
        with latch.hold(stream):
            keywords = {"shape": N, "dtype": "i4", "owner": Owner(x), "stream": stream}
            a = bridge.as_pycuda(x.data.ptr, **keywords)
            del x, keywords
            put(a.gpudata, N, 7, stream)
            del a
        ((y, is_same),) = again
        assert is_same
        assert set(y.get().tolist()) == {1}


def under(cupy_stream, convert):
    with cupy_stream:
        return convert()


def slice_of_another_streams_view(x, stream):
    """It alone would order, at its end, the stream that the first view was made under."""
    other = cupy.cuda.Stream(non_blocking=True)
    whole = under(other, lambda: bridge.as_pycuda(x, stream=stream)[:])
    return bridge.as_pycuda(bridge.as_cupy(whole, stream=-1))


VIEWS_FOR_PYCUDA = {
    "a view of a slice": lambda x, s: bridge.as_pycuda(x[:], stream=s),
    "a view of a reshaped view": lambda x, s: bridge.as_pycuda(
        bridge.as_cupy(bridge.as_pycuda(x, stream=s)[:], stream=s).reshape(10, -1), stream=s
    ),
    "named later": lambda x, s: bridge.as_pycuda(bridge.as_pycuda(x), stream=s),
    "told by nobody": lambda x, s: slice_of_another_streams_view(x, -1),
    "told by another view": lambda x, s: slice_of_another_streams_view(x, None),
}


@pytest.mark.parametrize("convert", VIEWS_FOR_PYCUDA.values(), ids=VIEWS_FOR_PYCUDA)
@pytest.mark.parametrize("cupy_kind", ["null", "non-blocking"])
@pytest.mark.parametrize("pycuda_kind", ["None", "Stream(1)"])
def test_views_of_views_hold_cupys_block(convert, cupy_stream, pycuda_stream, latch, put):
    assert reuse_cupys_block(convert, cupy_stream, pycuda_stream, latch, put) == {1}


def test_a_block_of_the_default_stream_used_on_another_is_not_reused_early(latch, put):
    def convert(x, stream):
        return under(bridge.as_cupy_stream(stream), lambda: bridge.as_pycuda(x, stream=stream))

    null = cupy.cuda.Stream.null
    assert reuse_cupys_block(convert, null, drv.Stream(1), latch, put) == {1}


VIEWS_FOR_CUPY = {
    "a view of a view of a view": lambda a: bridge.as_cupy(
        bridge.as_pycuda(bridge.as_cupy(a[:])[:])[:]
    ),
    "a reshaped view": lambda a: bridge.as_cupy(a.reshape(10, -1)).T.T.ravel(),
}


@pytest.mark.parametrize("convert", VIEWS_FOR_CUPY.values(), ids=VIEWS_FOR_CUPY)
@pytest.mark.parametrize("of_cupy", [False, True], ids=["PyCUDA's pool", "CuPy's pool"])
def test_views_of_views_hold_pycudas_block(convert, of_cupy, latch, put):
    current = cupy.cuda.Stream(non_blocking=True)
    allocate = bridge.pycuda_allocator(cupy.cuda.MemoryPool()) if of_cupy else None
    assert reuse_pycudas_block(convert, current, latch, put, allocate=allocate) == {1}


# ---- the allocators ------------------------------------------------------------------------------


def reuse_of_cupys_pool(
    allocate, pool, cupy_stream, pycuda_stream, latch, put, view=None, early=False
):
    """Let PyCUDA write 7 into a block of CuPy's pool, drop it; CuPy takes blocks and writes 1.

    Return what CuPy reads, and whether PyCUDA is given the same block again.
    """
    pool.free_all_blocks()  # of several blocks CuPy 13 hands out any
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy_stream:
        with latch.hold(pycuda_stream):
            a = gpuarray.GPUArray((N,), np.int32, allocator=allocate)
            pointer = int(a.gpudata)
            if view:
                a = view(a, stream=pycuda_stream)
            put(pointer, N, 7, pycuda_stream)
            del a
            again = int(allocate(4 * N)) == pointer
            with cupy.cuda.using_allocator(pool.malloc):
                taken = [cupy.empty(N, np.int32) for _ in range(3)]
            for x in taken:
                x.data.copy_from_device_async(ones.data, x.nbytes, cupy_stream)
            if early:
                cupy_stream.synchronize()
        return set(cupy.concatenate(taken).get().tolist()), again


@every_pair
def test_a_block_of_pycuda_allocator_is_not_reused_early(cupy_stream, pycuda_stream, latch, put):
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    for _ in range(2):  # the first time looks at the context
        assert reuse_of_cupys_pool(
            allocate, pool, cupy_stream, pycuda_stream, latch, put, bridge.as_pycuda
        ) == ({1}, True)


@every_pair
def test_a_plain_allocator_lets_the_block_go_too_early(
    cupy_kind, pycuda_kind, cupy_stream, pycuda_stream, latch, put
):
    pool = cupy.cuda.MemoryPool()
    early = (cupy_kind, pycuda_kind) in UNORDERED
    plain = lambda n: Plain(pool.malloc(n))  # noqa: E731
    read, _ = reuse_of_cupys_pool(plain, pool, cupy_stream, pycuda_stream, latch, put, early=early)
    assert read == ({1, 7} if early else {1})


# ---- where and when it is let go -----------------------------------------------------------------


LET_GO = """
    import gc
    from pycuda.tools import DeviceMemoryPool
    from sampling import on_a_thread
    from bridge.interop import exporting

    exporting.export_in_order()
    gc.freeze()  # the modules, which need not be looked through each time

    def under_a_stream(a, stream):
        with cupy.cuda.Stream(non_blocking=True):
            return bridge.as_cupy(a)

    VIEWS = [
        lambda a, s: bridge.as_cupy(a),
        lambda a, s: bridge.as_cupy(a[2:]),
        lambda a, s: bridge.as_pycuda(a, stream=s),
        lambda a, s: bridge.as_pycuda(a[2:], stream=s)[2:],
        lambda a, s: bridge.as_cupy(a, stream=s),
        lambda a, s: bridge.as_cupy(
            bridge.as_pycuda(bridge.as_cupy(a)[1:], stream=s)[1:], stream=s),
        lambda a, s: [a, bridge.as_cupy(a)],  # the array goes last
        lambda a, s: [a, bridge.as_cupy(a[2:].reshape(-1, 2).T[1:])],
        lambda a, s: [a, bridge.as_pycuda(a, stream=s)],
        under_a_stream,
        lambda a, s: cupy.asarray(a),  # `GPUArray`'s export
    ]

    N = 1 << 20
    def sources(pool):
        yield lambda: gpuarray.GPUArray(N, np.uint8)
        yield lambda: gpuarray.GPUArray(N, np.uint8, allocator=pool.allocate)
        yield lambda: gpuarray.GPUArray(N, np.uint8, allocator=bridge.pycuda_allocator())
        yield lambda: cupy.empty(N, np.uint8)

    def free_bytes():
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.runtime.memGetInfo()[0]

    def every_case(let_go):
        with bridge.primary_context():
            pool, stream = DeviceMemoryPool(), drv.Stream(1)
            for view in VIEWS:  # the driver keeps what the first streams took
                view(gpuarray.GPUArray(N, np.uint8), stream)
            before = free_bytes()
        cases = 0
        for source in sources(pool):
            for view in VIEWS:
                views = []
                with bridge.primary_context():
                    a = source()
                    if isinstance(a, cupy.ndarray):
                        a = bridge.as_pycuda(a)
                    views.append(view(a, stream))
                    del a
                    gc.collect()
                let_go(views)
                assert not views
                assert pool.active_bytes == 0, (cases, pool.active_bytes)
                assert cupy.get_default_memory_pool().used_bytes() == 0
                with bridge.primary_context():
                    pool.free_held()
                    assert free_bytes() == before, (cases, before - free_bytes())
                cases += 1
        print(cases, "cases")
        with bridge.primary_context():
            del stream
"""


@pytest.mark.parametrize(
    "let_go",
    [
        "every_case(list.clear)",
        "every_case(lambda views: on_a_thread(views.clear))",
        """
    def in_an_exception(views):
        def fail():
            held = views.pop()
            raise ValueError
        try:
            fail()
        except ValueError:
            pass
    every_case(in_an_exception)
    every_case(lambda views: on_a_thread(lambda: in_an_exception(views)))
        """,
        """
    def under_another_context(views):
        other = drv.Device(0).make_context()
        views.clear()
        other.pop()
        other.detach()
    drv.init()
    other = drv.Device(0).make_context()  # its own bytes, once
    other.pop()
    every_case(lambda views: on_a_thread(lambda: under_another_context(views)))
    other.detach()
        """,
        """
    class Cycle:
        def __init__(self, view):
            self.view, self.itself = view, self
    def in_a_cycle(views):
        Cycle(views.pop())
        gc.collect()
    gc.disable()
    every_case(in_a_cycle)
    every_case(lambda views: on_a_thread(lambda: in_a_cycle(views)))
        """,
    ],
    ids=[
        "after the context manager",
        "on a thread without a context",
        "during an exception",
        "under another context",
        "in a reference cycle",
    ],
)
def test_pycudas_memory_is_let_go_anywhere(let_go, run):
    out = run(LET_GO + "\n    " + let_go.strip() + "\n", start="")
    assert set(out.splitlines()) == {"44 cases"}


def test_memory_that_is_not_its_arrays_own_is_let_go_anywhere(run):
    run("""
        from sampling import on_a_thread

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
    """)


def test_pycudas_stream_is_let_go_where_pycuda_can(run):
    """Where the lease of a view ends that was its last user, and not with a frame of that."""
    run("""
        import warnings
        from sampling import every_call, on_a_thread, sampled

        warnings.simplefilter("always")  # an error cannot leave a finalizer
        for start in (lambda action: action()), on_a_thread:
            for which, calls in every_call():
                held = [bridge.as_pycuda(cupy.zeros(9), stream=drv.Stream(1))]
                start(lambda: calls.append(sampled(held.clear, which)))
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
STARTED = {
    "bridge.autoinit": "import bridge.autoinit\nalive()",
    "a primary_context": "with bridge.primary_context():\n    alive()",
}


@pytest.mark.parametrize("names", ["", REVERSED], ids=["in order", "reversed"])
@pytest.mark.parametrize("started", STARTED.values(), ids=STARTED)
def test_views_alive_at_exit(started, names, python):
    done = python(f"{names}{USUAL}{AT_EXIT}\n{started}")
    assert (done.returncode, done.stderr) == (0, "")


def test_views_alive_at_exit_of_a_context_that_another_thread_made(run):
    """There the main thread cannot free; plain arrays of PyCUDA's make PyCUDA warn."""
    script = """
from sampling import on_a_thread
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


def test_a_stream_of_another_context_is_on_that_contexts_device(run):
    script = """
        from bridge.interop.streams import device_of_stream

        other = drv.Device(1).make_context()
        stream = drv.Stream()
        drv.Context.pop()
        current = cupy.cuda.driver.ctxGetCurrent()
        assert device_of_stream(stream.handle) == (0, 1)
        assert cupy.cuda.driver.ctxGetCurrent() == current
        here = drv.Stream()
        assert device_of_stream(here.handle) == (0, 0)
        assert device_of_stream(0) == (0, -1)
        other.push()
        del stream
        drv.Context.pop()
        other.detach()
    """
    run(script, devices=2)


def under_another_context(views, context):
    context.push()
    views.clear()
    context.pop()


@pytest.fixture(params=["on another thread", "under another context"])
def drop(request, second_context):
    """Clear a list of views in a place where the primary context may not be current."""
    if request.param == "on another thread":
        return lambda views: on_a_thread(views.clear)
    return lambda views: under_another_context(views, second_context)


@pytest.mark.parametrize("pycuda_kind", ["Stream()", "Stream(1)"])
@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_the_release_is_ordered_wherever_it_happens(cupy_stream, pycuda_stream, drop, latch, put):
    assert reuse_cupys_block(as_pycuda, cupy_stream, pycuda_stream, latch, put, drop=drop) == {1}


@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_pycudas_block_is_ordered_wherever_it_is_released(cupy_stream, drop, latch, put):
    pycuda_stream, pool = drv.Stream(1), DeviceMemoryPool()
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    a = gpuarray.GPUArray((N,), np.int32, allocator=pool.allocate)
    pointer = int(a.gpudata)
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = bridge.as_cupy(a, stream=pycuda_stream)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        views = [x, a]
        del x, a
        drop(views)
        block = pool.allocate(4 * N)
        assert int(block) == pointer, "the pool did not hand out the same block"
        put(pointer, N, 1, pycuda_stream)
    assert (drv.from_device(pointer, N, np.int32) == 1).all()


@pytest.mark.parametrize("kept", [True, False], ids=["stream kept", "stream in the cycle"])
def test_the_release_in_a_reference_cycle_is_ordered(kept, latch, put):
    """Also if the collector runs the finalizer of CuPy's stream first."""
    gc.collect()
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    keep = [current] if kept else []
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(stream):
            with current:
                a = bridge.as_pycuda(x, stream=stream)
            put(a.gpudata, N, 7, stream)
            a.itself, a.stream = a, current
            del a, x, current
            gc.collect()
            assert len(keep) == kept
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()


class Recycled:
    """A garbage cycle whose finalizer saves what is in it."""

    saved: list

    def __init__(self, array):
        self.array, self.itself = array, self

    def __del__(self):
        self.saved.append(self.array)


@pytest.fixture(params=["here", "on another thread"])
def recycle(request, monkeypatch):
    """Let the garbage collector find an array, and a finalizer save it; return it."""

    def recycle(arrays):
        monkeypatch.setattr(Recycled, "saved", [], raising=False)
        Recycled(arrays.pop())
        if request.param == "here":
            gc.collect()
        else:
            on_a_thread(gc.collect)
        return Recycled.saved.pop()

    gc.collect()
    return recycle


@pytest.mark.parametrize("part", [lambda a: a, lambda a: a[1:]], ids=["whole", "slice"])
def test_memory_of_what_another_finalizer_saves_is_kept_and_let_go_later(part, recycle):
    pool = DeviceMemoryPool()
    array = recycle([bridge.as_cupy(part(gpuarray.GPUArray(N, "i4", allocator=pool.allocate)))])
    assert pool.active_blocks == 1
    arrays = [array]
    del array
    on_a_thread(arrays.clear)  # PyCUDA would warn, or abort
    assert pool.active_blocks == 0


def test_the_release_of_what_another_finalizer_saved_is_ordered(recycle, latch, put):
    null, stream = cupy.cuda.Stream.null, drv.Stream(1)
    saved = lambda x, stream: recycle([as_pycuda(x, stream)])  # noqa: E731
    assert reuse_cupys_block(saved, null, stream, latch, put) == {1}


@pytest.mark.parametrize("collect", [gc.collect, lambda: on_a_thread(gc.collect)], ids=range(2))
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
    second_context.push()
    calls = [sampled(held.clear, 1) for held in (*views, [Keeper()])]
    second_context.pop()
    assert calls == [0, 0, 0, 1]

"""A block goes back to its pool only after the other library's last queued use.

`test_order` has every pair of streams; here are the places where views end, and the controls.
"""

from __future__ import annotations

import gc
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from sampling import on_a_thread, sampled
from test_streams import CUPY_STREAMS, PYCUDA_STREAMS, UNORDERED, every_pair

import bridge

pytestmark = pytest.mark.alone
N = 1000


def reuse_cupys_block(
    convert, cupy_stream, pycuda_stream, latch, put, before_release=None, drop=list.clear
):
    """Write 7 behind a latch into a view of CuPy's block, drop it, let CuPy reuse the block."""
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy.cuda.using_allocator(pool.malloc), cupy_stream:
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(pycuda_stream):
            a = convert(x, pycuda_stream)
            put(a.gpudata, N, 7, pycuda_stream)
            views = [a, x]
            del a, x
            drop(views)
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer, "the pool did not hand out the same block"
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy_stream)
            if before_release:
                before_release()
        return set(y.get().tolist())


@every_pair
def test_the_plain_constructor_lets_the_block_go_too_early(cupy_kind, pycuda_kind, latch, put):
    cupy_stream = CUPY_STREAMS[cupy_kind]()
    early = (cupy_kind, pycuda_kind) in UNORDERED
    read = reuse_cupys_block(
        lambda x, _: gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x),
        cupy_stream,
        PYCUDA_STREAMS[pycuda_kind](),
        latch,
        put,
        cupy_stream.synchronize if early else None,
    )
    assert read == ({7} if early else {1})


def test_a_block_of_the_default_stream_used_on_another_is_not_reused_early(latch, put):
    """Allocated on the null stream, handed to PyCUDA under a stream of the user's."""
    stream = drv.Stream(1)
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(stream):
            with bridge.as_cupy_stream(stream):
                a = bridge.as_pycuda(x, stream=stream)
                put(a.gpudata, N, 7, stream)
                del a, x
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()


@pytest.mark.parametrize("kind", CUPY_STREAMS)
def test_work_on_the_per_thread_stream_is_waited_for(kind, latch):
    stream, per_thread = CUPY_STREAMS[kind](), cupy.cuda.Stream.ptds
    pool = cupy.cuda.MemoryPool()
    ones, sevens = (cupy.asarray(np.full(N, value, np.int32)) for value in (1, 7))
    with cupy.cuda.using_allocator(pool.malloc), stream:
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(per_thread):
            a = bridge.as_pycuda(x, stream=per_thread)
            bridge.as_cupy(a, stream=-1).data.copy_from_device_async(
                sevens.data, sevens.nbytes, per_thread
            )
            del a, x
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, stream)
        assert (y.get() == 1).all()


def reuse_pycudas_block(convert, cupy_stream, latch, put, before_release=None, allocate=None):
    """Write 7 with CuPy into a view of PyCUDA's block, drop it, let PyCUDA reuse the block."""
    allocate = allocate or DeviceMemoryPool().allocate
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    a = gpuarray.GPUArray((N,), np.int32, allocator=allocate)
    pointer = int(a.gpudata)
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = convert(a)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        del a, x
        b = gpuarray.GPUArray((N,), np.int32, allocator=allocate)
        assert int(b.gpudata) == pointer, "the pool did not hand out the same block"
        put(b.gpudata, N, 1)
        if before_release:
            before_release()
    return set(b.get().tolist())


def test_cupy_asarray_lets_pycudas_block_go_too_early(latch, put, pycudas_export):
    cupy_stream = CUPY_STREAMS["non-blocking"]()
    null = cupy.cuda.Stream.null
    assert reuse_pycudas_block(cupy.asarray, cupy_stream, latch, put, null.synchronize) == {7}


VIEWS_FOR_PYCUDA = {
    "a slice of a view": lambda x, s: bridge.as_pycuda(x, stream=s)[:],
    "a view of a slice": lambda x, s: bridge.as_pycuda(x[:], stream=s),
    "a view of a reshaped view": lambda x, s: bridge.as_pycuda(
        bridge.as_cupy(bridge.as_pycuda(x, stream=s)[:], stream=s).reshape(10, -1), stream=s
    ),
    "a slice of a transposed view": lambda x, s: bridge.as_pycuda(x, stream=s).reshape(10, -1).T[:],
}


@pytest.mark.parametrize("convert", VIEWS_FOR_PYCUDA.values(), ids=VIEWS_FOR_PYCUDA)
def test_views_of_views_hold_cupys_block(convert, latch, put):
    current, stream = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    assert reuse_cupys_block(convert, current, stream, latch, put) == {1}


VIEWS_FOR_CUPY = {
    "a slice of a view": lambda a: bridge.as_cupy(a)[:],
    "a view of a slice": lambda a: bridge.as_cupy(a[:]),
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


class Plain(drv.PointerHolderBase):
    """The allocator that one would write by hand: PyCUDA's interface over CuPy's pool."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.gpudata = memory, memory.ptr

    def get_pointer(self):
        return self.memory.ptr

    def __int__(self):
        return self.memory.ptr


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
def test_a_block_of_pycuda_allocator_is_not_reused_early(cupy_kind, pycuda_kind, latch, put):
    pool, stream = cupy.cuda.MemoryPool(), PYCUDA_STREAMS[pycuda_kind]()
    allocate = bridge.pycuda_allocator(pool)
    for _ in range(2):  # the first time looks at the context
        assert reuse_of_cupys_pool(
            allocate, pool, CUPY_STREAMS[cupy_kind](), stream, latch, put, bridge.as_pycuda
        ) == ({1}, True)


@every_pair
def test_a_plain_allocator_lets_the_block_go_too_early(cupy_kind, pycuda_kind, latch, put):
    pool, stream = cupy.cuda.MemoryPool(), PYCUDA_STREAMS[pycuda_kind]()
    early = (cupy_kind, pycuda_kind) in UNORDERED
    read, _ = reuse_of_cupys_pool(
        lambda n: Plain(pool.malloc(n)),
        pool,
        CUPY_STREAMS[cupy_kind](),
        stream,
        latch,
        put,
        early=early,
    )
    assert read == ({1, 7} if early else {1})


def test_pycuda_allocator_leaves_cupys_stream_as_it_is():
    allocate = bridge.pycuda_allocator()
    one, other = cupy.cuda.Stream(), cupy.cuda.Stream()
    with one:
        allocate(4)
        assert cupy.cuda.get_current_stream() is one
        other.use()
        allocate(4)
        assert cupy.cuda.get_current_stream() is other
        with pytest.raises(ValueError, match="size is -4"):
            allocate(-4)
        assert cupy.cuda.get_current_stream() is other


# ---- where and when it is let go -----------------------------------------------------------------


LET_GO = """
    import gc, numpy as np, cupy, pycuda.driver as drv, bridge
    from pycuda import gpuarray
    from pycuda.tools import DeviceMemoryPool
    from sampling import every_call, on_a_thread, sampled

    gc.freeze()  # the modules, which need not be looked through each time

    def under_a_stream(a, stream):
        with cupy.cuda.Stream(non_blocking=True):
            return bridge.as_cupy(a)

    VIEWS = [
        lambda a, s: bridge.as_cupy(a),
        lambda a, s: bridge.as_cupy(a)[::2],
        lambda a, s: bridge.as_cupy(a[2:]),
        lambda a, s: bridge.as_pycuda(a, stream=s),
        lambda a, s: bridge.as_pycuda(a[2:], stream=s)[2:],
        lambda a, s: bridge.as_cupy(a, stream=s),
        lambda a, s: bridge.as_cupy(
            bridge.as_pycuda(bridge.as_cupy(a)[1:], stream=s)[1:], stream=s),
        lambda a, s: bridge.wrap_pycuda(lambda b: b)(a),
        lambda a, s: [a, bridge.as_cupy(a)],  # the array goes last
        lambda a, s: [a, bridge.as_cupy(a[2:])],
        lambda a, s: [a, bridge.as_cupy(a[2:].reshape(-1, 2).T[1:])],
        lambda a, s: [a, bridge.as_cupy(a.T)],
        lambda a, s: [a, bridge.as_pycuda(a, stream=s)],
        under_a_stream,
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
        "every_case(lambda v: on_a_thread(lambda: (cupy.cuda.Device(0).use(), v.clear())))",
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
        """
    for start in (lambda action: action()), on_a_thread:
        for which, calls in every_call():
            every_case(lambda views: start(lambda: calls.append(sampled(views.clear, which))))
        """,
    ],
    ids=[
        "after the context manager",
        "on a thread without a context",
        "on a thread of CuPy's",
        "during an exception",
        "under another context",
        "in a reference cycle",
        "while a profiler holds a frame",
    ],
)
def test_pycudas_memory_is_let_go_anywhere(let_go, python):
    done = python(LET_GO + "\n    " + let_go.strip() + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) == {"56 cases"}


WAYS = {
    "bridge.as_cupy(a)": "freed",
    "bridge.as_pycuda(a, stream=stream)": "freed",
    "cupy.asarray(a)": "freed",
    "cupy.ndarray(a.shape, a.dtype, "
    "MemoryPointer(UnownedMemory(int(a.gpudata), a.nbytes, a), 0))": "lost",
    "gpuarray.GPUArray(a.shape, a.dtype, gpudata=int(a.gpudata), base=a)": "lost",
}


def test_only_views_of_the_bridge_are_let_go_anywhere(python):
    """The others are the control: PyCUDA warns and loses the memory."""
    done = python(
        f"""
        import warnings, cupy, numpy as np, pycuda.driver as drv, bridge, bridge.autoinit
        from cupy.cuda import MemoryPointer, UnownedMemory
        from pycuda import gpuarray
        from sampling import on_a_thread

        warnings.simplefilter("ignore")  # PyCUDA's: an error cannot leave a finalizer
        stream = drv.Stream(1)
        for way in {list(WAYS)}:
            a = gpuarray.GPUArray(1 << 22, np.uint8)
            after = cupy.cuda.runtime.memGetInfo()[0] + (1 << 22)
            held = [eval(way)]
            del a
            on_a_thread(held.clear)
            print("freed" if cupy.cuda.runtime.memGetInfo()[0] == after else "lost")
        """
    )
    assert done.returncode == 0
    assert done.stdout.split() == list(WAYS.values())


def test_memory_that_is_not_its_arrays_own_is_let_go_anywhere(python):
    done = python("""
        import numpy as np, pycuda.driver as drv, bridge, bridge.autoinit
        from pycuda import gpuarray
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
    assert (done.returncode, done.stderr) == (0, "")


def test_pycudas_stream_is_let_go_where_pycuda_can(python):
    """Where the lease of a view ends that was its last user, and not with a frame of that."""
    done = python("""
        import warnings, cupy, pycuda.driver as drv, bridge, bridge.autoinit
        from sampling import every_call, on_a_thread, sampled

        warnings.simplefilter("always")  # an error cannot leave a finalizer
        for start in (lambda action: action()), on_a_thread:
            for which, calls in every_call():
                held = [bridge.as_pycuda(cupy.zeros(9), stream=drv.Stream(1))]
                start(lambda: calls.append(sampled(held.clear, which)))
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("pooled", [False, True])
def test_pycuda_itself_cannot_let_go_anywhere(pooled, python):
    """The control: what PyCUDA does without the bridge."""
    done = python(f"""
        import warnings, numpy as np, bridge, bridge.autoinit
        from pycuda import gpuarray
        from pycuda.tools import DeviceMemoryPool
        from sampling import on_a_thread

        warnings.simplefilter("always")
        pool = DeviceMemoryPool()
        keywords = dict(allocator=pool.allocate) if {pooled} else {{}}
        arrays = [gpuarray.GPUArray(100, np.uint8, **keywords)]
        on_a_thread(arrays.clear)
    """)
    if pooled:
        assert done.returncode < 0
        assert "no currently active context" in done.stderr
    else:
        assert "out-of-thread context could not be cleaned up" in done.stderr


AT_EXIT = """
import sys, numpy as np, cupy, pycuda.driver as drv, bridge
from pycuda import gpuarray
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


@pytest.mark.parametrize("end", ["", "sys.exit(0)"], ids=["the end", "an exit"])
@pytest.mark.parametrize("names", ["", REVERSED], ids=["in order", "reversed"])
@pytest.mark.parametrize("started", STARTED.values(), ids=STARTED)
def test_views_alive_at_exit(started, names, end, python):
    done = python(f"{names}{AT_EXIT}    {end}\n{started}")
    assert (done.returncode, done.stderr) == (0, "")


def test_views_alive_at_exit_of_a_context_that_another_thread_made(python):
    """There the main thread cannot free; plain arrays of PyCUDA's make PyCUDA warn."""
    done = python(
        f"""{AT_EXIT}
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
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_lets_go_of_nothing(python):
    """Nor may it: CUDA does not survive."""
    done = python("""
        import os, numpy as np, cupy, pycuda.driver as drv, bridge
        from pycuda import gpuarray
        from sampling import on_a_thread

        def work():
            with bridge.primary_context():
                a = gpuarray.GPUArray(9, np.uint8)
                stream = drv.Stream(1)
                views.extend([bridge.as_cupy(a), bridge.as_cupy(a, stream=stream),
                              bridge.as_pycuda(cupy.zeros(9), stream=stream)])

        views = []
        on_a_thread(work)
        child = os.fork()
        if child == 0:
            views.clear()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        views.clear()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_letting_go_leaves_the_current_device_as_it_is(python):
    done = python(
        """
        import cupy, numpy as np, pycuda.driver as drv, bridge, bridge.autoinit
        from pycuda import gpuarray

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
        """,
        devices=2,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_that_changes_hands_is_kept_by_the_views_on_it():
    pool = DeviceMemoryPool()
    a, b = (gpuarray.GPUArray(size, np.uint8, allocator=pool.allocate) for size in (100, 300))
    views = [bridge.as_cupy(a), bridge.as_cupy(b)]
    a.gpudata, b.gpudata = b.gpudata, a.gpudata
    view = bridge.as_cupy(a)
    views.clear()
    del a, b
    assert pool.active_bytes == 300
    del view
    assert pool.active_bytes == 0


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


def test_work_on_a_view_is_seen_by_cupy_once_the_view_is_gone(latch, put):
    stream = drv.Stream(1)
    x = cupy.zeros(N, np.int32)
    copied = cupy.zeros(N, np.int32)
    reader = cupy.cuda.Stream(non_blocking=True)
    with latch.hold(stream), reader:
        a = bridge.as_pycuda(x, stream=stream)
        put(a.gpudata, N, 7, stream)
        del a
        copied.data.copy_from_device_async(x.data, x.nbytes, reader)
    assert (copied.get() == 7).all()


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
        cupy.asarray,
        lambda a: bridge.as_cupy(a.gpudata, shape=9, dtype="f4"),
    ):
        with pytest.raises(bridge.ContextError, match="allocated in another context"):
            convert(a)
    second_context.push()
    del a
    second_context.pop()


def test_a_stream_of_another_context_is_on_that_contexts_device(python):
    done = python(
        """
        import cupy, pycuda.driver as drv, bridge, bridge.autoinit
        from bridge import handles

        other = drv.Device(1).make_context()
        stream = drv.Stream()
        drv.Context.pop()
        current = cupy.cuda.driver.ctxGetCurrent()
        assert handles.device_of_stream(stream.handle) == (0, 1)
        assert cupy.cuda.driver.ctxGetCurrent() == current
        here = drv.Stream()
        assert handles.device_of_stream(here.handle) == (0, 0)
        assert handles.device_of_stream(0) == (0, -1)
        other.push()
        del stream
        drv.Context.pop()
        other.detach()
        """,
        devices=2,
    )
    assert (done.returncode, done.stderr) == (0, "")


def under_another_context(views, context):
    context.push()
    views.clear()
    context.pop()


def during_an_exception(views, _):
    def fail(*_):
        raise ValueError

    try:
        fail(*views)
    except ValueError:
        views.clear()


DROPS = {
    "on another thread": lambda views, _: on_a_thread(views.clear),
    "under another context": under_another_context,
    "during an exception": during_an_exception,
}


@pytest.fixture(params=DROPS)
def drop(request, second_context):
    """Clear a list of views in a place where the primary context may not be current."""
    return lambda views: DROPS[request.param](views, second_context)


@pytest.mark.parametrize("pycuda_kind", ["Stream()", "Stream(1)"])
@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_the_release_is_ordered_wherever_it_happens(cupy_kind, pycuda_kind, drop, latch, put):
    read = reuse_cupys_block(
        lambda x, stream: bridge.as_pycuda(x, stream=stream),
        CUPY_STREAMS[cupy_kind](),
        PYCUDA_STREAMS[pycuda_kind](),
        latch,
        put,
        drop=drop,
    )
    assert read == {1}


@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_pycudas_block_is_ordered_wherever_it_is_released(cupy_kind, drop, latch, put):
    cupy_stream, pycuda_stream = CUPY_STREAMS[cupy_kind](), drv.Stream()
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    block = drv.mem_alloc(4 * N)
    a = gpuarray.GPUArray((N,), np.int32, gpudata=int(block))
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = bridge.as_cupy(a, stream=pycuda_stream)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        views = [x]
        del x
        drop(views)
        put(block, N, 1, pycuda_stream)  # as the block's next user would
    assert (a.get() == 1).all()


@pytest.mark.parametrize("stream", [None, -1], ids=["ordered", "unordered"])
def test_an_unordered_view_keeps_no_streams(stream):
    with cupy.cuda.Stream(non_blocking=True):
        views = bridge.as_pycuda(cupy.zeros(3), stream=stream).base
        views_of_cupy = bridge.as_cupy(gpuarray.GPUArray(3, float), stream=stream).data.mem._owner
    for view in (views, views_of_cupy):
        assert ((view.owner, view.user) == (-1, -1)) == (stream == -1)


@pytest.mark.parametrize("kept", [True, False], ids=["stream kept", "stream in the cycle"])
def test_the_release_in_a_reference_cycle_is_ordered(kept, latch, put):
    """The collector may run the finalizer of the CuPy stream before that of the view."""
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
            a.itself = a
            del a, x, current
            gc.collect()
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()
    assert len(keep) == kept


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


SAVED = {
    "as_cupy": lambda pool: bridge.as_cupy(gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)),
    "as_cupy of a slice": lambda pool: bridge.as_cupy(
        gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)[1:]
    ),
}


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_memory_of_what_another_finalizer_saves_is_kept_and_let_go_later(make, recycle):
    pool = DeviceMemoryPool()
    array = recycle([make(pool)])
    assert pool.active_blocks == 1
    arrays = [array]
    del array
    on_a_thread(arrays.clear)  # PyCUDA would warn, or abort
    assert pool.active_blocks == 0


def test_the_release_of_what_another_finalizer_saved_is_ordered(recycle, latch, put):
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    stream = drv.Stream(1)
    with cupy.cuda.using_allocator(pool.malloc):
        a = recycle([bridge.as_pycuda(cupy.empty(N, np.int32), stream=stream)])
        assert pool.used_bytes() > 0
        pointer = int(a.gpudata)
        with latch.hold(stream):
            put(pointer, N, 7, stream)
            del a
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()


def test_a_stream_named_later_orders_the_release_too(latch, put):
    read = reuse_cupys_block(
        lambda x, stream: bridge.as_pycuda(bridge.as_pycuda(x), stream=stream),
        cupy.cuda.Stream.null,
        drv.Stream(1),
        latch,
        put,
    )
    assert read == {1}


@pytest.mark.parametrize("told", ["by nobody", "by another view"])
def test_a_slice_of_another_streams_view_orders_the_release_too(told, latch, put):
    """The slice alone would order, at its end, the stream that the first view was made under."""
    cupy_stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def convert(x, _):
        with other:
            whole = bridge.as_pycuda(x, stream=-1 if told == "by nobody" else None)[:]
        return bridge.as_pycuda(bridge.as_cupy(whole, stream=-1))

    assert reuse_cupys_block(convert, cupy_stream, None, latch, put) == {1}


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

    views = [[bridge.as_pycuda(cupy.zeros(N), stream=drv.Stream(1))] for _ in range(2)]
    second_context.push()
    calls = [sampled(held.clear, 1) for held in (*views, [Keeper()])]
    second_context.pop()
    assert calls == [0, 0, 1]


def test_release_in_a_reference_cycle():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        a = bridge.as_pycuda(cupy.zeros(N, np.int32), stream=drv.Stream(1))
        a.itself = a
        del a
        assert pool.used_bytes() > 0
        gc.collect()
        assert pool.used_bytes() == 0

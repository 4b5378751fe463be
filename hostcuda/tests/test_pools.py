"""Memory in stream order: `mallocAsync`, `freeAsync`, and CUDA's pools, as CuPy uses them."""

import re

import cupy
import pytest
from cupy.cuda import runtime

USED, MOST_USED = runtime.cudaMemPoolAttrUsedMemCurrent, runtime.cudaMemPoolAttrUsedMemHigh
RESERVED = runtime.cudaMemPoolAttrReservedMemCurrent
THRESHOLD = runtime.cudaMemPoolAttrReleaseThreshold
CHUNK = 32 << 20


@pytest.fixture
def stream():
    return cupy.cuda.Stream(non_blocking=True)


@pytest.fixture
def pool():
    pool = runtime.memPoolCreate(runtime.MemPoolProps(1, 0, 1, 0))  # pinned, on device 0
    yield pool
    runtime.deviceSynchronize()
    runtime.memPoolDestroy(pool)


def asked(pool, *attributes):
    return [runtime.memPoolGetAttribute(pool, attribute) for attribute in attributes]


@pytest.mark.filterwarnings("ignore:cupy.cuda.MemoryAsyncPool is experimental")  # in CuPy 13
def test_arrays_of_a_memory_async_pool():
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.arange(1000, dtype=cupy.int32)
        assert (x * 2).sum() == 999_000
        assert pool.used_bytes() == 4096
        del x
    pool.free_all_blocks()
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 0)


def test_a_pool_counts_what_calls_have_freed_and_reserves_until_the_frees_have_run(pool, stream):
    p = runtime.mallocFromPoolAsync(1000, pool, stream.ptr)
    q = runtime.mallocFromPoolAsync(40 << 20, pool, stream.ptr)
    used = 1000 + (40 << 20)
    assert asked(pool, USED, RESERVED) == [used, 2 * CHUNK]
    runtime.freeAsync(q, stream.ptr)
    assert asked(pool, USED, RESERVED, MOST_USED) == [1000, 2 * CHUNK, used]
    stream.synchronize()
    assert asked(pool, USED, RESERVED) == [1000, CHUNK]
    runtime.freeAsync(p, stream.ptr)


def test_a_pool_keeps_what_the_threshold_says_until_it_is_trimmed(pool, stream):
    runtime.memPoolSetAttribute(pool, THRESHOLD, 1e6)
    assert asked(pool, THRESHOLD) == [1_000_000]
    runtime.memPoolSetAttribute(pool, THRESHOLD, 2**64 - 1)
    runtime.freeAsync(runtime.mallocFromPoolAsync(1000, pool, stream.ptr), stream.ptr)
    stream.synchronize()
    assert asked(pool, THRESHOLD, RESERVED) == [2**64 - 1, CHUNK]
    runtime.memPoolTrimTo(pool, 0)
    assert asked(pool, RESERVED) == [0]


def test_a_highest_count_begins_again(pool, stream):
    runtime.freeAsync(runtime.mallocFromPoolAsync(1000, pool, stream.ptr), stream.ptr)
    runtime.memPoolSetAttribute(pool, MOST_USED, 0)
    assert asked(pool, MOST_USED) == [0]


def test_the_pool_of_a_device_can_be_another(pool, stream):
    default = runtime.deviceGetDefaultMemPool(0)
    assert runtime.deviceGetMemPool(0) == default
    runtime.deviceSetMemPool(0, pool)
    try:
        runtime.freeAsync(runtime.mallocAsync(8, stream.ptr), stream.ptr)
        assert asked(pool, MOST_USED) == [8]
    finally:
        runtime.deviceSetMemPool(0, default)


def test_a_stream_uses_again_what_it_has_freed(stream):
    for _ in range(4):
        p = runtime.mallocAsync(700 << 20, stream.ptr)
        with pytest.raises(runtime.CUDARuntimeError, match="MemoryAllocation"):
            runtime.malloc(700 << 20)
        runtime.freeAsync(p, stream.ptr)
    stream.synchronize()


def test_nothing_is_allocated_for_no_bytes(stream):
    assert runtime.mallocAsync(0, stream.ptr) == 0


def test_a_second_free_is_refused(stream):
    p = runtime.mallocAsync(8, stream.ptr)
    runtime.freeAsync(p, stream.ptr)
    for free in (lambda: runtime.freeAsync(p, stream.ptr), lambda: runtime.free(p)):
        with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
            free()
    stream.synchronize()


@pytest.mark.parametrize(
    "call",
    [lambda s: runtime.mallocAsync(8, s.ptr), lambda s: runtime.freeAsync(0, s.ptr)],
    ids=["an allocation", "a free"],
)
def test_a_capture_refuses_allocations_and_frees(call, stream):
    with stream:
        stream.begin_capture()
        with pytest.raises(runtime.CUDARuntimeError, match="NotSupported"):
            call(stream)
        stream.end_capture()


@pytest.mark.parametrize(
    ("pool", "error"),
    [
        (lambda: runtime.MemPoolProps(0, 0, 1, 0), "InvalidValue"),
        (lambda: runtime.MemPoolProps(1, 0, 1, 9), "InvalidValue"),
        (lambda: runtime.MemPoolProps(1, 1, 1, 0), "NotSupported"),
    ],
    ids=["kind", "device", "for other processes"],
)
def test_pools_that_cannot_be(pool, error):
    with pytest.raises(runtime.CUDARuntimeError, match=error):
        runtime.memPoolCreate(pool())


def test_the_default_pool_cannot_be_destroyed():
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memPoolDestroy(runtime.deviceGetDefaultMemPool(0))


START = """
import cupy
from cupy.cuda import runtime
def on(pointer):
    memory = cupy.cuda.UnownedMemory(pointer, 32, None, 0)
    return cupy.ndarray((8,), cupy.int32, cupy.cuda.MemoryPointer(memory, 0))
s, t = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
p = runtime.mallocAsync(32, s.ptr)
x, done = on(p), cupy.cuda.Event()
"""
# The use on stream t waits for the allocation; and the free on stream s, for the use.
USE = """
{fence}
with t:
    x.fill(8)
t.synchronize()
s.synchronize()
print(x.get())
"""
FREE = """
s.synchronize()
with t:
    x.fill(7)
    y = x + 1
{fence}
runtime.freeAsync(p, s.ptr)
s.synchronize()
print(y.get(stream=t))
"""


@pytest.fixture
def run(run_program):
    return lambda script, *options: run_program(START + script, *options)


@pytest.mark.parametrize(
    ("script", "fence", "work"),
    [
        (USE, "done.record(s); t.wait_event(done)", "an allocation of 32 bytes"),
        (FREE, "done.record(t); s.wait_event(done)", "a free of 32 bytes"),
    ],
    ids=["allocation", "free"],
)
def test_orders_show_a_use_that_is_not_ordered_with(script, fence, work, run):
    raced = run(script.format(fence=""), "--orders", "10")
    assert raced.returncode == 1, raced.stdout
    assert re.search(rf"a race: .*{work} of program.py:\d+ \(on stream \d+\)", raced.stderr)
    ordered = run(script.format(fence=fence), "--orders", "5")
    assert (ordered.returncode, ordered.stdout) == (0, "[8 8 8 8 8 8 8 8]\n"), ordered.stderr


def test_a_check_finds_a_read_of_a_new_allocation(run):
    checked = run("with s: print((x + 1).get().size)", "--check")
    assert "which nothing has written yet" in checked.stderr

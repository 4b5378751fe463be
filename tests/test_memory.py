"""The allocators: one pool for both libraries, what runs out, and what is said of it."""

from __future__ import annotations

import contextlib
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from conftest import ON_GPU, second_context
from pycuda import cumath, gpuarray
from pycuda.elementwise import ElementwiseKernel
from pycuda.tools import DeviceMemoryPool
from test_streams import CUPY_STREAMS, PYCUDA_STREAMS

import bridge
from bridge import memory
from bridge.memory import Allocation, OutOfMemoryError

pytestmark = pytest.mark.alone
N = 1000
GIB = 1 << 30
POOLS = {
    "CuPy's current allocator": lambda: None,
    "a MemoryPool": cupy.cuda.MemoryPool,
    "a managed pool": lambda: cupy.cuda.MemoryPool(cupy.cuda.malloc_managed),
}
every_pool = pytest.mark.parametrize("make_pool", POOLS.values(), ids=POOLS)


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests():
    gc.collect()


def memory_of(array):
    """Return what an array's memory belongs to, whatever views are between."""
    while array.base is not None:
        array = array.base
    return array.gpudata


def used_by(pool):
    return (pool or cupy.get_default_memory_pool()).used_bytes()


# ---- PyCUDA out of CuPy's pool -------------------------------------------------------------------


def results(a, host):
    """Yield what PyCUDA makes out of an array, and what it should be."""
    yield a + 1, host + 1
    yield a[3:9], host[3:9]
    yield a.reshape(10, -1), host.reshape(10, -1)
    yield a[5:50].copy(), host[5:50]
    yield a.astype(np.float64), host.astype(np.float64)
    yield a.view(np.uint8), host.view(np.uint8)
    yield gpuarray.zeros_like(a), np.zeros_like(host)
    yield gpuarray.sum(a), host.sum()
    yield cumath.sqrt(a), np.sqrt(host)
    doubled = gpuarray.empty_like(a)
    ElementwiseKernel("float *y, float *x", "y[i] = 2 * x[i]", "twice")(doubled, a)
    yield doubled, 2 * host


@every_pool
def test_what_pycuda_computes_stays_in_the_pool(make_pool, nvcc):
    pool = make_pool()
    allocate = bridge.pycuda_allocator(pool)
    host = np.arange(100, dtype=np.float32)
    before = used_by(pool)
    a = gpuarray.to_gpu(host, allocator=allocate)
    for result, expected in results(a, host):
        assert isinstance(memory_of(result), Allocation)
        assert result.allocator is allocate
        np.testing.assert_allclose(result.get(), expected, rtol=1e-6)
    made = [
        gpuarray.zeros(N, np.int32, allocator=allocate),
        gpuarray.empty((3, 4), np.complex64, allocator=allocate, order="F"),
    ]
    assert all(type(array.gpudata) is Allocation for array in made)
    assert used_by(pool) - before >= 100 * 4 + N * 4
    del a, result, made
    assert used_by(pool) == before


if not ON_GPU:
    import hostcuda

    def test_the_driver_allocates_nothing_beside_the_pool(nvcc):
        pool = cupy.cuda.MemoryPool()
        host = np.arange(100, dtype=np.float32)
        with cupy.cuda.using_allocator(pool.malloc):
            cupy.empty(1 << 20, np.uint8)  # a block that the rest is split from
            a = gpuarray.to_gpu(host, allocator=bridge.pycuda_allocator())
            for _ in results(a, host):  # compiles, and PyCUDA's first reduction keeps memory
                pass
            blocks = {block.ptr for block in hostcuda.live_blocks()}
            for result, _ in results(a, host):
                assert {block.ptr for block in hostcuda.live_blocks()} <= blocks
                del result


def test_the_pool_is_the_one_at_the_call():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        allocate = bridge.pycuda_allocator()
    a = gpuarray.GPUArray(N, np.float32, allocator=allocate)
    assert pool.used_bytes() == 4096
    del a
    assert pool.used_bytes() == 0


def test_an_asynchronous_pool(gpu, nvcc):
    pool = cupy.cuda.MemoryAsyncPool()
    allocate = bridge.pycuda_allocator(pool)
    before = pool.used_bytes()
    a = gpuarray.to_gpu(np.arange(100, dtype=np.float32), allocator=allocate)
    b = a * 2 + 1
    assert type(b.gpudata) is Allocation
    np.testing.assert_array_equal(b.get(), np.arange(100) * 2 + 1)
    np.testing.assert_array_equal(bridge.as_cupy(b).get(), np.arange(100) * 2 + 1)
    assert pool.used_bytes() > before
    del a, b
    drv.Context.synchronize()
    assert pool.used_bytes() == before


def test_both_libraries_on_a_pool_of_rmm(gpu, package, python):
    package("rmm")
    done = python("""
        import numpy, cupy, rmm, bridge, bridge.autoinit
        from rmm.allocators.cupy import rmm_cupy_allocator
        from pycuda import gpuarray

        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(
            rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28))
        resource = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
        rmm.mr.set_current_device_resource(resource)
        cupy.cuda.set_allocator(rmm_cupy_allocator)

        a = gpuarray.to_gpu(numpy.arange(1000.0), allocator=bridge.pycuda_allocator())
        x = cupy.arange(1000.0)
        print(resource.allocation_counts.current_bytes)
        bridge.as_cupy(a)[:] += x
        assert (a.get() == 2 * numpy.arange(1000)).all()
        assert (bridge.as_pycuda(x).get() == numpy.arange(1000)).all()
        del a, x
        print(resource.allocation_counts.current_bytes)
        cupy.cuda.set_allocator()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["16000", "0"]


def test_an_allocation_serves_as_pycudas_own_do():
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    allocation = allocate(4 * N)
    host = np.arange(N, dtype=np.int32)
    drv.memcpy_htod(allocation, host)
    back = np.zeros_like(host)
    drv.memcpy_dtoh(back, allocation)
    np.testing.assert_array_equal(back, host)
    drv.memset_d32(allocation, 7, N)
    drv.memcpy_dtoh(back, allocation)
    assert (back == 7).all()
    part = np.frombuffer(allocation.as_buffer(16, 8), np.uint8)
    assert (part.ctypes.data, part.nbytes) == (int(allocation) + 8, 16)
    assert pool.used_bytes() > 0
    allocation.free()
    assert pool.used_bytes() == 0
    allocation.free()


def test_an_allocation_is_an_argument_of_kernels(compile_kernel, nvcc):
    source = 'extern "C" __global__ void three(int *p) { p[threadIdx.x] = 3; }'
    plain = compile_kernel(source, "three")
    allocate = bridge.pycuda_allocator()
    calls = [
        lambda gpudata: plain(gpudata, block=(4, 1, 1)),
        lambda gpudata: plain.prepare("P").prepared_call((1, 1), (4, 1, 1), gpudata),
        lambda gpudata: bridge.launch(plain, gpudata, grid=1, block=4),
    ]
    for call in calls:
        a = gpuarray.to_gpu(np.zeros(4, np.int32), allocator=allocate)
        call(a.gpudata)
        assert (a.get() == 3).all()


def test_an_allocation_of_no_bytes():
    assert bridge.pycuda_allocator(cupy.cuda.MemoryPool())(0) == 0
    a = gpuarray.GPUArray((0, 3), np.float32, allocator=bridge.pycuda_allocator())
    assert bridge.as_cupy(a).shape == (0, 3)


def test_an_allocator_of_the_users_is_not_bypassed():
    pool, calls = cupy.cuda.MemoryPool(), []

    def counting(size):
        calls.append(size)
        return pool.malloc(size)

    with cupy.cuda.using_allocator(counting):
        allocate = bridge.pycuda_allocator()
    for _ in range(3):
        allocate(100)
    assert calls == [100, 100, 100]


def test_an_error_of_the_users_allocator_comes_through():
    class MineError(RuntimeError):
        pass

    def refuse(size):
        raise MineError(size)

    with cupy.cuda.using_allocator(refuse):
        allocate = bridge.pycuda_allocator()
    with pytest.raises(MineError, match="100"):
        allocate(100)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(1 << 63), 1 << 63, (1 << 64) - 1, (1 << 64) - 80, 1 << 70])
def test_impossible_sizes(size):
    before = used_by(None)
    with pytest.raises(ValueError, match=rf"pycuda_allocator: size is {size}; 0 to 2\*\*63 - 1 by"):
        bridge.pycuda_allocator()(size)
    assert used_by(None) == before


def test_integers_of_numpy():
    pool = cupy.cuda.MemoryPool()
    block = bridge.pycuda_allocator(pool)(np.int64(100))
    assert pool.used_bytes() >= 100
    del block


ELSEWHERE = {
    "no context": (contextlib.nullcontext, "with bridge.primary_context"),
    "a second context": (second_context, "is not the primary"),
}


@pytest.mark.parametrize(("current", "said"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_where_the_libraries_share_no_context_the_error_says_what_to_do(current, said):
    allocate = bridge.pycuda_allocator()
    before = used_by(None)

    def work():
        with current(), pytest.raises(bridge.ContextError, match=said):
            allocate(4)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert used_by(None) == before


# ---- out of memory -------------------------------------------------------------------------------


@pytest.fixture
def large():
    """More than half of the device, in bytes, and nothing else of any pool's."""
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    yield int(0.55 * cupy.cuda.runtime.memGetInfo()[1])
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def test_what_another_pool_does_not_use_is_released(large):
    cupy.cuda.alloc(large)
    pool = cupy.cuda.MemoryPool()
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        pool.malloc(large)
    block = bridge.pycuda_allocator(pool)(large)
    assert used_by(pool) >= large
    del block
    pool.free_all_blocks()


def test_one_pool_lasts_where_two_do_not(large):
    def alternate(allocator):
        for number in range(3):
            a = gpuarray.GPUArray(large, np.uint8, allocator=allocator)
            drv.memset_d8(a.gpudata, number, 100)
            assert int(bridge.as_cupy(a)[99]) == number
            del a
            x = cupy.empty(large, np.uint8)
            x[:100] = number
            assert bridge.as_pycuda(x)[:100].get().tolist() == [number] * 100
            del x

    alternate(bridge.pycuda_allocator())
    cupy.get_default_memory_pool().free_all_blocks()
    pool = DeviceMemoryPool()
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        alternate(pool.allocate)
    pool.free_held()


def test_the_final_error_says_who_holds_what(large):
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    kept = cupy.cuda.alloc(large)
    block = allocate(1000)
    with pytest.raises(MemoryError) as info:
        allocate(large)
    text = str(info.value)
    assert text.startswith(f"pycuda_allocator: {large:,} bytes cannot be allocated, even after")
    used = f"{large / GIB:.1f} GiB" if large >= GIB else f"{large / (1 << 20):.1f} MiB"
    (row,) = [line for line in text.splitlines() if line.startswith("CuPy's default MemoryPool")]
    assert used in row
    (row,) = [line for line in text.splitlines() if f"0x{id(pool):x}" in line]
    assert "1.0 KiB" in row
    assert isinstance(info.value, drv.MemoryError)
    assert isinstance(info.value, cupy.cuda.memory.OutOfMemoryError)
    again = pickle.loads(pickle.dumps(info.value))
    assert (type(again), str(again)) == (OutOfMemoryError, text)
    del kept, block
    info.value.__traceback__ = info.value.__context__ = info.value.__cause__ = None
    assert allocate(large) is not None
    pool.free_all_blocks()


def test_the_error_comes_through_whatever_makes_an_array(large, nvcc):
    allocate = bridge.pycuda_allocator()
    a = gpuarray.GPUArray(large, np.uint8, allocator=allocate)
    made = [
        lambda: gpuarray.GPUArray(large, np.uint8, allocator=allocate),
        lambda: a + 1,
        lambda: bridge.wrap_pycuda(
            lambda x: gpuarray.GPUArray(large, np.uint8, allocator=allocate)
        )(cupy.zeros(1)),
    ]
    for make in made:
        with pytest.raises(OutOfMemoryError, match="CuPy's default MemoryPool"):
            make()


def test_cupy_without_a_pool_runs_out_of_memory_alike():
    with cupy.cuda.using_allocator(None):
        allocate = bridge.pycuda_allocator()
    with pytest.raises(OutOfMemoryError, match="CuPy's default MemoryPool"):
        allocate(1 << 50)


def test_a_limit_of_cupys_pool_is_kept():
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=1 << 20)
    with pytest.raises(OutOfMemoryError) as info:
        bridge.pycuda_allocator(pool)(1 << 21)
    assert "limit set to: 1,048,576 bytes" in str(info.value.__cause__)


# ---- show_memory ---------------------------------------------------------------------------------


def shown(capsys):
    bridge.show_memory()
    rows = {}
    for line in capsys.readouterr().out.splitlines()[1:]:
        rows[line[:44].strip()] = line[44:].split()
    return rows


def test_show_memory(capsys):
    before = shown(capsys)
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    blocks = [allocate(1 << 20), allocate(1 << 20)]
    del blocks[0]
    a = gpuarray.GPUArray(256, np.uint8)
    views = [bridge.as_cupy(a), bridge.as_cupy(a), bridge.as_pycuda(cupy.zeros(64, np.uint8))]
    with CUPY_STREAMS["non-blocking"]():
        views.append(
            bridge.as_pycuda(cupy.zeros(64, np.uint8), stream=PYCUDA_STREAMS["Stream()"]())
        )
        views.append(bridge.as_cupy(a))
    rows = shown(capsys)
    name = f"CuPy's MemoryPool 0x{id(pool):x}"
    assert rows[name] == ["1.0", "MiB", "1.0", "MiB", "2.0", "MiB"]
    for name, count, size in [
        ("as_cupy, of PyCUDA's arrays", 3, 768),
        ("as_pycuda, of CuPy's arrays", 2, 128),
    ]:
        assert int(rows[name][0]) == int(before[name][0]) + count
        if before[name][1:] == ["0", "B"]:
            assert rows[name][1:] == [str(size), "B"]
    del views
    after = shown(capsys)
    assert after["as_cupy, of PyCUDA's arrays"] == before["as_cupy, of PyCUDA's arrays"]


SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", (1 << 20) - 1: "1.0 MiB", 1 << 43: "8192.0 GiB"}


def test_numbers_of_bytes():
    assert {size: memory._text(size) for size in SIZES} == SIZES

"""The allocators: one pool for both libraries, what runs out, and what is said of it."""

import gc
import pickle

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray

import bridge
from bridge.interop.memory_kinds import Allocation
from bridge.interop.pool import OutOfMemoryError

pytestmark = pytest.mark.alone
N = 1000
GIB = 1 << 30


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


@pytest.mark.parametrize("make_pool", [lambda: None, cupy.cuda.MemoryPool], ids=["CuPy's", "own"])
def test_what_pycuda_computes_stays_in_the_pool(make_pool, nvcc):
    pool = make_pool()
    allocate = bridge.pycuda_allocator(pool)
    host = np.arange(100, dtype=np.float32)
    before = used_by(pool)
    a = gpuarray.to_gpu(host, allocator=allocate)
    made = (a + 1, host + 1), (a[5:50].copy(), host[5:50]), (gpuarray.sum(a), host.sum())
    for result, expected in made:
        assert isinstance(memory_of(result), Allocation)
        assert result.allocator is allocate
        np.testing.assert_allclose(result.get(), expected, rtol=1e-6)
    assert used_by(pool) - before >= 100 * 4
    del a, result, made
    assert used_by(pool) == before


def test_an_asynchronous_pool(gpu, nvcc):
    pool = cupy.cuda.MemoryAsyncPool()
    allocate = bridge.pycuda_allocator(pool)
    before = pool.used_bytes()
    a = gpuarray.to_gpu(np.arange(100, dtype=np.float32), allocator=allocate)
    b = a * 2 + 1
    assert type(b.gpudata) is Allocation
    np.testing.assert_array_equal(bridge.as_cupy(b).get(), np.arange(100) * 2 + 1)
    assert pool.used_bytes() > before
    del a, b
    drv.Context.synchronize()
    assert pool.used_bytes() == before


def test_both_libraries_on_a_pool_of_rmm(gpu, package, run):
    package("rmm")
    out = run("""
        import rmm
        from rmm.allocators.cupy import rmm_cupy_allocator

        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(
            rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28))
        resource = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
        rmm.mr.set_current_device_resource(resource)
        cupy.cuda.set_allocator(rmm_cupy_allocator)

        a = gpuarray.to_gpu(np.arange(1000.0), allocator=bridge.pycuda_allocator())
        x = cupy.arange(1000.0)
        print(resource.allocation_counts.current_bytes)
        bridge.as_cupy(a)[:] += x
        assert (a.get() == 2 * np.arange(1000)).all()
        assert (bridge.as_pycuda(x).get() == np.arange(1000)).all()
        del a, x
        print(resource.allocation_counts.current_bytes)
        cupy.cuda.set_allocator()
    """)
    assert out.split() == ["16000", "0"]


def test_an_allocation_serves_as_pycudas_own_do(compile_kernel):
    pool = cupy.cuda.MemoryPool()
    allocation = bridge.pycuda_allocator(pool)(np.int64(4 * N))
    back = np.zeros(N, np.int32)
    source = 'extern "C" __global__ void seven(int *p) { p[threadIdx.x] = 7; }'
    seven = compile_kernel(source, "seven")
    for write in (
        lambda: drv.memset_d32(allocation, 7, N),
        lambda: seven(allocation, block=(N, 1, 1)),
        lambda: seven.prepare("P").prepared_call((1, 1), (N, 1, 1), allocation),
        lambda: bridge.launch(seven, allocation, grid=1, block=N),
    ):
        write()
        drv.memcpy_dtoh(back, allocation)
        assert (back == 7).all()
        drv.memcpy_htod(allocation, np.zeros_like(back))
    part = np.frombuffer(allocation.as_buffer(16, 8), np.uint8)
    assert (part.ctypes.data, part.nbytes) == (int(allocation) + 8, 16)
    assert pool.used_bytes() > 0
    allocation.free()
    assert pool.used_bytes() == 0
    allocation.free()


def test_an_allocation_of_no_bytes():
    assert bridge.pycuda_allocator(cupy.cuda.MemoryPool())(0) == 0
    a = gpuarray.GPUArray((0, 3), np.float32, allocator=bridge.pycuda_allocator())
    assert bridge.as_cupy(a).shape == (0, 3)


def test_the_users_allocator_at_the_call_is_not_bypassed():
    calls = []

    def counting(size):
        calls.append(size)
        if len(calls) > 3:
            raise LookupError(size)
        return cupy.cuda.get_allocator()(size)

    with cupy.cuda.using_allocator(counting):
        allocate = bridge.pycuda_allocator()
    for _ in range(3):
        allocate(100)
    assert calls == [100, 100, 100]
    with pytest.raises(LookupError, match="100"):
        allocate(100)


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
    *_, row = [line for line in text.splitlines() if line.startswith("CuPy's MemoryPool ")]
    assert "1.0 KiB" in row
    assert isinstance(info.value, drv.MemoryError)
    assert isinstance(info.value, cupy.cuda.memory.OutOfMemoryError)
    again = pickle.loads(pickle.dumps(info.value))
    assert (type(again), str(again)) == (OutOfMemoryError, text)
    del kept, block
    info.value.__traceback__ = info.value.__context__ = info.value.__cause__ = None
    assert allocate(large) is not None
    pool.free_all_blocks()


def test_cupy_without_a_pool_runs_out_of_memory_alike():
    with cupy.cuda.using_allocator(None):
        allocate = bridge.pycuda_allocator()
    with pytest.raises(OutOfMemoryError, match="CuPy's default MemoryPool"):
        allocate(1 << 50)


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
    with cupy.cuda.Stream(non_blocking=True):
        views.append(bridge.as_pycuda(cupy.zeros(64, np.uint8), stream=drv.Stream()))
        views.append(bridge.as_cupy(a))
    rows = shown(capsys)
    *_, name = [name for name in rows if name.startswith("CuPy's MemoryPool ")]
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

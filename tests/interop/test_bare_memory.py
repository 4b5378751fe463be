"""Bare memory as arrays: what it may be, what it must hold, and how long it lives."""

import gc
import weakref
from contextlib import nullcontext

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import DLPackExporter, Exporter, Plain
from pycuda.tools import DeviceMemoryPool

import bridge

HOST = np.arange(24, dtype=np.float32)
MAPPED = drv.host_alloc_flags.DEVICEMAP
GLOBAL = drv.mem_attach_flags.GLOBAL


class Buffer(Exporter):
    """As RMM's."""

    ptr = property(lambda self: self.array.data.ptr)


class BufferOfDLPack(DLPackExporter):
    """As cuda.core's."""

    ptr = property(lambda self: self.array.data.ptr)


KINDS = {
    "mem_alloc": lambda: drv.mem_alloc(HOST.nbytes),
    "a pool's block": lambda: DeviceMemoryPool().allocate(HOST.nbytes),
    "managed memory": lambda: drv.managed_empty(24, np.float32, mem_flags=GLOBAL).base,
    "a PointerHolderBase": lambda: Plain(cupy.cuda.alloc(HOST.nbytes)),
    "a MemoryPointer": lambda: cupy.cuda.alloc(HOST.nbytes),
    "pycuda_allocator": lambda: bridge.pycuda_allocator()(HOST.nbytes),
    "another library's buffer": lambda: Buffer(cupy.zeros(HOST.nbytes, np.uint8), version=0),
    "DLPack's bytes": lambda: BufferOfDLPack(cupy.zeros(HOST.nbytes, np.int8)),
}


def address_of(memory):
    return int(getattr(memory, "ptr", memory))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_shared(kind):
    memory = KINDS[kind]()
    drv.memcpy_htod(address_of(memory), HOST)
    a = bridge.as_pycuda(memory, shape=(4, 6), dtype=np.float32)
    x = bridge.as_cupy(memory, (4, 6), np.float32)
    assert int(a.gpudata) == x.data.ptr == address_of(memory)
    for array in a, x, bridge.as_cupy(a):
        assert (array.get() == HOST.reshape(4, 6)).all()
    x[...] = 7
    back = np.empty_like(HOST)
    drv.memcpy_dtoh(back, address_of(memory))
    assert (back == 7).all()


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (dict(shape=6, offset=24), HOST[6:12]),
        (dict(shape=[4, 6], order="F"), HOST.reshape(4, 6, order="F")),
        (dict(shape=(3, 2), strides=(32, 4)), HOST.reshape(3, 8)[:, :2]),
        (dict(shape=(24,), strides=-4, offset=92), HOST[::-1]),
        (dict(shape=(), offset=np.int64(8)), HOST[2]),
        (dict(shape=(0, 3), offset=1000), np.empty((0, 3))),
    ],
    ids=["an offset", "Fortran order", "strides", "backwards", "one element", "empty"],
)
@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_layouts(convert, layout, expected):
    memory = KINDS["mem_alloc"]()
    drv.memcpy_htod(memory, HOST)
    array = convert(memory, dtype="f4", **layout)
    assert array.shape == expected.shape
    found = bridge.as_cupy(array).get()
    assert (found == expected).all()


@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_a_view_keeps_memory_of_cupys_pool(convert):
    pool = cupy.cuda.MemoryPool()
    for malloc in bridge.pycuda_allocator(pool), pool.malloc:
        memory = malloc(4096)
        view = convert(memory, shape=1024, dtype="f4")
        with pytest.raises(ValueError, match="need the bytes from 0 to 4100; .* from 0 to 4096"):
            convert(memory, shape=1025, dtype="f4")
        used = pool.used_bytes()
        del memory
        gc.collect()
        assert pool.used_bytes() == used == 4096
        del view
        gc.collect()
        assert pool.used_bytes() == 0


@pytest.mark.parametrize("owned", [True, False], ids=["an owner", "none: the control"])
def test_an_address_keeps_its_owner(owned):
    pool = DeviceMemoryPool()
    block = pool.allocate(64)
    address, owner = np.uint64(int(block)), block if owned else None
    warned = nullcontext() if owned else pytest.warns(UserWarning, match="does not keep its memory")
    with warned:
        x = bridge.as_cupy(address, shape=16, dtype="f4", owner=owner)
    del block, owner
    assert pool.active_blocks == owned
    del x
    gc.collect()
    assert pool.active_blocks == 0


HOST_ARRAYS = {
    "managed": lambda: drv.managed_zeros(24, np.float32, mem_flags=GLOBAL),
    "pinned": lambda: drv.pagelocked_zeros(24, np.float32, mem_flags=MAPPED),
}
on_host = pytest.mark.parametrize("make", HOST_ARRAYS.values(), ids=HOST_ARRAYS)


@on_host
@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_a_host_array_that_the_device_reaches_is_viewed(make, convert):
    """Both sides see what the other writes, through slices as well; and the view keeps it alive."""
    host = make()
    gone = weakref.ref(host)
    part = host.reshape(4, 6)[1:3, ::2]
    x = bridge.as_cupy(convert(part))
    assert (x.shape, x.strides) == (part.shape, part.strides)
    x += 1
    bridge.as_cupy(convert(host[20:]))[...] = 5
    drv.Context.synchronize()
    expected = np.zeros((4, 6))
    expected[1:3, ::2] = 1
    expected.reshape(24)[20:] = 5
    assert np.array_equal(host.reshape(4, 6), expected)
    host[6] = 3
    del host, part
    gc.collect()
    assert x.get()[0, 0] == 3
    assert gone() is not None
    del x
    gc.collect()
    assert gone() is None


def test_pinned_memory_is_viewed_by_its_address():
    pinned = drv.pagelocked_zeros(4, np.float32, mem_flags=MAPPED)
    of_cupy = cupy.cuda.alloc_pinned_memory(64)
    address = pinned.base.get_device_pointer()
    for memory, owner in (pinned.base, None), (address, pinned), (of_cupy, None):
        x = bridge.as_cupy(memory, shape=4, dtype="f4", owner=owner)
        x[...] = 3
        assert (x.get() == 3).all()
        with pytest.raises(ValueError, match="need the bytes from 0 to 40000; .* from 0"):
            bridge.as_cupy(memory, shape=10_000, dtype="f4", owner=owner)
    drv.Context.synchronize()
    assert (pinned == 3).all()


def test_a_read_only_host_array_is_refused():
    pinned = drv.pagelocked_zeros(4, np.float32, mem_flags=MAPPED)
    pinned.flags.writeable = False
    with pytest.raises(BufferError, match="as_cupy: the array is marked read-only"):
        bridge.as_cupy(pinned)

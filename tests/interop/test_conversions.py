"""as_cupy and as_pycuda: the same elements in the same places; `test_layouts` tries any layout."""

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import Plain
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge

RECORD = np.dtype([("position", "<f4", (3,)), ("id", "<i8"), ("flag", "?")])
DTYPES = [*"?bhilqBHILQefdFD", "V6", RECORD]


def numbers(shape, dtype):
    """Fill an array with bytes that differ from element to element."""
    dtype = np.dtype(dtype)
    found = np.arange(int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return (found % 2 if dtype.kind == "b" else found).view(dtype).reshape(shape)


def same(one, other):
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (2, 1, 3)], ids=str)
def test_each_dtype_arrives(shape, dtype):
    host = numbers(shape, dtype)
    a, x = gpuarray.to_gpu(host), cupy.ndarray(shape, dtype)
    x.data.copy_from_host(host.ctypes.data, host.nbytes)
    view = bridge.as_cupy(a)
    assert type(view) is cupy.ndarray
    assert (view.data.ptr, view.strides) == (int(a.gpudata), a.strides)
    assert same(view.get(), host)
    view = bridge.as_pycuda(x)
    assert type(view) is gpuarray.GPUArray
    assert (int(view.gpudata), view.strides) == (x.data.ptr, x.strides)
    assert same(view.get(), host)


@pytest.mark.parametrize("shape", [(0,), (5, 0), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_nothing_arrives(shape, order):
    x = bridge.as_cupy(gpuarray.GPUArray(shape, np.float32, order=order))
    assert (x.shape, x.dtype, x.size, x.get().shape) == (shape, np.float32, 0, shape)
    a = bridge.as_pycuda(cupy.empty(shape, np.float32, order=order))
    assert (a.shape, a.size, a.gpudata, a.get().shape) == (shape, 0, None, shape)
    assert a.strides == gpuarray.GPUArray(shape, np.float32).strides


def test_a_gpuarray_made_here_has_the_attributes_of_one_made_by_pycuda():
    native = gpuarray.GPUArray((3, 4), np.float32)
    ours = bridge.as_pycuda(cupy.zeros((3, 4), np.float32))
    assert vars(ours).keys() == vars(native).keys()
    for name in vars(native).keys() - {"gpudata", "base"}:
        assert getattr(ours, name) == getattr(native, name), name


@pytest.mark.parametrize("view", [np.s_[:], np.s_[:, 1], np.s_[::-1, ::-2], np.s_[2:2]], ids=str)
def test_an_ndarray_made_here_has_the_state_of_one_made_by_cupy(view):
    a = gpuarray.to_gpu(numbers((5, 6), np.float32))[view]
    ours = bridge.as_cupy(a)
    memory = cupy.cuda.UnownedMemory(0 if a.gpudata is None else int(a.gpudata), a.nbytes, a, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    native = cupy.ndarray(a.shape, a.dtype, pointer, a.strides)
    assert (type(ours), type(ours.data.mem)) == (type(native), type(native.data.mem))
    for name in ("shape", "strides", "dtype", "size", "itemsize", "nbytes", "base"):
        assert getattr(ours, name) == getattr(native, name), name
    for name in ("c_contiguous", "f_contiguous", "owndata"):
        assert getattr(ours.flags, name) == getattr(native.flags, name), name
    assert (ours.data.ptr, ours.data.device_id) == (native.data.ptr, native.data.device_id)
    assert ours.data.mem.size == native.data.mem.size


def test_an_array_of_the_same_library_is_that_array():
    x, a = cupy.zeros(3), gpuarray.GPUArray(3, np.float32)
    assert bridge.as_cupy(x) is bridge.as_cupy(x, stream=drv.Stream()) is x
    assert bridge.as_pycuda(a) is bridge.as_pycuda(a, stream=-1) is a


@pytest.mark.parametrize("flags", [None, 0, 1], ids=["None", "blocking", "non-blocking"])
def test_the_way_back_ends_at_the_same_array(flags):
    stream = None if flags is None else drv.Stream(flags)
    x = cupy.zeros((2, 3))
    assert bridge.as_cupy(bridge.as_pycuda(x, stream=stream), stream=stream) is x
    a = gpuarray.to_gpu(np.zeros((2, 3)))
    x = bridge.as_cupy(a, stream=stream)
    assert bridge.as_pycuda(x, stream=-1) is a
    for part in np.s_[:1, :3], np.s_[:, 1:2], np.s_[2:2]:
        x = cupy.zeros((4, 6))[part]
        assert bridge.as_cupy(bridge.as_pycuda(x)) is x
    for _ in range(3):
        assert bridge.as_pycuda(bridge.as_cupy(a, stream=stream), stream=stream) is a


PARTS = {  # first element, length, dtype, strides
    "later": (2, 12, np.float32, None),
    "shorter": (0, 6, np.float32, None),
    "of another dtype": (0, 12, np.int32, None),
    "with other strides": (0, 12, np.float32, (0,)),
}


@pytest.mark.parametrize(("first", "length", "dtype", "strides"), PARTS.values(), ids=PARTS)
def test_the_way_back_from_a_part_is_not_the_whole(first, length, dtype, strides):
    x = cupy.arange(24, dtype=np.float32)[:12]
    pointer, base = x.data.ptr + 4 * first, bridge.as_pycuda(x).base
    a = gpuarray.GPUArray(length, dtype, gpudata=pointer, base=base, strides=strides)
    y = bridge.as_cupy(a)
    assert y is not x
    assert (y.data.ptr, y.shape, y.dtype, y.strides) == (pointer, (length,), dtype, a.strides)


def test_the_way_back_from_another_place_is_not_the_source():
    big = gpuarray.to_gpu(np.arange(8, dtype=np.float32))
    x = bridge.as_cupy(big[::2])
    for y in (
        cupy.ndarray(x.shape, x.dtype, x.data + 4, x.strides),
        cupy.ndarray(x.shape, x.dtype, x.data, (4,)),
        x[:2],
    ):
        a = bridge.as_pycuda(y)
        assert (int(a.gpudata), a.shape, a.strides) == (y.data.ptr, y.shape, y.strides)


@pytest.mark.parametrize("how", ["None", "deleted"])
def test_a_view_outlives_the_memory_of_its_gpuarray_being_taken_away(how):
    a = gpuarray.to_gpu(np.arange(4, dtype=np.float32))
    x = bridge.as_cupy(a)
    a.gpudata = None
    if how == "deleted":
        del a.gpudata
    b = bridge.as_pycuda(x)
    assert b is not a
    assert np.array_equal(b.get(), np.arange(4))


@pytest.mark.parametrize("owner", [None, 7, (), (1,), (1, 2), (1, 2, 3)], ids=repr)
def test_memory_of_any_owner_is_taken(owner):
    x = cupy.arange(4)
    memory = cupy.cuda.UnownedMemory(x.data.ptr, x.nbytes, owner, 0)
    a = bridge.as_pycuda(cupy.ndarray(4, x.dtype, cupy.cuda.MemoryPointer(memory, 0)))
    assert np.array_equal(a.get(), np.arange(4))


def test_a_step_of_no_bytes_along_one_element_repeats_nothing():
    x = cupy.ndarray((1, 3), np.float32, cupy.arange(3, dtype=np.float32).data, (0, 4))
    a = bridge.as_pycuda(x)
    assert a.strides == (12, 4)
    assert np.array_equal(a.get(), [[0, 1, 2]])


@pytest.mark.parametrize("dtype", ["S5", ">f4", "M8[s]", "g"])
def test_a_gpuarray_of_any_dtype_is_ordered_for_another_stream(dtype):
    a = gpuarray.GPUArray(3, np.dtype(dtype))
    assert bridge.as_pycuda(a, stream=drv.Stream()) is a
    with pytest.raises(TypeError, match="dtype"):  # as before
        bridge.as_cupy(a)


@pytest.mark.parametrize(
    "change",
    [
        "a.gpudata, b.gpudata = b.gpudata, a.gpudata",
        "a.shape, a.strides = (2, 5), (20, 4)",
        "a.strides, a.shape = (8,), (5,)",
        "a.dtype = np.dtype(np.int32)",
    ],
)
def test_what_is_known_of_an_array_is_forgotten_when_it_changes(change):
    a, b = (gpuarray.to_gpu(np.arange(10, dtype=np.float32) + i) for i in range(2))
    first = bridge.as_cupy(a)
    exec(change, {"a": a, "b": b, "np": np})
    x = bridge.as_cupy(a)
    assert (x.shape, x.strides, x.dtype) == (a.shape, a.strides, a.dtype)
    assert x.data.ptr == int(a.gpudata)
    assert (first.shape, first.dtype) == ((10,), np.float32)


def test_a_view_outlives_the_gpudata_that_its_array_had():
    pool = DeviceMemoryPool()
    a = gpuarray.GPUArray(100, np.uint8, allocator=pool.allocate)
    view = bridge.as_cupy(a, stream=drv.Stream())
    a.gpudata = drv.mem_alloc(100)
    bridge.as_cupy(a)
    assert pool.active_bytes == 100
    del view
    assert pool.active_bytes == 0


def test_memory_that_has_moved_is_another_view():
    one, other = cupy.cuda.alloc(40), cupy.cuda.alloc(40)
    a = gpuarray.GPUArray(10, np.float32, gpudata=Plain(one))
    x = bridge.as_cupy(a)
    a.gpudata.memory = other
    assert int(bridge.as_pycuda(x).gpudata) == one.ptr
    assert bridge.as_cupy(a).data.ptr == other.ptr


def test_a_view_whose_strides_were_changed_in_place_is_another_view():
    """PyCUDA's ``flags`` stay what they were when they were first asked for."""
    x = cupy.arange(9, dtype=np.float32).reshape(3, 3)
    view = bridge.as_pycuda(x)
    assert view.flags.c_contiguous
    view.strides = (4, 12)
    assert (bridge.as_cupy(view).get() == x.get().T).all()

    a = gpuarray.to_gpu(x.get())
    assert a.flags.c_contiguous
    view = bridge.as_cupy(a)
    a.strides = (4, 12)
    back = bridge.as_pycuda(view)
    assert back is not a
    assert back.strides == (12, 4)


def test_a_shape_that_was_set_on_its_own_is_refused():
    a = gpuarray.to_gpu(np.arange(6.0))
    for _ in range(2):
        a.shape = (2, 3)
        with pytest.raises(ValueError, match=r"shape \(2, 3\), but strides \(8,\).*a.reshape"):
            bridge.as_cupy(a)
        a.shape = (6,)
        bridge.as_cupy(a)


def test_a_view_has_the_dtype_object_of_its_source():
    """An equal dtype, of an array of the same layout before, may have other metadata."""
    for dtype in np.dtype("f8", metadata={"unit": "m"}), np.dtype("f8"):
        x = cupy.zeros(31, dtype)
        assert bridge.as_pycuda(x).dtype is x.dtype

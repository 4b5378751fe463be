"""as_cupy and as_pycuda: the same elements in the same places; `test_layouts` tries any layout."""

from __future__ import annotations

import gc
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from test_release import Plain

import bridge

RECORD = np.dtype([("position", "<f4", (3,)), ("id", "<i8"), ("flag", "?")])
DTYPES = [*"?bhilqBHILQefdFD", "V6", RECORD]
VIEWS = {
    "step": np.s_[::2],
    "reversed": np.s_[::-1],
    "column": np.s_[:, 1],
    "both reversed": np.s_[::-1, ::-1],
    "inner": np.s_[1:3, 1:4],
    "none": np.s_[2:2],
}


def numbers(shape, dtype):
    """Fill an array with bytes that differ from element to element."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=int))
    if dtype.kind == "?" or dtype.kind == "b":
        return (np.arange(size) % 3 == 0).reshape(shape)
    if dtype.kind == "V":
        raw = np.arange(size * dtype.itemsize, dtype=np.uint8)
        if dtype == RECORD:
            out = np.zeros(size, dtype)
            out["position"] = np.arange(3 * size).reshape(size, 3)
            out["id"] = np.arange(size) - 7
            out["flag"] = np.arange(size) % 2
            return out.reshape(shape)
        return raw.view(dtype).reshape(shape)
    out = np.arange(size) % 100 - 3 * (dtype.kind != "u")
    return (out * (1 + 1j) if dtype.kind == "c" else out).astype(dtype).reshape(shape)


def same(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


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


def test_strides_of_length_one_axes_are_canonical_for_pycuda():
    x = cupy.zeros((4, 6), np.float32)[:, :1][:, 0].reshape(1, 4)[:, ::4]
    assert x.flags.c_contiguous
    native = gpuarray.GPUArray(x.shape, x.dtype)
    assert bridge.as_pycuda(x).strides == native.strides


def test_a_gpuarray_made_here_has_the_attributes_of_one_made_by_pycuda():
    native = gpuarray.GPUArray((3, 4), np.float32)
    ours = bridge.as_pycuda(cupy.zeros((3, 4), np.float32))
    different = {"gpudata", "base"}
    assert vars(ours).keys() == vars(native).keys()
    for name in vars(native).keys() - different:
        assert getattr(ours, name) == getattr(native, name), name


@pytest.mark.parametrize("view", [np.s_[:], *VIEWS.values()], ids=["whole", *VIEWS])
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


def test_as_cupy_of_a_cupy_array_is_that_array():
    x = cupy.zeros(3)
    assert bridge.as_cupy(x) is x
    assert bridge.as_cupy(x, stream=drv.Stream()) is x


def test_as_pycuda_of_a_gpuarray_is_that_array():
    a = gpuarray.GPUArray(3, np.float32)
    assert bridge.as_pycuda(a) is a
    assert bridge.as_pycuda(a, stream=-1) is a


@pytest.mark.parametrize("flags", [None, 0, 1], ids=["None", "blocking", "non-blocking"])
def test_the_way_back_ends_at_the_same_array(flags):
    stream = None if flags is None else drv.Stream(flags)
    x = cupy.zeros((2, 3))
    assert bridge.as_cupy(bridge.as_pycuda(x, stream=stream), stream=stream) is x
    a = gpuarray.to_gpu(np.zeros((2, 3)))
    x = bridge.as_cupy(a, stream=stream)
    assert bridge.as_pycuda(x, stream=-1) is a
    if stream is not None:  # a view that tells a's pool of the work there
        for _ in range(3):
            view = bridge.as_pycuda(x, stream=stream)
            assert view.base.source is x
            x = bridge.as_cupy(view, stream=stream)


def test_the_way_back_is_another_view_while_a_non_blocking_stream_is_alive(python):
    """Its release lets CuPy's stream wait for the work there."""
    done = python("""
        import cupy, numpy as np, pycuda.driver as drv, bridge, bridge.autoinit
        from pycuda import gpuarray
        a = gpuarray.zeros((2, 3), np.float32)
        x = bridge.as_cupy(a)
        print(bridge.as_pycuda(x) is a)
        stream = drv.Stream()
        print(bridge.as_pycuda(x) is a)
        stream = drv.Stream(1)
        print(bridge.as_pycuda(x) is a)
        del stream
        print(bridge.as_pycuda(x) is a)
    """)
    assert (done.stdout.split(), done.stderr) == (["True", "True", "False", "True"], "")


@pytest.mark.parametrize("flags", [0, 1])
def test_a_view_of_a_view_keeps_no_view_between(flags):
    stream = drv.Stream(flags)
    first = bridge.as_pycuda(cupy.arange(4))
    array, gone = bridge.as_pycuda(first, stream=stream), []
    for _ in range(100):
        gone.append(weakref.ref(array))
        array = bridge.as_pycuda(array, stream=stream)
    assert [one() for one in gone] == [None] * 100
    assert array.base.source is first
    assert np.array_equal(array.get(), np.arange(4))


def test_a_part_on_the_way_back_is_a_part():
    x = cupy.arange(6)
    y = bridge.as_cupy(bridge.as_pycuda(x)[2:])
    assert y.data.ptr == x[2:].data.ptr
    assert np.array_equal(y.get(), np.arange(2, 6))
    a = gpuarray.to_gpu(np.arange(6))
    b = bridge.as_pycuda(bridge.as_cupy(a)[:2])
    assert int(b.gpudata) == int(a.gpudata)
    assert np.array_equal(b.get(), np.arange(2))


PARTS = {
    "later": (lambda x: x.data.ptr + 8, (12,), np.float32, None),
    "shorter": (lambda x: x.data.ptr, (6,), np.float32, None),
    "longer": (lambda x: x.data.ptr, (24,), np.float32, None),
    "of another dtype": (lambda x: x.data.ptr, (12,), np.int32, None),
    "with other strides": (lambda x: x.data.ptr, (12,), np.float32, (0,)),
}


@pytest.mark.parametrize(("pointer", "shape", "dtype", "strides"), PARTS.values(), ids=PARTS)
def test_the_way_back_from_a_part_is_not_the_whole(pointer, shape, dtype, strides):
    x = cupy.arange(24, dtype=np.float32)[:12]
    a = gpuarray.GPUArray(shape, dtype, gpudata=pointer(x), base=x, strides=strides)
    y = bridge.as_cupy(a)
    assert y is not x
    assert (y.data.ptr, y.shape, y.dtype, y.strides) == (pointer(x), shape, dtype, a.strides)


def test_the_way_back_from_another_place_is_not_the_source():
    big = gpuarray.to_gpu(np.arange(8, dtype=np.float32))
    x = bridge.as_cupy(big[::2])
    y = cupy.ndarray(x.shape, x.dtype, x.data + 4, x.strides)
    assert int(bridge.as_pycuda(y).gpudata) == y.data.ptr
    z = cupy.ndarray(x.shape, x.dtype, x.data, (4,))
    assert bridge.as_pycuda(z).strides == (4,)


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


@pytest.mark.parametrize("part", [np.s_[:1, :3], np.s_[:, 1:2], np.s_[2:2]], ids=repr)
def test_the_way_back_from_a_view_ends_at_the_same_array(part):
    x = cupy.zeros((4, 6))[part]
    assert bridge.as_cupy(bridge.as_pycuda(x)) is x


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


@pytest.mark.parametrize(
    ("convert", "make"), [(bridge.as_cupy, gpuarray.to_gpu), (bridge.as_pycuda, cupy.asarray)]
)
def test_a_view_keeps_its_source_alive(convert, make):
    source = make(np.arange(5))
    alive = weakref.ref(source)
    view = convert(source)
    part = view[1:]
    del source, view
    gc.collect()
    assert alive() is not None
    assert np.array_equal(part.get(), np.arange(1, 5))
    del part
    gc.collect()
    assert alive() is None


def test_conversions_leave_no_memory_behind():
    pool = cupy.get_default_memory_pool()
    x = cupy.zeros(1000)
    a = gpuarray.GPUArray(1000, np.float64)
    gc.collect()
    used, objects = pool.used_bytes(), len(gc.get_objects())
    for _ in range(10_000):
        bridge.as_pycuda(x)
        bridge.as_cupy(a)
    gc.collect()
    assert pool.used_bytes() == used
    assert len(gc.get_objects()) < objects + 100


@pytest.mark.parametrize("dtype", ["S5", ">f4", "M8[s]", "g"])
def test_a_gpuarray_of_any_dtype_is_viewed_for_another_stream(dtype):
    a = gpuarray.GPUArray(3, np.dtype(dtype))
    view = bridge.as_pycuda(a, stream=drv.Stream())
    assert (view.dtype, view.gpudata) == (a.dtype, int(a.gpudata))
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


@pytest.mark.alone
@pytest.mark.parametrize("convert", ["as_cupy", "as_pycuda"])
def test_a_view_outlives_the_gpudata_that_its_array_had(convert):
    gc.collect()
    nbytes = 64 << 20
    a = gpuarray.GPUArray(nbytes, np.uint8)
    view = getattr(bridge, convert)(a, stream=drv.Stream())
    a.gpudata = drv.mem_alloc(nbytes)
    free = drv.mem_get_info()[0]
    bridge.as_cupy(a)
    assert drv.mem_get_info()[0] == free
    del view
    gc.collect()
    assert drv.mem_get_info()[0] == free + nbytes


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

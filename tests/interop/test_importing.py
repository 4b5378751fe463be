"""Arrays of other libraries, by DLPack and the CUDA Array Interface; and what is refused."""

import copy
import gc
import weakref
from unittest.mock import Mock

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import BOTH, DLPackExporter, Exporter, pointer_of
from pycuda import gpuarray

import bridge


@BOTH
def test_a_strided_array_interface_arrives(convert):
    x = cupy.arange(12).reshape(3, 4)[::-1, ::2]
    view = convert(Exporter(x))
    assert (pointer_of(view), view.strides) == (x.data.ptr, x.strides)
    assert np.array_equal(bridge.as_cupy(view).get(), x.get())
    assert bridge.as_cupy(Exporter(x)).data.mem.size == x.nbytes
    lists = {"shape": [*map(np.int64, x.shape)], "strides": [*x.strides]}
    view = convert(Exporter(x, **lists, data=[np.uint64(x.data.ptr), False]))
    assert (pointer_of(view), view.shape, view.strides) == (x.data.ptr, x.shape, x.strides)


@BOTH
@pytest.mark.parametrize("pointer", [0, 8])
@pytest.mark.parametrize("shape", [(0,), (0, 5), (2, 0, 3)], ids=str)
def test_an_empty_array_interface_arrives(convert, shape, pointer):
    view = convert(Exporter(cupy.empty(shape, np.float32), data=(pointer, False), strides=None))
    assert (view.shape, view.size) == (shape, 0)


@BOTH
def test_an_array_interface_is_kept_alive(convert):
    exporter = Exporter(cupy.arange(3))
    alive = weakref.ref(exporter)
    view = convert(exporter)
    del exporter
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("handle", ["none", "legacy", "per-thread", "own", "ignored"])
def test_the_stream_of_an_array_interface_is_honoured_by_an_event(handle, latch, put):
    """The host does not wait, where `cupy.asarray` does."""
    own, reader = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x, copied = cupy.zeros(100, np.int32), cupy.zeros(100, np.int32)
    stream = {"none": None, "legacy": 1, "per-thread": 2}.get(handle, own.handle)
    writer = {"none": None, "legacy": None, "per-thread": cupy.cuda.Stream.ptds}.get(handle, own)
    is_read_early = handle in ("none", "ignored")  # the controls
    with latch.hold(writer), reader:
        if handle == "per-thread":
            bridge.wait_stream(own, writer)
            put(x.data.ptr, 100, 7, own)
            bridge.wait_stream(writer, own)
        else:
            put(x.data.ptr, 100, 7, writer)
        exporter = Exporter(x, stream=stream)
        exporter.keeps = own  # CAI: an exporter's stream lives as long as the exporter
        view = bridge.as_cupy(exporter, stream=-1 if handle == "ignored" else None)
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
        if is_read_early:
            reader.synchronize()
    assert set(copied.get().tolist()) == ({0} if is_read_early else {7})


def test_dlpack_is_told_the_stream_that_will_use_the_array():
    exporter, own = DLPackExporter(cupy.arange(3)), drv.Stream()
    bridge.as_cupy(exporter)
    with cupy.cuda.Stream(non_blocking=True) as here:
        bridge.as_cupy(exporter)
        bridge.as_cupy(exporter, stream=-1)
        bridge.as_pycuda(exporter, stream=own)
    with cupy.cuda.Stream.ptds:
        bridge.as_cupy(exporter)
    told = [asked["stream"] for asked in exporter.asked]
    assert told == [1, here.ptr, -1, own.handle, 1]  # PyTorch refuses the per-thread stream


@pytest.mark.parametrize("kind", ["null", "non-blocking", "per-thread", "by a named stream"])
def test_dlpack_is_ordered_after_the_exporters_work(kind, latch, put):
    own, named = drv.Stream(1), {"null": cupy.cuda.Stream.null, "per-thread": cupy.cuda.Stream.ptds}
    reader = named.get(kind) or cupy.cuda.Stream(non_blocking=True)

    class Ordered(DLPackExporter):
        def __dlpack__(self, **keywords):
            with bridge.as_cupy_stream(own):  # the exporter's current stream
                return super().__dlpack__(**keywords)

    x, copied = cupy.zeros(100, np.int32), cupy.zeros(100, np.int32)
    with latch.hold(own), reader:
        put(x.data.ptr, 100, 7, own)
        if kind == "by a named stream":
            view = bridge.as_cupy(DLPackExporter(x), stream=own)
        else:
            view = bridge.as_cupy(Ordered(x))
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert (copied.get() == 7).all()


def test_dlpack_before_version_1_is_accepted():
    class Old(DLPackExporter):
        def __dlpack__(self, stream=None):
            return self.array.__dlpack__(stream=stream)

    assert bridge.as_cupy(Old(cupy.arange(3))).sum() == 3


class Proxy:
    """Forwards every attribute and gives the class of its object as its own, as dask-cuda does."""

    def __init__(self, array):
        self.array = array

    @property
    def __class__(self):
        return type(self.array)

    def __getattr__(self, name):
        return getattr(self.array, name)


@BOTH
@pytest.mark.parametrize("make", [weakref.proxy, Proxy])
@pytest.mark.parametrize("array", [cupy.arange, gpuarray.arange])
def test_a_proxy_of_an_array_is_imported_by_dlpack(convert, make, array):
    source = array(3, dtype=np.float32)
    view = convert(make(source))
    assert type(view) is type(convert(source))
    assert pointer_of(view) == pointer_of(source)


@BOTH
@pytest.mark.parametrize("kind", [cupy.ndarray, gpuarray.GPUArray])
def test_a_mock_of_an_array_is_refused(convert, kind):
    with pytest.raises(TypeError):
        convert(Mock(spec=kind))


@BOTH
def test_a_weak_proxy_that_no_view_can_keep_is_refused(convert):
    exporter = Exporter(cupy.arange(3))
    with pytest.raises(TypeError, match=r"is a weakref\.proxy, which does not keep its array"):
        convert(weakref.proxy(exporter))


def test_a_proxy_of_a_stream_is_refused():
    stream = drv.Stream(1)
    with pytest.raises(TypeError, match=r"is a weakref\.ProxyType; None, a pycuda\.driver\.Stream"):
        bridge.as_cupy_stream(weakref.proxy(stream))


HOST = [np.zeros(3), np.zeros((0, 3)), np.array(1.0), np.float64(1), [1, 2], 1.0, b"12"]


@pytest.mark.parametrize("value", HOST, ids=repr)
def test_host_data_is_refused(value):
    name = type(value).__name__
    with pytest.raises(TypeError, match=rf"is a host .*{name}; move it to the device first"):
        bridge.as_cupy(value)


@BOTH
@pytest.mark.parametrize("answer", [7, (2,), (2, 0, 0), (2, None), ("cuda", 0)], ids=repr)
def test_a_broken_dlpack_device_is_refused(convert, answer):
    exporter = DLPackExporter(cupy.arange(3), device=answer)
    with pytest.raises((TypeError, ValueError)):
        convert(exporter)


@BOTH
@pytest.mark.parametrize("answer", [None, 5])
def test_what_is_no_dlpack_capsule_is_refused(convert, answer):
    class Exporter(DLPackExporter):
        def __dlpack__(self, **keywords):
            return answer

    with pytest.raises(BufferError, match=r"__dlpack__\(\) returns .*a capsule named dltensor or"):
        convert(Exporter(cupy.arange(3)))


@BOTH
@pytest.mark.parametrize("name", ["__dlpack__", "__dlpack_device__"])
def test_half_a_dlpack_is_none(convert, name):
    exporter = Exporter(cupy.arange(3))
    setattr(exporter, name, None)
    assert bridge.as_cupy(convert(exporter)).data.ptr == exporter.array.data.ptr


@BOTH
def test_a_consumed_capsule_is_refused(convert):
    class Once(DLPackExporter):
        capsule = None

        def __dlpack__(self, **keywords):
            self.capsule = self.capsule or super().__dlpack__(**keywords)
            return self.capsule

    exporter = Once(cupy.arange(3))
    convert(exporter)
    with pytest.raises(BufferError, match=r"used_dltensor_versioned.*has not been consumed"):
        convert(exporter)


BROKEN = {
    "no shape": ({"shape": ...}, ValueError, "no 'shape' entry"),
    "no typestr": ({"typestr": ...}, ValueError, "no 'typestr' entry"),
    "no data": ({"data": ...}, ValueError, "no 'data' entry"),
    "no version": ({"version": ...}, ValueError, "no 'version' entry"),
    "shape is a str": ({"shape": "3"}, TypeError, "shape .* a tuple of ints from 0 to"),
    "shape is negative": ({"shape": (-1,)}, ValueError, "shape .* from 0 to"),
    "bytes are too many": ({"shape": (2**62, 2)}, ValueError, "more bytes than there are addr"),
    "strides are too large": ({"strides": (2**63,)}, ValueError, "strides .* of 64 bits"),
    "pointer is too large": ({"data": (2**63, False)}, ValueError, "has data .9223372036854775808"),
    "typestr is a dtype": ({"typestr": np.dtype("f4")}, TypeError, "a str that numpy.dtype"),
    "typestr is nonsense": ({"typestr": "<q9"}, ValueError, "typestr '<q9'"),
    "typestr is an object": ({"typestr": "|O"}, TypeError, "both PyCUDA and CuPy support"),
    "descr is nonsense": ({"typestr": "|V8", "descr": [("a", "zz")]}, ValueError, "descr"),
    "descr is long": ({"typestr": "|V8", "descr": [("a", "<c16")]}, ValueError, "describes 16"),
    "data is an int": ({"data": 4096}, TypeError, "data 4096; a tuple"),
    "data is null": ({"data": (0, False)}, ValueError, "data .0, False.; a tuple .pointer, read-"),
    "data is unknown": ({"data": (4096, False)}, ValueError, "CUDA; device memory that has"),
    "data is read-only": ({"data": (4096, True)}, BufferError, "read-only.*hand over a copy"),
    "data is on the host": ({"data": (..., False)}, ValueError, "unknown to CUDA|host memory"),
    "strides is too long": ({"strides": (8, 8)}, ValueError, "one for each axis"),
    "version is text": ({"version": "3"}, TypeError, "version '3'; an int from 0 to 3"),
    "version is to come": ({"version": 4}, ValueError, "version 4; an int from 0 to 3"),
    "masked": ({"mask": object()}, BufferError, "mask; neither library has masked"),
    "stream is 0": ({"stream": 0}, ValueError, "stream 0; None .no ordering needed., 1 .the"),
    "stream is a bool": ({"stream": True}, TypeError, "None .* or an int handle"),
}


@BOTH
@pytest.mark.parametrize(("entries", "error", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_array_interface_is_refused(convert, entries, error, message):
    x, host = cupy.arange(3), np.zeros(3)
    exporter = Exporter(x, **entries)
    for key, value in entries.items():
        if value is ...:
            del exporter.interface[key]
        elif value == (..., False):
            exporter.interface[key] = (host.ctypes.data, False)
    before = copy.copy(exporter.interface)
    with pytest.raises(error, match=message) as caught:
        convert(exporter)
    assert str(caught.value).startswith(f"{convert.__name__}: ")
    assert exporter.interface == before
    assert np.array_equal(x.get(), np.arange(3))


OF_ONE = [">f4", "M8[s]", "U3", "f16", "c32", "O", "f4,U3", "f4,>i4", [("a", "M8[s]", 2)]]


@pytest.mark.parametrize("dtype", OF_ONE, ids=str)
def test_a_dtype_that_not_both_libraries_have_is_refused(dtype):
    a = gpuarray.GPUArray((3,), np.complex128)
    a.dtype = np.dtype(dtype)
    with pytest.raises(TypeError, match="as_cupy: dtype .*accepted: bool, integers"):
        bridge.as_cupy(a)
    if a.dtype.names:
        with pytest.raises(TypeError, match="as_pycuda: dtype .*accepted: bool, integers"):
            bridge.as_pycuda(cupy.empty(3, a.dtype))


def test_an_exporter_that_switches_the_device_changes_nothing(run):
    script = """
        x, stream = cupy.arange(3), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()

        def switched(answer):
            cupy.cuda.Device(1).use()
            return answer

        class Exporter:
            @property
            def __cuda_array_interface__(self):
                return switched({**x.__cuda_array_interface__, "stream": stream.ptr})

        class ByDlpack:
            def __dlpack_device__(self):
                return switched(x.__dlpack_device__())
            def __dlpack__(self, **keywords):
                return switched(x.__dlpack__(**keywords))

        for kind in Exporter, ByDlpack:
            for convert in bridge.as_cupy, bridge.as_pycuda:
                with cupy.cuda.Stream(non_blocking=True):
                    view = convert(kind())
                    print(view.get(), cupy.cuda.runtime.getDevice())
                    bridge.wait_stream(stream, None)
        with cupy.cuda.Stream(non_blocking=True):  # nor does a function of GPUArrays
            found = bridge.wrap_pycuda(lambda a: switched(a + 0))(x)
            print(found, cupy.cuda.runtime.getDevice())
    """
    assert run(script, devices=2) == "[0 1 2] 0\n" * 5

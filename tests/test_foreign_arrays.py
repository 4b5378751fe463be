"""Arrays of other libraries, by DLPack and the CUDA Array Interface; and what is refused."""

from __future__ import annotations

import copy

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray

import bridge
from bridge import foreign_arrays

BOTH = pytest.mark.parametrize(
    "convert", [bridge.as_cupy, bridge.as_pycuda], ids=["cupy", "pycuda"]
)


def pointer_of(view):
    return view.data.ptr if isinstance(view, cupy.ndarray) else int(view.gpudata)


class Exporter:
    """A library's array that speaks the CUDA Array Interface only."""

    def __init__(self, array, **entries):
        self.array = array
        self.interface = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.data.ptr, False),
            "version": 3,
            "strides": array.strides,
            **entries,
        }

    @property
    def __cuda_array_interface__(self):
        return self.interface


class DLPackExporter:
    """A library's array that speaks DLPack only, and remembers what it was asked for."""

    def __init__(self, array, device=None):
        self.array = array
        self.device = device or array.__dlpack_device__()
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        return self.array.__dlpack__(**keywords)


@BOTH
@pytest.mark.parametrize("version", [0, 2, 3])
def test_an_array_interface_arrives(convert, version):
    x = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    view = convert(Exporter(x, version=version))
    assert (pointer_of(view), view.shape, view.strides, view.dtype) == (
        x.data.ptr,
        x.shape,
        x.strides,
        x.dtype,
    )
    assert np.array_equal(view.get(), x.get())


@BOTH
def test_a_strided_array_interface_arrives(convert):
    x = cupy.arange(12).reshape(3, 4)[::-1, ::2]
    view = convert(Exporter(x))
    assert (pointer_of(view), view.strides) == (x.data.ptr, x.strides)
    assert np.array_equal(bridge.as_cupy(view).get(), x.get())


@BOTH
@pytest.mark.parametrize("shape", [(0,), (0, 5), (2, 0, 3)], ids=str)
def test_an_empty_array_interface_arrives(convert, shape):
    view = convert(Exporter(cupy.empty(shape, np.float32), data=(0, False), strides=None))
    assert (view.shape, view.size) == (shape, 0)


@BOTH
def test_an_array_interface_is_kept_alive(convert):
    import gc
    import weakref

    exporter = Exporter(cupy.arange(3))
    alive = weakref.ref(exporter)
    view = convert(exporter)
    del exporter
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("handle", ["none", "legacy", "per-thread", "own"])
def test_the_stream_of_an_array_interface_is_honoured_by_an_event(handle, latch, put):
    """The host does not wait, where `cupy.asarray` does."""
    own = drv.Stream(1)
    x = cupy.zeros(100, np.int32)
    reader = cupy.cuda.Stream(non_blocking=True)
    copied = cupy.zeros(100, np.int32)
    stream = {"none": None, "legacy": 1, "per-thread": 2, "own": own.handle}[handle]
    writer = {"none": None, "legacy": None, "per-thread": cupy.cuda.Stream.ptds, "own": own}[handle]
    with latch.hold(writer), reader:
        if handle == "per-thread":
            bridge.wait_stream(own, writer)
            put(x.data.ptr, 100, 7, own)
            bridge.wait_stream(writer, own)
        else:
            put(x.data.ptr, 100, 7, writer)
        exporter = Exporter(x, stream=stream)
        exporter.keeps = own  # CAI: an exporter's stream lives as long as the exporter
        view = bridge.as_cupy(exporter)
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
        if handle == "none":  # the control: nothing to wait for, so it reads what is there
            reader.synchronize()
    assert set(copied.get().tolist()) == ({0} if handle == "none" else {7})


@pytest.mark.parametrize(
    ("stream", "asked"),
    [(cupy.cuda.Stream.null, 1), (cupy.cuda.Stream(non_blocking=True), None)],
    ids=["null", "explicit"],
)
def test_dlpack_is_told_the_current_stream(stream, asked):
    exporter = DLPackExporter(cupy.arange(3))
    with stream:
        bridge.as_cupy(exporter)
    assert exporter.asked[0]["stream"] == (asked or stream.ptr)


@pytest.mark.parametrize(("said", "handle"), [(None, None), (1, 0), (2, 2), (4096, 4096)])
def test_the_legacy_default_stream_is_the_default_one(said, handle):
    exporter = Exporter(cupy.arange(3), stream=said)
    found = foreign_arrays.read_interface(exporter.__cuda_array_interface__, "as_cupy")
    assert found[-1] == handle


def test_a_struct_may_be_large():
    x = cupy.zeros(900, np.uint8)
    descr = [("a", "<f4", (70,)), ("b", "<i4", (5,))]
    exporter = Exporter(x, shape=(3,), strides=None, typestr="|V300", descr=descr)
    assert bridge.as_cupy(exporter).dtype == np.dtype(descr)


def test_a_descr_of_a_plain_type_changes_nothing():
    exporter = Exporter(cupy.arange(3), descr=[("x", "<i8")])
    assert bridge.as_cupy(exporter).dtype == np.int64


def test_the_memory_of_another_library_is_as_large_as_the_array():
    x = cupy.zeros((3, 4), np.float64)
    assert bridge.as_cupy(Exporter(x)).data.mem.size == x.nbytes


def test_dlpack_is_never_told_the_per_thread_stream():
    """PyTorch refuses it; a stream in between does the same."""
    exporter = DLPackExporter(cupy.arange(3))
    with cupy.cuda.Stream.ptds:
        bridge.as_cupy(exporter)
    assert exporter.asked[0]["stream"] > 2


def test_dlpack_is_told_the_stream_of_pycuda():
    exporter, stream = DLPackExporter(cupy.arange(3)), drv.Stream()
    bridge.as_pycuda(exporter, stream=stream)
    assert exporter.asked[0]["stream"] == stream.handle


@pytest.mark.parametrize("kind", ["null", "non-blocking", "per-thread"])
def test_dlpack_is_ordered_after_the_exporters_work(kind, latch, put):
    own = drv.Stream(1)

    class Ordered(DLPackExporter):
        def __dlpack__(self, **keywords):
            with bridge.as_cupy_stream(own):  # the exporter's current stream
                return super().__dlpack__(**keywords)

    reader = {
        "null": cupy.cuda.Stream.null,
        "non-blocking": cupy.cuda.Stream(non_blocking=True),
        "per-thread": cupy.cuda.Stream.ptds,
    }[kind]
    x, copied = cupy.zeros(100, np.int32), cupy.zeros(100, np.int32)
    with latch.hold(own), reader:
        put(x.data.ptr, 100, 7, own)
        view = bridge.as_cupy(Ordered(x))
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert (copied.get() == 7).all()


def test_a_given_stream_takes_the_place_of_the_exporters(latch, put):
    own, reader = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x, copied = cupy.zeros(100, np.int32), cupy.zeros(100, np.int32)
    exporter = DLPackExporter(x)
    with latch.hold(own), reader:
        put(x.data.ptr, 100, 7, own)
        view = bridge.as_cupy(exporter, stream=own)
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert exporter.asked[0]["stream"] == -1
    assert (copied.get() == 7).all()


def test_dlpack_before_version_1_is_accepted():
    class Old(DLPackExporter):
        def __dlpack__(self, stream=None):
            return self.array.__dlpack__(stream=stream)

    assert bridge.as_cupy(Old(cupy.arange(3))).sum() == 3


HOST = {
    "numpy.ndarray": np.zeros(3),
    "numpy.float64": np.float64(1),
    "list": [1, 2],
    "float": 1.0,
    "bytes": b"12",
}


@pytest.mark.parametrize("value", HOST.values(), ids=HOST)
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
    "shape is a list": ({"shape": [3]}, TypeError, "shape .* a tuple of ints from 0 to"),
    "shape has a float": ({"shape": (3.0,)}, TypeError, "a tuple of ints"),
    "shape is negative": ({"shape": (-1,)}, ValueError, "shape .* from 0 to"),
    "shape is too large": ({"shape": (2**63,)}, ValueError, "shape .* from 0 to 2"),
    "bytes are too many": (
        {"shape": (2**40, 2**40), "strides": (0, 0)},
        ValueError,
        "more bytes than there are addresses",
    ),
    "elements are too many": (
        {"shape": (2**62, 2), "strides": None},
        ValueError,
        "more bytes than there are",
    ),
    "strides are too large": ({"strides": (2**63,)}, ValueError, "strides .* of 64 bits"),
    "pointer is too large": ({"data": (2**63, False)}, ValueError, "has data .9223372036854775808"),
    "stream is too large": ({"stream": 2**64}, ValueError, "stream 18446744073709551616; None"),
    "typestr is a dtype": ({"typestr": np.dtype("f4")}, TypeError, "a str that numpy.dtype"),
    "typestr is nonsense": ({"typestr": "<q9"}, ValueError, "typestr '<q9'"),
    "typestr is big-endian": ({"typestr": ">i8"}, TypeError, "not in native byte order"),
    "typestr is an object": ({"typestr": "|O"}, TypeError, "both PyCUDA and CuPy support"),
    "descr is nonsense": ({"typestr": "|V8", "descr": [("a", "zz")]}, ValueError, "descr"),
    "data is an int": ({"data": 4096}, TypeError, "data 4096; a tuple"),
    "data is null": (
        {"data": (0, False)},
        ValueError,
        "data .0, False.; a tuple .pointer, read-only., the pointer an address",
    ),
    "data is read-only": ({"data": (4096, True)}, BufferError, "read-only.*hand over a copy"),
    "data is on the host": ({"data": (..., False)}, ValueError, "unknown to CUDA|host memory"),
    "strides is a list": ({"strides": [8]}, TypeError, "strides .8.; None, or a tuple"),
    "strides is too long": ({"strides": (8, 8)}, ValueError, "one for each axis"),
    "version is text": ({"version": "3"}, TypeError, "version '3'; an int from 0 to 3"),
    "version is to come": ({"version": 4}, ValueError, "version 4; an int from 0 to 3"),
    "masked": ({"mask": object()}, BufferError, "mask; neither library has masked"),
    "stream is 0": (
        {"stream": 0},
        ValueError,
        "stream 0; None .no ordering needed., 1 .the legacy",
    ),
    "stream is a bool": ({"stream": True}, TypeError, "None .* or an int handle"),
}


@BOTH
@pytest.mark.parametrize(("entries", "error", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_array_interface_is_refused(convert, entries, error, message):
    x = cupy.arange(3)
    exporter = Exporter(x)
    host = np.zeros(3)
    for key, value in entries.items():
        if value is ...:
            del exporter.interface[key]
        elif value == (..., False):
            exporter.interface[key] = (host.ctypes.data, False)
        else:
            exporter.interface[key] = value
    before = copy.copy(exporter.interface)
    with pytest.raises(error, match=message) as caught:
        convert(exporter)
    assert str(caught.value).startswith(f"{convert.__name__}: ")
    assert exporter.interface == before
    assert np.array_equal(x.get(), np.arange(3))


@pytest.mark.parametrize(
    "dtype",
    [">f4", "M8[s]", "U3", "f16", "c32", "O", "f4,U3", "f4,>i4", [("a", "M8[s]", 2)]],
    ids=str,
)
def test_a_gpuarray_of_a_dtype_that_cupy_has_not_is_refused(dtype):
    a = gpuarray.GPUArray((3,), np.complex128)
    a.dtype = np.dtype(dtype)
    with pytest.raises(TypeError, match="as_cupy: dtype .*accepted: bool, integers"):
        bridge.as_cupy(a)


@pytest.mark.parametrize("dtype", ["f4,>i4", "f16,i4", "f4,U3"])
def test_a_cupy_array_of_a_struct_that_pycuda_has_not_is_refused(dtype):
    with pytest.raises(TypeError, match="as_pycuda: dtype .*accepted: bool, integers"):
        bridge.as_pycuda(cupy.empty(3, np.dtype(dtype)))


@BOTH
def test_a_freed_pointer_is_refused(convert):
    block = drv.mem_alloc(24)
    exporter = Exporter(cupy.arange(3), data=(int(block), False))
    block.free()
    with pytest.raises(ValueError, match="unknown to CUDA; device memory that has not been freed"):
        convert(exporter)


def test_an_exporter_that_switches_the_device_changes_nothing(python):
    done = python(
        """
        import cupy, numpy as np, pycuda.driver as drv, bridge, bridge.autoinit
        from bridge import streams

        class Exporter:
            def __init__(self, array, stream):
                self.array, self.stream = array, stream
            @property
            def __cuda_array_interface__(self):
                cupy.cuda.Device(1).use()
                return {**self.array.__cuda_array_interface__, "version": 3, "stream": self.stream}

        class ByDlpack(Exporter):
            def __dlpack_device__(self):
                cupy.cuda.Device(1).use()
                return self.array.__dlpack_device__()
            def __dlpack__(self, **keywords):
                capsule = self.array.__dlpack__(**keywords)
                cupy.cuda.Device(1).use()
                return capsule

        x, stream = cupy.arange(3), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        for kind in Exporter, ByDlpack:
            for convert in bridge.as_cupy, bridge.as_pycuda:
                with cupy.cuda.Stream(non_blocking=True):
                    view = convert(kind(x, stream.ptr))
                    print(view.get(), cupy.cuda.runtime.getDevice())
                    bridge.wait_stream(stream, None)
        """,
        devices=2,
    )
    assert (done.stdout, done.stderr) == ("[0 1 2] 0\n" * 4, "")

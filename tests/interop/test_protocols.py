"""What the specifications of both protocols say, sentence by sentence, of consumer and producer.

*CAI*: CUDA Array Interface, version 3, in Numba's documentation, whose last sections say what
versions 0 to 2 left open; its `typestr` and `descr` are those of NumPy's array interface (*NumPy*).
*Spec*: DLPack, "Python Specification". *Header*: `dlpack.h` 1.1, by struct and field. *API*: the
array API standard 2024.12, by method. The bridge consumes both; GPUArrays produce them.

These sentences have their tests in `test_importing`:

- CAI, the four required entries and their types, `stream` 0, `mask`; NumPy, `descr`, as many bytes
  as in `typestr`: `BROKEN`
- CAI, `strides`, bytes to skip: `test_a_strided_...`
- CAI, `data`, 0 for zero-size arrays, anything before version 2:
  `test_an_empty_array_interface_arrives`
- CAI, `stream`, and Interface Requirements, wait for it, or ignore it where the user says so:
  `..._is_honoured_by_an_event`
- CAI, Lifetime: `test_an_array_interface_is_kept_alive`
- Spec, Semantics, the stream that it will use; API, `stream`, never 0, and -1 where the user gives
  it: `test_dlpack_is_told_...`
- Spec, Semantics, the producer makes that stream wait: `..._is_ordered_after_the_exporters_work`
- Spec, Implementation, consumed exactly once: `test_a_consumed_capsule_is_refused`
- API, Notes, again without `max_version` after a TypeError: `test_dlpack_before_version_1_...`

Not followed are, for a reason:

- API, Notes: where there are no read-only arrays, the flag is to be ignored. The bridge refuses
  such data, since nobody could protect it.
- Spec, Semantics: a BufferError for data of other devices. It is a TypeError, as for every array
  that is not in device memory.
- CAI, Interface Requirements: the exporter's stream waits for the consumer's work. When the view
  goes, that stream may have been destroyed, and CUDA does not tell; users order it (see the guide).
"""

import ctypes
import enum
import gc
import types

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from dlpack_structs import (
    CUDA,
    IS_COPIED,
    IS_PADDED,
    KINDS,
    READ_ONLY,
    ROCM,
    Old,
    Producer,
    Versioned,
    get_pointer,
    name_of,
)
from exporters import BOTH, Exporter, pointer_of
from pycuda import gpuarray

import bridge
from bridge.interop.dtypes import HOLDS_BFLOAT16


def floats(*shape):
    """Return a CuPy array 0.0, 1.0, 2.0, ... of this shape."""
    return cupy.asarray(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))


def refusal(convert, producer):
    """Return the error of a conversion, without the frames that keep the capsule."""
    try:
        convert(producer)
    except Exception as error:
        return error.with_traceback(None)
    pytest.fail("not refused")


# --- CUDA Array Interface: the bridge consumes ------------------------------------------------


@BOTH
@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("optional", [{}, {"strides": None, "mask": None, "stream": None}], ids=len)
def test_cai_all_but_four_entries_are_optional(convert, version, optional):
    """CAI, Python Interface: `strides`, `descr`, `mask`, `stream` may be missing, or None.

    CAI, Differences: version 0 has no mask, 0 to 2 no stream, and 0 and 1 say less of strides. In
    version 0 (Numba 0.42), it is any mapping, a dict since then.
    """
    x = floats(3, 4)
    exporter = Exporter(x, version=version)
    del exporter.interface["strides"]
    exporter.interface.update(optional)
    if version == 0:
        exporter.interface = types.MappingProxyType(exporter.interface)
    view = convert(exporter)
    assert (pointer_of(view), view.strides) == (x.data.ptr, x.strides)
    assert np.array_equal(view.get(), x.get())


@BOTH
@pytest.mark.parametrize(
    "typestr", ["|b1", "|i1", "<i2", "|u1", "<u8", "<f2", "<c8", "|V1", "|V3", "<t8", "<m8", "|S4"]
)
def test_cai_typestr(convert, typestr):
    """CAI, `typestr`; NumPy, `typestr`: order of the bytes, kind, number of bytes."""
    exporter = Exporter(cupy.zeros(32, np.int8), typestr=typestr, shape=(2,), strides=None)
    if typestr in ("<t8", "<m8", "|S4"):  # of the table, too, but neither library holds them
        assert type(refusal(convert, exporter)) in (TypeError, ValueError)
    else:
        assert convert(exporter).dtype.str == typestr


DESCRS = {
    "default": ("<f4", [("", "<f4")]),
    "nested": ("|V8", [("i", "<i4"), ("sub", [("s", "<u2"), ("b", "|u1"), ("c", "|u1")])]),
    "repeated": ("|V20", [("i", "<i4"), ("data", "<f8", (2,))]),
    "padded": ("|V16", [("i", "<i4"), ("", "|V4"), ("d", "<f8")]),
    "large": ("|V300", [("a", "<f4", (70,)), ("b", "<i4", (5,))]),
    "full name": ("|V8", [(("the real part", "re"), "<f4"), (("the rest", "im"), "<f4")]),
}


@BOTH
@pytest.mark.parametrize(("typestr", "descr"), DESCRS.values(), ids=DESCRS)
def test_cai_descr(convert, typestr, descr):
    """CAI, `descr`; NumPy, `descr`: names, nested lists, shapes; Type description examples."""
    block = cupy.zeros(600, np.int8)
    view = convert(Exporter(block, typestr=typestr, descr=descr, shape=(2,), strides=None))
    assert view.dtype == np.dtype(descr if len(descr) > 1 else typestr)


@BOTH
@pytest.mark.parametrize("memory", ["managed", "page-locked"])
def test_cai_data_is_what_the_device_can_access(convert, memory):
    """CAI, `data`: accessible from the device, which memory beside the device's own can be."""
    managed = cupy.cuda.malloc_managed(16)
    locked = drv.pagelocked_zeros(4, np.float32, mem_flags=drv.host_alloc_flags.DEVICEMAP)
    pointer = managed.ptr if memory == "managed" else locked.base.get_device_pointer()
    assert pointer_of(convert(Exporter(floats(4), data=(pointer, False)))) == pointer


# --- what a GPUArray produces; `test_exporting` has more ----------------------------------


@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[1::2, ::-1], np.s_[1:1], np.s_[1, 1]], ids=str)
def test_cai_produced_entries(part):
    """CAI, Python Interface: a dict; `shape`, `typestr`, `version`, `mask`; `data`, 0 for zero-size
    arrays; `strides`, bytes from element to element, or None where C-contiguous.
    """
    x = floats(4, 6)[part]
    found = bridge.as_pycuda(x).__cuda_array_interface__
    assert type(found) is dict
    assert (found["shape"], found["typestr"], found["version"]) == (x.shape, "<f4", 3)
    assert found["data"] == (x.data.ptr if x.size else 0, False)
    assert [type(value) for value in found["data"]] == [int, bool]
    assert found.get("mask") is None
    assert found["strides"] == x.strides or (x.flags.c_contiguous and found["strides"] is None)


@KINDS
def test_dlpack_produced_tensor(kind):
    """Header, DLTensor: pointer, device, dtype, shape, and strides in elements; no flag is set."""
    x = floats(4, 6)[1::2, ::3]
    capsule = bridge.as_pycuda(x).__dlpack__(max_version=(1, 0) if kind is Versioned else None)
    managed = kind.from_address(get_pointer(id(capsule), kind.name))
    tensor = managed.tensor
    assert tensor.data + tensor.byte_offset == x.data.ptr
    assert (tensor.device_type, tensor.device_id) == (CUDA, 0)
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    assert tuple(tensor.shape[: tensor.ndim]) == x.shape
    assert tuple(4 * stride for stride in tensor.strides[: tensor.ndim]) == x.strides
    assert kind is Old or (managed.major, managed.flags) == (1, 0)


# --- DLPack: the bridge consumes --------------------------------------------------------------


@BOTH
@KINDS
def test_dlpack_the_tensor_belongs_to_the_consumer(convert, kind):
    """Spec, Implementation: it renames the capsule, with `_versioned` since 1.0, and what it makes
    to own the tensor calls the deleter once, when it goes.
    """
    capsules = []

    class Keeps(Producer):
        def __dlpack__(self, **keywords):
            capsules.append(super().__dlpack__(**keywords))
            return capsules[0]

    producer = Keeps(floats(4), kind)
    view = convert(producer)
    assert name_of(capsules[0]) == b"used_" + kind.name
    part = view[1:]
    del view
    gc.collect()
    assert producer.deleted == 0
    assert part.size == 3
    del part, capsules[:]
    gc.collect()
    assert producer.deleted == 1


REFUSED = {
    "opaque handle": ({"code": 3, "bits": 64}, TypeError, "dtype"),
    "float of 8 bits": ({"code": 2, "bits": 8}, TypeError, "float8"),
    "vectors": ({"lanes": 4}, ValueError, "lanes=4"),
    "vectors, old": ({"lanes": 4, "kind": Old}, ValueError, "lanes=4"),
    "host data": ({"device_type": 1}, RuntimeError, "CUDA"),
    "read-only": ({"flags": READ_ONLY}, BufferError, "a view is refused: hand over a copy"),
    "a copy": ({"flags": IS_COPIED}, BufferError, "exports a copy of it"),
    # What would be refused for other reasons, too, if it were read.
    "version 0": ({"major": 0, "flags": READ_ONLY, "device_type": 1}, BufferError, "DLPack 0; ver"),
    "version 2": ({"major": 2, "flags": READ_ONLY, "device_type": 1}, BufferError, "DLPack 2; ver"),
}


@BOTH
@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_dlpack_what_is_refused_is_deleted_once(convert, changes, error, message):
    """Header, DLDataType: unexpected codes, bits, lanes; DLPackVersion: of another major version
    nothing else is read, and the deleter is called; API, `max_version`: the consumer verifies it.

    Spec, Semantics, and API, `copy`: a copy is flagged, and a view is what the bridge promises.
    """
    producer = Producer(floats(4), **changes)
    found = refusal(convert, producer)
    assert isinstance(found, error)
    assert message in str(found)
    del found
    gc.collect()
    assert producer.deleted == 1


@BOTH
def test_dlpack_bfloat16(convert, package):
    """Header, DLDataTypeCode, `kDLBfloat`: CuPy reads it as the dtype of ml_dtypes."""
    bfloat16 = np.dtype(package("ml_dtypes").bfloat16)
    producer = Producer(cupy.asarray(np.full(4, 0x3F80, np.uint16)), code=4)
    if not HOLDS_BFLOAT16:
        with pytest.raises(NotImplementedError, match="CuPy does not support bfloat16"):
            convert(producer)
        with pytest.raises(TypeError, match="bfloat16 is not one that both PyCUDA and"):
            bridge.as_cupy(gpuarray.GPUArray((4,), bfloat16))
        return
    view = convert(producer)
    assert view.dtype == bfloat16
    assert (bridge.as_cupy(bridge.as_pycuda(bridge.as_cupy(view))).get().astype(float) == 1).all()


LAYOUTS = {
    "byte_offset": ({"byte_offset": 8}, 8, (2, 3), (12, 4)),
    "no strides": ({"strides": None}, 0, (2, 3), (12, 4)),
    "elements, not bytes": ({"strides": (1, 2)}, 0, (2, 3), (4, 8)),
    "backwards": ({"strides": (3, -1), "byte_offset": 8}, 8, (2, 3), (12, -4)),
    "a newer minor version": ({"minor": 9, "flags": IS_PADDED}, 0, (2, 3), (12, 4)),
    "no deleter": ({"deleter": None}, 0, (2, 3), (12, 4)),
    "0-d": ({"ndim": 0, "shape": None, "strides": None}, 0, (), ()),
}


@BOTH
@KINDS
@pytest.mark.parametrize(("changes", "offset", "shape", "strides"), LAYOUTS.values(), ids=LAYOUTS)
def test_dlpack_layout(convert, kind, changes, offset, shape, strides):
    """Header, DLTensor, `byte_offset`, `strides`, `ndim`; Spec, Implementation: NULL strides.

    Header, DLManagedTensor(Versioned), `deleter`: it can be NULL.

    Header, DLPackVersion: the same in newer minor versions; a flag of narrow types is not ours.
    """
    x = floats(4, 3)
    changes = dict(changes)
    if changes.get("strides"):
        changes["strides"] = (ctypes.c_int64 * 2)(*changes["strides"])
    producer = Producer(x[:2], kind, **changes)
    view = convert(producer)
    assert (pointer_of(view), view.shape, view.strides) == (x.data.ptr + offset, shape, strides)
    expected = np.ndarray(shape, x.dtype, x.get().tobytes(), offset, strides)
    assert np.array_equal(bridge.as_cupy(view).get(), expected)


@BOTH
@KINDS
def test_dlpack_zero_size(convert, kind):
    """Header, DLTensor, `data`; Spec, Implementation: NULL where there are no elements."""
    view = convert(Producer(floats(2, 0, 3), kind, data=None))
    assert (view.shape, view.size) == ((2, 0, 3), 0)


@BOTH
@KINDS
@pytest.mark.parametrize("char", "bhilBHILefdFD?", ids=lambda char: np.dtype(char).name)
def test_dlpack_dtype(convert, kind, char):
    """Header, DLDataTypeCode and DLDataType: codes, and bits of the whole element."""
    x = cupy.zeros(3, char)
    view = convert(Producer(x, kind))
    assert (view.dtype, view.shape, view.strides) == (x.dtype, x.shape, x.strides)


Device = enum.Enum("Device", {"CUDA": CUDA, "ROCM": ROCM})


@BOTH
@pytest.mark.parametrize("kind", [1, 3, ROCM, Device.ROCM])
def test_dlpack_of_other_devices_is_refused_unasked(convert, kind):
    """API, `__dlpack_device__`: the types, of any Enum, which need not equal its number."""
    producer = Producer(floats(3), Old)
    producer.device = (Device.CUDA, 0)
    assert pointer_of(convert(producer)) == producer.array.data.ptr
    producer.asked.clear()
    producer.device = (kind, 0)
    assert type(refusal(convert, producer)) is TypeError
    assert producer.asked == []


def test_dlpack_managed_memory_has_device_id_0_everywhere(run):
    """Header, DLDevice, `device_id`: 0 for managed memory; Spec, Warning: ask the pointer."""
    script = """
        class Producer:
            __dlpack_device__ = lambda self: (13, 0)
            __dlpack__ = lambda self, **keywords: x.__dlpack__(**keywords)

        with bridge.primary_context(1):
            x = cupy.ndarray(4, memptr=cupy.cuda.malloc_managed(32))
            print(bridge.as_cupy(Producer()).data.ptr == x.data.ptr)
        with bridge.primary_context(0):
            try:
                bridge.as_cupy(Producer())
            except bridge.ContextError as error:
                print(error)
    """
    out = run(script, start="", devices=2)
    assert out.startswith("True\nas_cupy: the array is on device 1, but device 0 is current")


@KINDS
def test_dlpack_the_consumers_version_is_told_and_not_trusted(kind):
    """API, `max_version`: the consumer's highest; the capsule may be of another version.

    API, `dl_device`: left out, the data stays where it is; `copy`: left out, it is reused.
    """
    producer = Producer(floats(3), kind)
    bridge.as_cupy(producer)
    assert producer.asked == [(1, (1, 0), None, None)]


ERRORS = [BufferError, AttributeError, TypeError]


@BOTH
@pytest.mark.parametrize("method", ["__dlpack__", "__dlpack_device__"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_dlpack_errors_of_the_producer_pass(convert, method, error):
    """API, `from_dlpack`, Raises: what either method raises is passed on."""
    raised = error("the producer says no")

    def refuse(self, **keywords):
        raise raised

    producer = type("Refuses", (Producer,), {method: refuse})(floats(3))
    assert refusal(convert, producer) is raised

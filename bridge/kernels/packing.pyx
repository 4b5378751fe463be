# cython: auto_pickle=False
"""A kernel's parameters, and the packing of arguments for them.

Packing is a loop over the parameters.  It packs the usual argument of each type.  Other arguments
are converted in Python (`bridge.kernels.arguments`), and packed by `struct`.
"""

from libc.math cimport isinf
from libc.stdint cimport int64_t, intptr_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cpython.ref cimport Py_TYPE, PyObject

from bridge.interop.contexts cimport is_in_primary_context, shared_device
from bridge.interop.driver cimport Handle, cuFuncGetParamInfo
from bridge.interop.fields cimport *
from bridge.interop.layouts cimport is_contiguous
from bridge.interop.views cimport MemoryRecord, View, recorded_memory

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda.gpuarray import GPUArray

from ..interop.dtypes import PLAIN_DTYPES
from ..interop.memory_kinds import HOLDERS
from .arguments import check_layouts, is_of_pycuda, pack_argument

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef type ndarray = cupy.ndarray, NUMPYS_STRUCT = np.void

cdef frozenset holders = frozenset(HOLDERS)

cdef enum:
    EXACT = 1 << 24  # every int up to here is exact as a float

# How a number of each dtype is packed, and the Python type that is packed there.
cdef dict NUMBERS = {
    dtype: {"i": (SIGNED, int), "u": (UNSIGNED, int), "f": (FLOAT, float), "b": (BOOL, bool)}[
        dtype.kind
    ]
    for dtype in PLAIN_DTYPES if dtype.kind in "iub" or dtype.char in "fd"
}

# NumPy's scalars whose value stands behind the object's head (arrayscalars.h): memcpy is a tenth of
# the time that a conversion takes.
for one in PLAIN_DTYPES:
    value = one.type(1)
    if (<char *> <PyObject *> value + sizeof(PyObject))[:one.itemsize] != value.tobytes():
        raise ImportError(f"bridge: NumPy {np.__version__} has another layout of {one.name}")


def parameter_slots(intptr_t function, count):
    """Return the offset and size, in bytes, of each parameter of a CUfunction.

    If `count` is None, ask until CUDA knows no more, which compute-sanitizer reports as an error.
    """
    cdef size_t offset, size
    slots = []
    while count is None or len(slots) < count:
        if cuFuncGetParamInfo(<Handle> function, len(slots), &offset, &size):
            break
        slots.append((offset, size))
    return slots


cdef class Parameters:
    """The types and offsets of a kernel's parameters.

    Each is a `bridge.compiler.signature.Parameter`.  In prepared calls, an int may be an address.
    """

    def __cinit__(self, name, parameters, bint is_prepared=False):
        cdef Slot *slot
        self.name, self.each, self.is_prepared = name, tuple(parameters), is_prepared
        self.checked = {}
        self.slots = <Slot *> calloc(len(parameters) + 1, sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError
        for index, parameter in enumerate(parameters):
            slot = &self.slots[index]
            dtype, python = parameter.dtype, int
            slot.kind = POINTER if parameter.is_pointer and not parameter.is_function else BYTES
            if not parameter.is_pointer and dtype in NUMBERS:
                slot.kind, python = NUMBERS[dtype]
            slot.offset, slot.size = parameter.offset, parameter.size
            slot.remainder = parameter.alignment - 1
            slot.dtype = <PyObject *> dtype
            slot.may_be_pointer = (
                parameter.is_pointer is not False and not parameter.is_function
                and slot.size == sizeof(void *)
            )
            if not slot.may_be_pointer and dtype in PLAIN_DTYPES:
                scalar = dtype.type
                slot.scalar = <PyObject *> scalar
            if is_prepared or slot.kind != POINTER:
                slot.python = <PyObject *> python
            self.size = slot.offset + slot.size
        if self.size > MOST_BYTES:
            raise ValueError(f"{name}: parameters of {self.size} bytes; CUDA allows {MOST_BYTES}")

    def __dealloc__(self):
        free(self.slots)

    cdef list pack(
        self, PyObject **args, Py_ssize_t count, PackedArguments *packed, mismatch, set warned
    ):
        """Pack the arguments; return what must be kept until the kernel is queued, or None.

        `warned` has the numbers of a kernel's arguments that `check_layouts` has warned of; None if
        the kernel is not known.
        """
        cdef list kept = None
        cdef Py_ssize_t index
        cdef Slot *slot
        cdef bytes data
        if count != len(self.each):
            given = "1 argument" if count == 1 else f"{count} arguments"
            raise TypeError(f"{self.name}: {given} for {len(self.each)} parameters: {self}")
        packed.size = self.size
        packed.has_pycuda_memory = packed.has_other_arrays = False
        packed.has_handlers = packed.has_host_memory = False
        packed.first_c = packed.first_fortran = packed.fortran_arrays = 0
        for index in range(count):
            slot = &self.slots[index]
            value = <object> args[index]
            packed.index = index + 1
            if pack_usual(slot, value, packed):
                continue
            of_pycuda = is_of_pycuda(value)
            if of_pycuda:
                note_pycuda(packed)
                packed.has_handlers = packed.has_handlers or isinstance(value, drv.ArgumentHandler)
            parameter = self.each[index]
            data, array = pack_argument(
                value, parameter, f"{self.name}: argument {index}", packed.device_id,
                packed.strided, self.is_prepared, mismatch
            )
            if not of_pycuda and (array is not None or hasattr(value, "ptr")):  # x.data
                packed.has_other_arrays = True
            if array is not None:
                kept = [array] if kept is None else kept + [array]  # an exporter's may be new
                packed.has_host_memory = packed.has_host_memory or isinstance(value, np.ndarray)
                note_contiguity(array.flags.c_contiguous, array.flags.f_contiguous, packed)
            memcpy(packed.buffer + slot.offset, <char *> data, slot.size)
            if parameter.check_fields is not None:
                dtype = getattr(value if array is None else array, "dtype", None)
                if is_checked(dtype, parameter):
                    self.checked[index] = dtype
                    slot.checked = <PyObject *> dtype
        if packed.fortran_arrays and not packed.strided:
            if packed.first_c or packed.fortran_arrays == 1:
                mismatch = None if packed.has_other_arrays else mismatch
                check_layouts(
                    self, packed.first_c - 1, packed.first_fortran - 1,
                    set() if warned is None else warned, mismatch
                )
        return kept

    def __str__(self):
        """Show the parameters; show the size of one whose type is not known."""
        shown = [
            one.text if one.is_pointer or one.dtype is not None
            else f"{one.text} ({one.size} bytes)" if one.text else f"{one.size} bytes"
            for one in self.each
        ]
        return f"{self.name}({', '.join(shown)})"


cdef bint is_checked(dtype, parameter) except -1:
    """Tell whether a structured dtype has been found to be that of a struct."""
    size = parameter.dtype.itemsize if parameter.is_pointer else parameter.size
    return (
        isinstance(dtype, np.dtype) and dtype.fields is not None and dtype.itemsize == size
        and parameter.check_fields(dtype) is None
    )


cdef int note_pycuda(PackedArguments *packed) except -1:
    if not packed.has_pycuda_memory:
        shared_device()  # raises if PyCUDA works in another context
        packed.has_pycuda_memory = True
    return 0


cdef bint note_contiguity(bint is_c, bint is_fortran, PackedArguments *packed) noexcept:
    """Record in which order an array is contiguous; return False if it is in neither."""
    if is_c != is_fortran:  # otherwise it has one axis, and no order
        if is_c and not packed.first_c:
            packed.first_c = packed.index
        elif is_fortran:
            packed.fortran_arrays += 1
            packed.first_fortran = packed.first_fortran or packed.index
    return is_c or is_fortran


cdef bint pack_usual(Slot *slot, value, PackedArguments *packed) except -1:
    """Pack a usual argument; return False for any other."""
    cdef PyObject *kind = <PyObject *> Py_TYPE(value)
    cdef char *at = packed.buffer + slot.offset
    cdef int64_t number, limit
    cdef int overflow = 0
    if kind is slot.scalar:
        memcpy(at, <char *> <PyObject *> value + sizeof(PyObject), slot.size)
        return True
    if slot.kind == BYTES and kind is <PyObject *> NUMPYS_STRUCT:
        dtype = value.dtype
        if <PyObject *> dtype is slot.checked:
            data = value.tobytes()
            memcpy(at, <char *> data, slot.size)
            return True
    if slot.kind == BYTES or (slot.kind == POINTER and kind is not slot.python):
        return slot.may_be_pointer and pack_usual_pointer(slot, value, at, packed)
    if slot.kind == FLOAT and kind is <PyObject *> int:
        if not -EXACT <= value <= EXACT:
            return False
    elif kind is not slot.python:
        return False
    if slot.kind == FLOAT:
        return pack_float(value, at, slot.size)
    number = bool(value) if slot.kind == BOOL else PyLong_AsLongLongAndOverflow(value, &overflow)
    if slot.size < 8:
        limit = <int64_t> 1 << (8 * slot.size - (slot.kind == SIGNED))
        if not -limit <= number < limit:
            return False
    if overflow or (number < 0 and slot.kind != SIGNED):
        return False
    if slot.kind == POINTER:  # a GPUArray's ``gpudata``, in a prepared call
        packed.has_pycuda_memory = True
    memcpy(at, &number, slot.size)  # its low bytes: NVIDIA's hosts are little-endian
    return True


cdef bint pack_float(double real, char *at, Py_ssize_t size) noexcept:
    """Pack a float or a double; return False if it does not fit."""
    cdef float narrow = <float> real
    cdef bint is_narrow = size == sizeof(float)
    if is_narrow and isinf(narrow) and not isinf(real):
        return False
    memcpy(at, <void *> &narrow if is_narrow else <void *> &real, size)
    return True


cdef bint pack_usual_pointer(Slot *slot, value, char *at, PackedArguments *packed) except -1:
    """Pack a contiguous array of the parameter's dtype, or PyCUDA's memory."""
    cdef type kind = type(value)
    cdef uint64_t pointer = 0
    cdef int device_id
    cdef dict attributes
    if kind is ndarray:
        if not is_of_dtype(slot, read(array_dtype, value)):
            return False
        if not note_contiguity(read(is_c_contiguous, value), read(is_f_contiguous, value), packed):
            return False
        data = read(array_data, value)
        device_id = read(data_device, data)  # to compare the object would take three times as long
        if device_id != packed.device_id:
            return False
        pointer = read(data_pointer, data)
        packed.has_other_arrays = True
    elif kind is GPUArray:
        attributes = value.__dict__
        dtype = attributes["dtype"]
        if not is_of_dtype(slot, dtype):
            return False
        if not note_layout(attributes["shape"], attributes["strides"], dtype, packed):
            return False
        value = attributes.get("gpudata")
        pointer = known_address(attributes, value, packed.device_id)
        if not pointer and not read_address(value, &pointer, packed):
            return False
        note_pycuda(packed)
    elif kind is np.uintp:
        pointer = int(value)
    elif kind in holders and read_address(value, &pointer, packed):
        note_pycuda(packed)
    else:
        return False
    if pointer & slot.remainder:
        return False
    memcpy(at, &pointer, sizeof(pointer))
    return True


cdef bint is_of_dtype(Slot *slot, found) noexcept:
    """Tell whether an array has the dtype of a parameter, which None leaves open."""
    cdef PyObject *dtype = <PyObject *> found
    return dtype is slot.dtype or slot.dtype is <PyObject *> None or dtype is slot.checked


cdef bint read_address(memory, uint64_t *pointer, PackedArguments *packed) except -1:
    """Read the address of PyCUDA's memory; return False unless it is on the device."""
    if memory is None or not 0 <= (address := int(memory)) < 1 << 64:
        return False
    pointer[0] = address
    return is_in_primary_context(<intptr_t> pointer[0], packed.device_id)


cdef bint note_layout(tuple shape, tuple strides, dtype, PackedArguments *packed) except -1:
    cdef Py_ssize_t step = dtype.itemsize
    if len(strides) == 1 and strides[0] == step:
        return True
    return note_contiguity(
        is_contiguous(shape, strides, step, True), is_contiguous(shape, strides, step, False), packed
    )


cdef uint64_t known_address(dict attributes, gpudata, int device_id) except? 0:
    """Return the address of a GPUArray on a device, if `as_cupy` or `as_pycuda` has stored it."""
    cdef MemoryRecord memory = recorded_memory(attributes)
    if memory is not None:
        return memory.pointer if memory.device_id == device_id else 0
    base = attributes["base"]
    viewed = (<View> base).base if type(base) is View else None
    if type(viewed) is not ndarray or (<View> base).device_id != device_id:
        return 0
    address = read(data_pointer, read(array_data, viewed))
    return address if address == gpudata else 0

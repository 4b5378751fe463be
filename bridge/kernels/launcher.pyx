# cython: auto_pickle=False
"""Launches: pack the arguments, order the streams, and call CUDA.

Packing is a loop over the kernel's parameters.  It packs the usual argument of each type.  Other
arguments are converted in Python (`bridge.kernels.arguments`), and packed by `struct`.
"""

cimport cython
from libc.math cimport isinf
from libc.stdint cimport int64_t, intptr_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cpython.ref cimport Py_TYPE, PyObject

from bridge._core cimport (
    View, array_data, array_dtype, data_device, data_pointer, is_c_contiguous, is_f_contiguous, read,
    views_are_alive,
)
from bridge._driver cimport (
    Handle, MOST_DEVICES, Stream, cuda_device, current_device, find, is_at_home,
)
from bridge.streams cimport PYCUDA, current_stream, handle_of, order

import functools

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import driver, runtime
from pycuda.gpuarray import GPUArray

from .arguments import HOLDERS, is_of_pycuda, pack_argument
from ..context import failure
from ..interface import contiguity
from .refusals import (
    REFUSALS, check_capture, check_order, explain, extent, no_texture_references, shared_bytes,
)
from ..streams import seconds_between

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef int (*cuLaunchKernel)(
    Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
    void **
) noexcept nogil
cdef int (*cuFuncGetParamInfo)(Handle, size_t, size_t *, size_t *) noexcept nogil
find("cuLaunchKernel", &cuLaunchKernel)
find("cuFuncGetParamInfo", &cuFuncGetParamInfo)

cdef type ndarray = cupy.ndarray

cdef frozenset holders = frozenset(HOLDERS)
cdef tuple PLAIN = (np.generic, int, float, complex, type(None), drv.ArgumentHandler)

# ---- arguments -----------------------------------------------------------------------------------

cdef enum:
    BUFFER_POINTER = 1  # CU_LAUNCH_PARAM_BUFFER_POINTER
    BUFFER_SIZE = 2
    EXACT = 1 << 24  # every int up to here is exact as a float
    MOST_BYTES = 32764  # in all: CUDA Programming Guide, "__global__ Function Parameters"

cdef enum Kind:
    POINTER, SIGNED, UNSIGNED, BOOL, FLOAT, BYTES

# For numbers, by `struct` code: the kind, and the Python type.
cdef dict NUMBERS = {
    **dict.fromkeys("bhilq", (SIGNED, int)),
    **dict.fromkeys("BHILQ", (UNSIGNED, int)),
    **dict.fromkeys("fd", (FLOAT, float)),
    "?": (BOOL, bool),
}

cdef struct Slot:  # one parameter
    Kind kind
    Py_ssize_t offset, size  # bytes
    PyObject *dtype  # of a pointer's target, or None
    PyObject *type  # NumPy's scalar type, or None; NULL: pointers are accepted
    PyObject *python  # the Python type that is packed here
    uint64_t remainder  # the bits that are 0 in every address that the kernel can read

cdef struct Call:
    int device_id
    Stream stream
    bint strided
    bint of_pycuda  # the arguments include PyCUDA's memory
    bint of_others  # and other libraries' arrays
    bint handlers  # and pycuda.driver.In, Out or InOut
    bint lenient  # a mismatch of PyCUDA's own arrays is a warning
    Py_ssize_t index  # of the argument, from 1
    Py_ssize_t in_c_order, in_fortran_order  # the first such argument; 0: none
    size_t size  # of the parameters, bytes
    char packed[MOST_BYTES]


def parameter_slots(intptr_t function):
    """Return the offset and size, in bytes, of each parameter of a CUfunction."""
    cdef size_t offset, size
    slots = []
    while not cuFuncGetParamInfo(<Handle> function, len(slots), &offset, &size):
        slots.append((offset, size))
    return slots


cdef class Table:
    """The types and offsets of a kernel's parameters.

    `parameters` come from `bridge.kernels.signature`.  In `loose` calls, an int may be an address.
    """

    cdef readonly str name
    cdef readonly tuple parameters
    cdef bint loose
    cdef Slot *slots
    cdef Py_ssize_t size

    def __cinit__(self, name, parameters, bint loose=False):
        cdef Slot *slot
        self.name, self.parameters, self.loose = name, tuple(parameters), loose
        self.slots = <Slot *> calloc(len(parameters) + 1, sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError
        for index, parameter in enumerate(parameters):
            slot = &self.slots[index]
            code, dtype, python = parameter.code(), parameter.dtype, int
            is_address = parameter.is_pointer and not parameter.is_function
            slot.kind = POINTER if is_address and parameter.size == 8 else BYTES
            if code in NUMBERS and slot.kind != POINTER:
                slot.kind, python = NUMBERS[code]
            slot.offset, slot.size = parameter.offset, parameter.size
            slot.remainder = parameter.alignment - 1
            slot.dtype = <PyObject *> dtype
            if (
                parameter.is_pointer is False or parameter.is_function
                or slot.size != sizeof(void *)
            ):
                number = getattr(dtype, "type", None)
                slot.type = <PyObject *> number
            if loose or slot.kind != POINTER:
                slot.python = <PyObject *> python
            self.size = slot.offset + slot.size
        if self.size > MOST_BYTES:
            raise ValueError(f"{name}: parameters of {self.size} bytes; CUDA allows {MOST_BYTES}")

    def __dealloc__(self):
        free(self.slots)

    cdef int pack(self, tuple args, Call *call) except -1:
        cdef Py_ssize_t index
        cdef Slot *slot
        cdef bytes packed
        if len(args) != len(self.parameters):
            given = "1 argument" if len(args) == 1 else f"{len(args)} arguments"
            raise TypeError(f"{self.name}: {given} for {len(self.parameters)} parameters: {self}")
        call.size = self.size
        call.in_c_order = call.in_fortran_order = 0
        for index in range(len(args)):
            slot = &self.slots[index]
            value = args[index]
            call.index = index + 1
            if put(slot, value, call):
                continue
            if is_of_pycuda(value):
                note_pycuda(call)
                call.handlers = call.handlers or isinstance(value, drv.ArgumentHandler)
            call.of_others = call.of_others or not isinstance(value, PLAIN)
            packed, target = pack_argument(
                value, self.parameters[index], f"{self.name}: argument {index}", call.device_id,
                call.strided, self.loose, call.lenient
            )
            if target is not None:
                note_order(target.is_c, target.is_fortran, call)
            memcpy(call.packed + slot.offset, <char *> packed, slot.size)
        if call.in_c_order and call.in_fortran_order and not call.strided:
            check_order(
                self, call.in_c_order - 1, call.in_fortran_order - 1,
                call.lenient and not call.of_others
            )
        return 0

    def __str__(self):
        """Show the parameters; show the size of one whose type is not known."""
        shown = [
            one.text if one.is_pointer or one.dtype is not None
            else f"{one.text} ({one.size} bytes)" if one.text else f"{one.size} bytes"
            for one in self.parameters
        ]
        return f"{self.name}({', '.join(shown)})"


cdef int note_pycuda(Call *call) except -1:
    if not call.of_pycuda:
        current_device()  # raises if PyCUDA works in another context
        call.of_pycuda = True
    return 0


cdef bint note_order(bint is_c, bint is_fortran, Call *call) noexcept:
    """Record in which order an array is contiguous; return False if it is in neither."""
    if is_c != is_fortran:  # otherwise it has one axis, and no order
        if is_c and not call.in_c_order:
            call.in_c_order = call.index
        elif is_fortran and not call.in_fortran_order:
            call.in_fortran_order = call.index
    return is_c or is_fortran


cdef bint put(Slot *slot, value, Call *call) except -1:
    """Pack a usual argument; return False for any other."""
    cdef PyObject *kind = <PyObject *> Py_TYPE(value)
    cdef char *at = call.packed + slot.offset
    cdef int64_t number, limit
    cdef double real
    cdef float narrow
    cdef bint is_narrow = slot.size == sizeof(float)
    cdef int overflow = 0
    if slot.kind == BYTES or (slot.kind == POINTER and kind is not slot.python):
        return slot.type is NULL and put_pointer(slot, value, at, call)
    if slot.kind == FLOAT and kind is <PyObject *> int:
        if not -EXACT <= value <= EXACT:
            return False
    elif slot.kind != POINTER and kind is not slot.type and kind is not slot.python:
        return False
    if slot.kind == FLOAT:
        real = value
        narrow = <float> real
        if is_narrow and isinf(narrow) and not isinf(real):
            return False
        memcpy(at, <void *> &narrow if is_narrow else <void *> &real, slot.size)
        return True
    number = bool(value) if slot.kind == BOOL else PyLong_AsLongLongAndOverflow(value, &overflow)
    if slot.size < 8:
        limit = <int64_t> 1 << (8 * slot.size - (slot.kind == SIGNED))
        if not -limit <= number < limit:
            return False
    if overflow or (number < 0 and slot.kind != SIGNED):
        return False
    if slot.kind == POINTER:  # a GPUArray's ``gpudata``, in a prepared call
        call.of_pycuda = True
    memcpy(at, &number, slot.size)  # its low bytes: NVIDIA's hosts are little-endian
    return True


cdef bint put_pointer(Slot *slot, value, char *at, Call *call) except -1:
    """Pack a contiguous array of the parameter's dtype, or PyCUDA's memory."""
    cdef type kind = type(value)
    cdef uint64_t pointer = 0
    cdef dict attributes
    if kind is ndarray:
        if not is_of_dtype(slot.dtype, read(array_dtype, value)):
            return False
        if not note_order(read(is_c_contiguous, value), read(is_f_contiguous, value), call):
            return False
        data = read(array_data, value)
        if read(data_device, data) != call.device_id:
            return False
        pointer = read(data_pointer, data)
        call.of_others = True
    elif kind is GPUArray:
        attributes = value.__dict__
        if not is_of_dtype(slot.dtype, attributes["dtype"]):
            return False
        if not is_contiguous(attributes["shape"], attributes["strides"], attributes["dtype"], call):
            return False
        value = attributes.get("gpudata")
        pointer = known_address(attributes, value, call.device_id)
        if not pointer and not read_address(value, &pointer, call):
            return False
        note_pycuda(call)
    elif kind in holders and read_address(value, &pointer, call):
        note_pycuda(call)
    else:
        return False
    if pointer & slot.remainder:
        return False
    memcpy(at, &pointer, sizeof(pointer))
    return True


cdef bint is_of_dtype(PyObject *wanted, found) except -1:
    """Tell whether an array has the dtype of a parameter, which None leaves open."""
    if <PyObject *> found is wanted or wanted is <PyObject *> None:
        return True
    # Structs, which the compiler reports as bytes.
    return (
        (<object> wanted).char == "V" and found.char == "V"
        and (<object> wanted).fields is None and (<object> wanted).itemsize == found.itemsize
    )


cdef bint read_address(memory, uint64_t *pointer, Call *call) except -1:
    """Read the address of PyCUDA's memory; return False unless it is on the device."""
    if memory is None or not 0 <= (address := int(memory)) < 1 << 64:
        return False
    pointer[0] = address
    return is_at_home(<intptr_t> pointer[0], call.device_id)


cdef bint is_contiguous(tuple shape, tuple strides, dtype, Call *call) except -1:
    cdef Py_ssize_t step = dtype.itemsize
    if len(strides) == 1 and strides[0] == step:
        return True
    is_c, is_fortran = contiguity(shape, strides, step)
    return note_order(is_c, is_fortran, call)


cdef uint64_t known_address(dict attributes, gpudata, int device_id) except? 0:
    """Return the address of a GPUArray on a device, if `as_cupy` or `as_pycuda` has stored it."""
    cdef View memory = attributes.get("_bridge_memory")
    if memory is not None:
        is_known = memory.device_id == device_id and memory.gpudata is gpudata
        return memory.pointer if is_known else 0
    base = attributes["base"]
    source = (<View> base).source if type(base) is View else None
    if type(source) is not ndarray or (<View> base).device_id != device_id:
        return 0
    address = read(data_pointer, read(array_data, source))
    return address if address == gpudata else 0

# ---- launches ------------------------------------------------------------------------------------


cdef class Launcher:
    """The base class of kernels, e.g. of `bridge.kernels.function.Function`.

    A subclass has four methods.  ``_load(device_id)`` returns the CUfunction on the current device.
    ``_allow(shared, device_id)`` raises the kernel's limit of shared memory.  ``_table_for(args)``
    returns the table of a call, and ``_prepared_table()`` that of prepared calls.
    """

    cdef public str name
    cdef public Table _table, _prepared  # of calls, and of prepared calls
    cdef public bint overlaps  # launches are PyCUDA's own as long as CuPy views no memory
    cdef public bint lenient  # a mismatch of PyCUDA's own arrays is a warning
    cdef bint of_all  # a stream that is given is not the only one that uses PyCUDA's memory
    cdef Handle handles[MOST_DEVICES]

    def __call__(
        self, *args, block=None, grid=(1, 1), shared=0, stream=None, texrefs=(),
        bint time_kernel=False, bint strided=False, **unknown,
    ):
        """Launch the kernel as if on CuPy's current stream.

        Parameters
        ----------
        *args
            As in `bridge.launch`.  If the compiler reports a parameter's type (``repr`` shows it),
            other dtypes and widths raise, and Python numbers are converted.
        block, grid, shared, strided
            As in `bridge.launch`.  `shared` may be up to the device's limit.
        stream : pycuda.driver.Stream, cupy.cuda.Stream or any ``__cuda_stream__``, optional
            The stream to launch on; CuPy's current stream if omitted.
        time_kernel : bool
            Wait for the kernel, and return its time in seconds (a float).  Otherwise return None.

        Raises
        ------
        TypeError, OverflowError
            If an argument does not match or fit its parameter, or the number of arguments is wrong.
        ValueError
            If an array is not contiguous, or in another order than the others, or its address or
            size does not suit the kernel's items.  If an extent is less than 1, or `shared` is
            negative.  If CUDA does not know the stream, or if the launch cannot be part of a capture in progress.
        pycuda.driver.Error
            If CUDA refuses the launch, e.g. because `block` is too large for the kernel.
        ContextError
            If an array is on another device, or CUDA's context is not a primary context.
        """
        if texrefs:
            raise no_texture_references(f"{self.name}: texrefs")
        if unknown:
            raise TypeError(
                f"{self.name}: {next(iter(unknown))}= is no keyword of a launch; block, grid, "
                "shared, stream, strided and time_kernel are accepted, and the kernel's arguments "
                "by position"
            )
        table = self._table or self._table_for(args)
        wait = self.start(table, args, grid, block, shared, stream, strided, time_kernel)
        return wait() if time_kernel else None

    def prepared_call(self, grid, block, *args, shared_size=0):
        """Launch as if on CuPy's current stream, with arguments of the prepared types.

        `grid`, `block`, `shared_size` (bytes) and device arrays are as in `bridge.launch`.  An int
        may also be an address.  Numbers are converted to the prepared type.
        """
        table = self._prepared or self._prepared_table()
        self.start(table, args, grid, block, shared_size, None, False, False)

    def prepared_async_call(self, grid, block, stream, *args, shared_size=0):
        """Launch like `prepared_call`, on the given stream (None: CuPy's current stream)."""
        table = self._prepared or self._prepared_table()
        self.start(table, args, grid, block, shared_size, stream, False, False)

    def prepared_timed_call(self, grid, block, *args, shared_size=0):
        """Launch like `prepared_call`; return a function that waits and returns the seconds."""
        table = self._prepared or self._prepared_table()
        return self.start(table, args, grid, block, shared_size, None, False, True)

    def _handle(self, int device_id):
        """Return the CUfunction on the current device."""
        return <intptr_t> self.handle(device_id)

    cdef Handle handle(self, int device_id) except NULL:
        if self.handles[device_id] is NULL:
            self.handles[device_id] = <Handle> <intptr_t> self._load(device_id)
        return self.handles[device_id]

    cdef start(
        self, Table table, tuple args, grid, block, shared, stream, bint strided, bint timed
    ):
        """Launch on a stream (None: CuPy's current stream), as if on CuPy's current stream.

        For a timed launch, return a function that waits for the kernel and returns the seconds.
        """
        cdef Call call
        cdef int device_id = cuda_device()
        cdef Stream here = current_stream(device_id)
        cdef Stream there = here
        cdef bint is_named = stream is not None and not self.of_all
        if stream is not None:
            there = handle_of(stream, self.name, may_be_unordered=False)
        call.device_id, call.strided = device_id, strided
        call.of_pycuda = call.of_others = call.handlers = False
        call.lenient = self.lenient
        table.pack(args, &call)
        cdef bint as_pycuda = self.overlaps and not (
            call.of_others or call.handlers or views_are_alive()
        )
        if as_pycuda and stream is None:
            there = 0
        elif self.overlaps:
            call.of_pycuda = True  # PyCUDA's own kernels get bare addresses
        call.stream = there
        handlers = [a for a in args if isinstance(a, drv.ArgumentHandler)] if call.handlers else ()
        if (here != there and not as_pycuda) or handlers or timed:
            check_capture(here, there, bool(handlers or timed), self.name)

        for handler in handlers:
            handler.pre_call(None)
        if not as_pycuda:
            order(there, here)
            if call.of_pycuda and not is_named:
                order(there, PYCUDA)
            elif handlers:  # which copy on the default stream
                order(there, 0)
        if timed:
            if reason := failure():
                raise drv.LaunchError(f"{self.name}: {reason}")
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            runtime.eventRecord(begin.ptr, there)
        self.launch(grid, block, shared, &call)
        if timed:
            runtime.eventRecord(end.ptr, there)
        if not as_pycuda:
            order(here, there)
            if call.of_pycuda and not is_named:
                order(PYCUDA, there)
            elif handlers:
                order(0, there)
        for handler in handlers:
            if hasattr(handler, "post_call"):
                handler.post_call(None)
        return functools.partial(seconds_between, begin, end) if timed else None

    cdef int launch(self, grid, block, shared, Call *call) except -1:
        cdef unsigned extents[6]
        if block is None:
            raise ValueError(f"{self.name}: block is missing; give one, e.g. block=(128, 1, 1)")
        try:
            read_extent(extents, grid, "grid", self.name)
            read_extent(extents + 3, block, "block", self.name)
            if type(shared) is not int or shared:
                shared = self._allow(shared_bytes(shared, self.name), call.device_id)
            self.start_kernel(extents, shared, call)
        except REFUSALS as error:
            raise explain(error, self, grid, block, shared, call.device_id) from error
        return 0

    cdef int start_kernel(self, unsigned *extents, unsigned shared, Call *call) except -1:
        cdef int status
        cdef Handle function = self.handle(call.device_id)
        cdef void *extra[5]
        extra[:] = [
            <void *> BUFFER_POINTER, &call.packed[0], <void *> BUFFER_SIZE, &call.size, NULL
        ]
        with nogil:  # CUDA waits if the stream's queue is full
            status = cuLaunchKernel(
                function, extents[0], extents[1], extents[2], extents[3], extents[4], extents[5],
                shared, call.stream, NULL, extra
            )
        if status:
            driver.check_status(status)
        return 0


@cython.final
cdef class PycudaLauncher(Launcher):
    """Launches a ``pycuda.driver.Function``, whose CUfunction is not accessible."""

    cdef readonly object function
    cdef object stream  # PyCUDA's, or None

    def __init__(self, function, stream, table, is_named):
        self.name, self.function, self.stream, self._table = "launch", function, stream, table
        self.of_all = not is_named

    def _allow(self, shared, device_id):
        """Return the bytes of shared memory; only a call of PyCUDA can raise the limit."""
        return shared

    cdef int start_kernel(self, unsigned *extents, unsigned shared, Call *call) except -1:
        grid, block = (extents[0], extents[1], extents[2]), (extents[3], extents[4], extents[5])
        self.function._launch_kernel(grid, block, call.packed[:call.size], shared, self.stream)
        return 0


cdef int read_extent(unsigned *to, value, str name, str caller) except -1:
    """Read the three extents of a grid or a block, given as 1 to 3 ints; CUDA refuses 0."""
    cdef Py_ssize_t axis
    is_usual = type(value) is tuple and 1 <= len(<tuple> value) <= 3
    cdef tuple sizes = value if is_usual else extent(value, name, caller)
    to[0] = to[1] = to[2] = 1
    for axis in range(len(sizes)):
        size = sizes[axis]
        to[axis] = size if type(size) is int else extent(value, name, caller)[axis]
    return 0

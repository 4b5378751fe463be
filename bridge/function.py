"""The functions of `SourceModule`: PyCUDA's call forms, checked, on CuPy's current stream."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import driver, runtime
from pycuda.gpuarray import GPUArray

from . import context
from .arguments import code_of, convert, is_of_pycuda, pack_arguments
from .context import device_ids
from .launching import (
    explain,
    extent,
    no_texture_references,
    refuse_outside_of_capture,
    run_in_order,
)
from .signature import Parameter
from .streams import UNORDERED, handle_of, is_capturing

_current_stream = cupy.cuda.get_current_stream
_cuda_current = driver.ctxGetCurrent
_launch_kernel = driver.launchKernel
_ndarray = cupy.ndarray
libcuda = ctypes.CDLL("libcuda.so.1")

_FREE_SHARED = 48 << 10  # bytes of dynamic shared memory that no attribute need be set for
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_... (cuda.h)
_UNKNOWN = Parameter("", None, None)
_ANY = object()  # a dtype that is not known
_COMPLEX = {"F": np.complex64, "D": np.complex128}


class _Layout:
    """A format of `struct`, and idle buffers of that size, each with what ``cuLaunchKernel`` wants.

    A buffer is off the list while it is in use: the launch releases the interpreter's lock, and
    another thread may launch meanwhile.
    """

    def __init__(self, codes: Iterable[str], offsets: Iterable[int] | None = None) -> None:
        layout = ""
        if offsets is None:  # as C aligns them
            layout = "".join(codes)
        else:
            for code, offset in zip(codes, offsets, strict=True):
                layout += f"{offset - struct.calcsize(layout)}x{code}"
        packer = struct.Struct(layout)
        self.pack_into = packer.pack_into
        self.idle: list[tuple[Any, int, Any]] = []
        self._size = ctypes.c_size_t(packer.size)

    def new_buffer(self) -> tuple[Any, int, Any]:
        """Return a buffer, the address of the launch's ``extra``, and what keeps that alive."""
        buffer = ctypes.create_string_buffer(self._size.value or 1)
        size = ctypes.addressof(self._size)
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, size, _END
        )
        return buffer, ctypes.addressof(extra), extra


class Function:
    """A kernel of a `SourceModule`, called as a ``pycuda.driver.Function`` is.

    It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.

    Parameters
    ----------
    name : str
    load : callable
        Given a device id, returns the CUfunction there.
    parameters : list of Parameter or None
        What the source says of them.

    Notes
    -----
    *Ownership:* keeps its module alive; CUDA takes the pointers of arrays, not the arrays.  An
    array dropped after a call goes back to its pool in the order of CuPy's current stream, which
    the kernel is part of.
    *Ordering:* every call runs as if on CuPy's current stream, whatever stream it is launched on:
    after what is queued there, before what is queued there later; where memory of PyCUDA's is
    among the arguments, likewise with PyCUDA's default stream.  By events where CUDA does not
    order the streams itself (rule: `bridge.streams`).  Nothing waits on the host, but
    ``pycuda.driver.In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of a `cupy.RawKernel`'s call.
    """

    def __init__(
        self, name: str, load: Callable[[int], int], parameters: list[Parameter] | None
    ) -> None:
        self.name = name
        self._load = load
        self._handles: dict[int, int] = {}
        self._shared: dict[int, int] = {}  # device id -> the limit that has been set there
        self._prepared: _Layout | None = None
        self._codes: list[str] = []

        slots = _slots(self._handle(context.cuda_device()))
        if slots is None and parameters is not None:
            slots = _natural_slots(parameters)
        if slots is not None and (parameters is None or not _fit(parameters, slots)):
            parameters = [_UNKNOWN] * len(slots)
        self._slots = slots
        self._parameters = parameters if slots is not None and parameters is not None else None
        self._layout: _Layout | None = None
        self._usual: list[tuple[Any, Any]] = []
        if slots is not None and parameters is not None:
            codes = [code_of(p, size) for p, (_, size) in zip(parameters, slots, strict=True)]
            self._layout = _Layout(codes, [offset for offset, _ in slots])
            self._usual = [_usual(parameter) for parameter in parameters]

    def __repr__(self) -> str:
        """Show the kernel as the source declares it."""
        return f"<{type(self).__module__}.Function {self._signature()}>"

    def _signature(self) -> str:
        if self._parameters is None:
            return f"{self.name}(...)"
        return f"{self.name}({', '.join(p.text or '?' for p in self._parameters)})"

    def __call__(
        self,
        *args: Any,
        block: Any = None,
        grid: Any = (1, 1),
        shared: int = 0,
        stream: Any = None,
        texrefs: Sequence[Any] = (),
        time_kernel: bool = False,
        strided: bool = False,
    ) -> float | None:
        """Launch the kernel as if it were on CuPy's current stream.

        Parameters
        ----------
        *args
            In the order of the kernel's parameters, as `bridge.launch` takes them.  Where the
            source tells a parameter's type, an array of another dtype and a scalar of another
            width are refused, and Python's numbers are taken: by CuPy's rule they become the type
            that they meet, if it is of their kind.
        block, grid : int or sequence of 1 to 3 ints
            Threads of a block, blocks of the grid.
        shared : int
            Dynamic shared memory, bytes a block; up to the device's limit.
        stream : pycuda.driver.Stream, cupy.cuda.Stream or any ``__cuda_stream__``, optional
            The stream to launch on; CuPy's current one if omitted.
        time_kernel : bool
            Wait for the kernel, and return how long it ran.
        strided : bool
            Take arrays that are not contiguous: the kernel knows their strides.

        Returns
        -------
        float or None
            Seconds, if asked for.

        Raises
        ------
        TypeError
            If an argument is not what the kernel takes, or there are too many or too few.
        ValueError
            If an array is not contiguous, or that `grid`, `block` or `shared` is impossible.
        OverflowError
            If a Python int does not fit the parameter.
        ContextError
            If an array is on another device, or CUDA's context is not the primary one.
        """
        device_id = device_ids.get(_cuda_current()) if device_ids else None
        if device_id is None:
            device_id = context.cuda_device()
        layout = self._layout
        values: list[Any] = []
        of_pycuda = False
        unusual = bool(stream is not None or time_kernel or texrefs)
        if layout is None:
            unusual = True
        elif len(args) != len(self._usual):
            raise TypeError(
                f"{self.name}: {len(args)} arguments for {len(self._usual)} parameters: "
                f"{self._signature()}"
            )
        else:
            array, gpuarray = (None, None) if context.inspect_pointers else (_ndarray, GPUArray)
            for value, (dtype, scalar) in zip(args, self._usual):  # noqa: B905  (just compared)
                kind = type(value)
                if kind is scalar:
                    values.append(value)
                elif (
                    kind is array
                    and (value.dtype is dtype or dtype is _ANY)
                    and value._c_contiguous
                ):
                    values.append(value.data.ptr)
                elif (
                    kind is gpuarray
                    and (value.dtype is dtype or dtype is _ANY)
                    and (value.strides == (value.itemsize,) or value.flags.forc)
                    and value.size
                ):
                    of_pycuda = True
                    values.append(int(value.gpudata))
                else:
                    of_pycuda = of_pycuda or is_of_pycuda(value)
                    unusual = unusual or isinstance(value, drv.ArgumentHandler)
                    values.append(self._convert(len(values), value, device_id, strided))
        if of_pycuda:
            context.current_device()  # PyCUDA's own context must be the same one
        if not unusual:
            here = _current_stream(device_id).ptr
            if not (here and of_pycuda):
                self._enqueue(layout, values, device_id, grid, block, shared, here)
                return None
        if texrefs:
            raise no_texture_references(self.name)
        handlers = [value for value in args if isinstance(value, drv.ArgumentHandler)]
        if layout is None:
            _, packed = pack_arguments(args, device_id, strided, self.name)
            layout, values = _Layout([f"{len(packed)}s"]), [packed]
        timer = self._run(
            layout, values, args, device_id, grid, block, shared, stream, handlers, time_kernel
        )
        return timer() if timer else None

    def _convert(self, index: int, value: Any, device_id: int, strided: bool) -> Any:
        assert self._parameters is not None
        assert self._slots is not None
        caller = f"{self.name}: argument {index}"
        size = self._slots[index][1]
        return convert(value, self._parameters[index], size, caller, device_id, strided)

    def _run(
        self,
        layout: _Layout,
        values: Sequence[Any],
        args: Sequence[Any],
        device_id: int,
        grid: Any,
        block: Any,
        shared: int,
        stream: Any,
        handlers: Sequence[Any] = (),
        timed: bool = False,
    ) -> Callable[[], float] | None:
        """Launch in order, on any stream; return how to get the kernel's seconds, if asked for."""
        here = there = _current_stream(device_id).ptr
        if stream is not None:
            there = handle_of(stream, self.name)
            if there == UNORDERED:
                raise TypeError(f"{self.name}: stream -1 means 'do not order' and is no stream")
        of_pycuda = any(map(is_of_pycuda, args))
        if of_pycuda:
            context.current_device()
        refuse_outside_of_capture(here, there, handlers, self.name)
        if timed and is_capturing(there):
            raise ValueError(
                f"{self.name}: a kernel that is captured into a graph does not run yet, so it "
                "cannot be timed; time the graph"
            )
        events = [cupy.cuda.Event() for _ in range(2)] if timed else []

        def enqueue() -> None:
            if timed:
                runtime.eventRecord(events[0].ptr, there)
            self._enqueue(layout, values, device_id, grid, block, shared, there)
            if timed:
                runtime.eventRecord(events[1].ptr, there)

        run_in_order(enqueue, here, there, device_id, of_pycuda, handlers)
        return (lambda: _seconds(*events)) if timed else None

    def _enqueue(
        self,
        layout: _Layout | Any,
        values: Sequence[Any],
        device_id: int,
        grid: Any,
        block: Any,
        shared: int,
        stream: int,
    ) -> None:
        """Pack the parameters and launch."""
        handle = self._handles.get(device_id) or self._handle(device_id)
        if block is None:
            raise ValueError(f"{self.name}: block is missing; give the threads of a block")
        grid, block = extent(grid, "grid", self.name), extent(block, "block", self.name)
        if shared > _FREE_SHARED and shared > self._shared.get(device_id, 0):
            self._allow_shared(handle, device_id, shared, grid, block)
        try:
            buffer = layout.idle.pop()
        except IndexError:
            buffer = layout.new_buffer()
        layout.pack_into(buffer[0], 0, *values)
        try:
            _launch_kernel(handle, *grid, *block, shared, stream, 0, buffer[1])
        except driver.CUDADriverError as error:
            raise explain(error, self, grid, block, shared, self.name) from error
        finally:
            layout.idle.append(buffer)

    def _handle(self, device_id: int) -> int:
        handle = self._handles[device_id] = self._load(device_id)
        return handle

    def prepare(self, arg_types: Iterable[Any], texrefs: Sequence[Any] = ()) -> Function:
        """Fix the types of the arguments, for the ``prepared_`` calls.

        Parameters
        ----------
        arg_types : str or iterable
            Codes of `struct` ("PPif"), NumPy scalar types or dtypes; anything else means a pointer.

        Returns
        -------
        Function
            This one.

        Raises
        ------
        TypeError
            If the number of types, or the size of one, is not the kernel's.
        """
        if texrefs:
            raise no_texture_references(self.name)
        codes = [code for kind in arg_types for code in _codes(kind)]
        packed = [f"{np.dtype(_COMPLEX[c]).itemsize}s" if c in _COMPLEX else c for c in codes]
        offsets = None
        if self._slots is not None:
            if len(codes) != len(self._slots):
                raise TypeError(
                    f"{self.name}: {len(codes)} types prepared for {len(self._slots)} parameters: "
                    f"{self._signature()}"
                )
            for index, (code, (_, size)) in enumerate(zip(packed, self._slots, strict=True)):
                if struct.calcsize(code) != size:
                    raise TypeError(
                        f"{self.name}: type {index} is {codes[index]!r} of {struct.calcsize(code)} "
                        f"bytes, but the parameter has {size}: {self._signature()}"
                    )
            offsets = [offset for offset, _ in self._slots]
        self._codes = codes
        self._prepared = _Layout(packed, offsets)
        return self

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        """Launch as if on CuPy's current stream, with arguments of the prepared types.

        Parameters
        ----------
        grid, block : int or sequence of 1 to 3 ints
        *args
            Ints or device arrays for pointers, numbers for numbers, bytes for structs.
        shared_size : int
            Dynamic shared memory, bytes a block.
        """
        self._call_prepared(grid, block, None, args, shared_size)

    def prepared_async_call(
        self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0
    ) -> None:
        """Launch as `prepared_call` does, on the stream given (None: CuPy's current one)."""
        self._call_prepared(grid, block, stream, args, shared_size)

    def prepared_timed_call(
        self, grid: Any, block: Any, *args: Any, shared_size: int = 0
    ) -> Callable[[], float]:
        """Launch as `prepared_call` does; return a function that waits and returns the seconds."""
        timer = self._call_prepared(grid, block, None, args, shared_size, timed=True)
        assert timer is not None
        return timer

    def _call_prepared(
        self, grid: Any, block: Any, stream: Any, args: Any, shared: int, timed: bool = False
    ) -> Callable[[], float] | None:
        layout = self._prepared
        if layout is None:
            raise TypeError(f"{self.name}: call prepare(arg_types) before the prepared calls")
        device_id = device_ids.get(_cuda_current()) if device_ids else None
        if device_id is None:
            device_id = context.cuda_device()
        here = _current_stream(device_id).ptr
        if not here and stream is None and not timed:  # CUDA orders PyCUDA's work with it itself
            try:
                self._enqueue(layout, args, device_id, grid, block, shared, here)
                return None
            except (struct.error, TypeError):
                pass  # an argument that is to be converted first
        values = [self._prepared_value(i, value, device_id) for i, value in enumerate(args)]
        try:
            return self._run(
                layout, values, args, device_id, grid, block, shared, stream, timed=timed
            )
        except struct.error as error:
            raise TypeError(
                f"{self.name}: prepared for {', '.join(self._codes)}, but called with "
                f"{', '.join(type(value).__name__ for value in args)}: {error}"
            ) from None

    def _prepared_value(self, index: int, value: Any, device_id: int) -> Any:
        code = self._codes[index] if index < len(self._codes) else ""
        if code in _COMPLEX:
            return _COMPLEX[code](value).tobytes()
        if code not in tuple("PnNlLqQ") or isinstance(value, int | np.integer):
            return value
        parameter = self._parameters[index] if self._parameters else _UNKNOWN
        caller = f"{self.name}: argument {index}"
        return convert(value, parameter._replace(is_pointer=True), 8, caller, device_id, False)

    def get_attribute(self, attribute: Any) -> int:
        """Return a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        handle = self._handles.get(context.cuda_device()) or self._handle(context.cuda_device())
        return int(driver.funcGetAttribute(int(attribute), handle))

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        handle = self._handles.get(context.cuda_device()) or self._handle(context.cuda_device())
        driver.funcSetAttribute(handle, int(attribute), value)

    def set_cache_config(self, config: Any) -> None:
        """Set the preferred split of L1 cache and shared memory, a ``pycuda.driver.func_cache``."""
        handle = self._handles.get(context.cuda_device()) or self._handle(context.cuda_device())
        status = libcuda.cuFuncSetCacheConfig(ctypes.c_void_p(handle), int(config))
        driver.check_status(status)

    def __getattr__(self, name: str) -> int:
        """Return an attribute of the compiled kernel, e.g. ``num_regs``."""
        attribute = getattr(drv.function_attribute, name.upper(), None)
        if attribute is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.get_attribute(attribute)

    def _allow_shared(
        self, handle: int, device_id: int, shared: int, grid: Any, block: Any
    ) -> None:
        limit = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
        try:
            driver.funcSetAttribute(handle, limit, shared)
        except driver.CUDADriverError as error:
            raise explain(error, self, grid, block, shared, self.name) from error
        self._shared[device_id] = shared


def _slots(handle: int) -> list[tuple[int, int]] | None:
    """Return (offset, size) of each parameter as the driver knows it; None before CUDA 12.4."""
    query = getattr(libcuda, "cuFuncGetParamInfo", None)
    slots: list[tuple[int, int]] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    out = ctypes.byref(offset), ctypes.byref(size)
    while query is not None:
        status = query(ctypes.c_void_p(handle), ctypes.c_size_t(len(slots)), *out)
        if status == 1:  # CUDA_ERROR_INVALID_VALUE: that was the last one
            return slots
        if status:
            return None
        slots.append((offset.value, size.value))
    return None


def _natural_slots(parameters: list[Parameter]) -> list[tuple[int, int]] | None:
    """Return where C puts parameters of known sizes."""
    slots, end = [], 0
    for parameter in parameters:
        dtype = np.dtype(np.uintp) if parameter.is_pointer else parameter.dtype
        if dtype is None:
            return None
        start = end + -end % dtype.itemsize
        slots.append((start, dtype.itemsize))
        end = start + dtype.itemsize
    return slots


def _fit(parameters: list[Parameter], slots: list[tuple[int, int]]) -> bool:
    """Tell whether what was read in the source can be what was compiled."""
    return len(parameters) == len(slots) and all(
        struct.calcsize(code_of(parameter, size)) == size
        for parameter, (_, size) in zip(parameters, slots, strict=True)
    )


def _usual(parameter: Parameter) -> tuple[Any, Any]:
    """Return the dtype of arrays, and the type of scalars, that need no further look."""
    if parameter.is_pointer:
        return parameter.dtype or _ANY, None
    return None, parameter.dtype.type if parameter.dtype else None


def _codes(kind: Any) -> list[str]:
    """Return the codes of `struct` that PyCUDA reads in a type given to ``prepare``."""
    if isinstance(kind, str):
        return re.findall(r"\d*[^\d\s]", kind)
    if isinstance(kind, np.dtype):
        return [f"{kind.itemsize}s" if kind.char == "V" else kind.char]
    if isinstance(kind, type) and issubclass(kind, np.number | np.bool_):
        return [np.dtype(kind).char]
    return ["P"]


def _seconds(start: Any, end: Any) -> float:
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3

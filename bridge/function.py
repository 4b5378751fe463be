"""The functions of `SourceModule`: PyCUDA's call forms, checked, on CuPy's current stream."""

from __future__ import annotations

import ctypes
import functools
import operator
import re
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from . import context
from .arguments import (
    HOLDERS,
    by_value,
    code_of,
    convert,
    is_of_pycuda,
    pack_arguments,
)
from .context import pycuda_device
from .interface import PLAIN_DTYPES
from .launching import (
    explain,
    extent,
    no_texture_references,
    refuse_outside_of_capture,
    run_in_order,
    shared_bytes,
)
from .parameters import (
    MISFITS,
    OF_PYCUDA,
    UNUSUAL,
    USUAL,
    Buffer,
    Layout,
    fit,
    make_packer,
    make_prepared_packer,
    may_be_pointer,
    natural_slots,
    slots_of,
)
from .signature import Parameter
from .streams import handle_of, is_capturing
from .words import kind, named

_current_stream = cupy.cuda.get_current_stream
_cuda_current = driver.ctxGetCurrent
_launch_kernel = driver.launchKernel

_REFUSALS = (driver.CUDADriverError, OverflowError)  # the latter: no number for CUDA at all
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_FREE_SHARED = 48 << 10  # bytes of shared memory that no attribute need be set for
_LIMIT = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
_limit_lock = threading.RLock()  # the limit is the CUfunction's, of which there may be two of these
_UNKNOWN = Parameter("", None, None)
_COMPLEX = {"F": np.complex64, "D": np.complex128}
_PACKED = {"F": "0f8s", "D": "0d16s"}  # aligned as their parts
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
# Codes under which a number of a dtype may be prepared.
_KINDS = {dtype: "efd" if dtype.kind == "f" else "?cbBhHiIlLqQnNPe" for dtype in PLAIN_DTYPES}


class Function:
    """A kernel of a `SourceModule`, called as a ``pycuda.driver.Function`` is.

    It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.

    Notes
    -----
    Pickled, as Dask and Ray do, it is its module's source and its name.
    *Ownership:* keeps its module alive; CUDA takes the pointers of arrays, not the arrays.  An
    array dropped after a call goes back to its pool in the order of CuPy's current stream, which
    the kernel is part of.
    *Ordering:* every call runs as if on CuPy's current stream, whatever stream it is launched on:
    after what is queued there, before what is queued there later; where memory of PyCUDA's is
    among the arguments (not a bare address, which does not tell), likewise with PyCUDA's default
    stream.  By events where CUDA does not order the streams itself (rule: `bridge.streams`).
    Nothing waits on the host, but ``pycuda.driver.In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of a `cupy.RawKernel`'s call.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[int], int],
        parameters: list[Parameter] | None,
        module: Any,
    ) -> None:
        """Take what `SourceModule` knows of a kernel.

        Parameters
        ----------
        name : str
        load : callable
            Given a device id, returns the CUfunction there.
        parameters : list of Parameter or None
            What the source says of them.
        module : SourceModule
            Where it is from.
        """
        self.name = name
        self._module = module
        self._load = load
        self._handles: dict[int, int] = {}
        # Of the last call: grid, block, device id, what launches, and its handle and extents.
        never = object()
        self._last: tuple[Any, Any, int, Any, tuple[int, ...]] = never, never, -1, None, ()
        self._prepared: Layout | None = None
        self._codes: list[str] = []
        self._prepared_parameters: list[Parameter] = []

        device_id = context.cuda_device()
        slots = slots_of(self._handle(device_id))
        # Where it is the only one, calls on the default stream need not ask whose context is
        # current: if another's is, CUDA refuses the launch, and then that is looked into.
        self._only_device = None if context.check_devices else device_id
        if slots is None and parameters is not None:
            slots = natural_slots(parameters)
        if slots is not None and (parameters is None or not fit(parameters, slots)):
            parameters = [_UNKNOWN] * len(slots)
        self._free_shared = _FREE_SHARED - self.shared_size_bytes
        self._slots = slots
        # None where neither the source nor the driver tells: the arguments decide then.
        self._parameters = None if slots is None else parameters
        self._layout: Any = None
        if slots is not None and parameters is not None:
            codes = [code_of(p, size) for p, (_, size) in zip(parameters, slots, strict=True)]
            self._layout = Layout(codes, [offset for offset, _ in slots])
            look_up = self._only_device is None
            self._layout.pack = make_packer(parameters, slots, self._layout, look_up)

    def __reduce__(self) -> Any:
        """Pickle the module, the name and what is prepared."""
        if "_module" not in self.__dict__:
            return _restored_function, self.__dict__["_deferred"]
        codes = None if self._prepared is None else self._codes
        return _restored_function, (self._module, self.name, codes)

    def __repr__(self) -> str:
        """Show the kernel as the source declares it."""
        return f"<{type(self).__module__}.Function {self._signature()}>"

    def _signature(self) -> str:
        parameters = self.__dict__.get("_parameters")
        if parameters is None:  # not known, or not loaded yet
            return f"{self.name}(...)"
        return f"{self.name}({', '.join(p.text or '?' for p in parameters)})"

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
            If an array is not contiguous, an extent is less than 1, `shared` is negative, CUDA does
            not know the stream, or one is being captured into a graph that the launch could not be
            part of.
        pycuda.driver.Error
            If CUDA refuses the launch: `block` or `shared` is too large for the kernel, say.
        OverflowError
            If a Python int does not fit the parameter.
        ContextError
            If an array is on another device, or CUDA's context is not the primary one.
        """
        layout = self._layout
        if layout and not time_kernel and not texrefs:
            # The usual arguments: nothing to convert.
            device_id = self._only_device
            if device_id is None:
                device_id = context.cuda_device()
            here = _current_stream(device_id).ptr
            if here or stream is not None:
                context.cuda_device()
            try:
                buffer = layout.idle.pop()
            except IndexError:
                buffer = layout.take()
            try:
                answer = layout.pack(buffer[0], args, device_id)
            except MISFITS:  # looked into below
                answer = UNUSUAL
            of_pycuda = answer is OF_PYCUDA
            if of_pycuda and pycuda_device() != device_id:
                context.current_device()  # which says that the two are on different ones
            if stream is None and (answer is USUAL or (of_pycuda and not here)):
                # As `_start`, which takes 0.15 us longer for being called.
                last = self._last  # once: another thread's call may replace it
                last_grid, last_block, device, start, _ = last
                if (
                    grid is not last_grid
                    or block is not last_block
                    or device_id != device
                    or shared != 0
                ):
                    self._start(layout, buffer, device_id, grid, block, shared, here)
                    return None
                try:
                    start(0, here, 0, buffer[1])
                except _REFUSALS as error:
                    self._start_anew(error, last, 0, here, buffer)
                finally:
                    layout.idle.append(buffer)
                return None
            if answer is not UNUSUAL:
                self._start_in_order(
                    layout, buffer, device_id, grid, block, shared, stream, here, of_pycuda
                )
                return None
            layout.idle.append(buffer)
        if texrefs:
            raise no_texture_references(f"{self.name}: texrefs")
        device_id = context.cuda_device()
        of_pycuda = any(map(is_of_pycuda, args))
        if of_pycuda:
            context.current_device()
        handlers = [value for value in args if isinstance(value, drv.ArgumentHandler)]
        if layout is None:
            _, packed, _ = pack_arguments(args, device_id, strided, self.name)
            layout, values = Layout([f"{len(packed)}s"]), [packed]
        else:
            values = self._convert_all(args, device_id, strided)
        timer = self._run(
            layout, values, of_pycuda, device_id, grid, block, shared, stream, handlers, time_kernel
        )
        return timer() if timer else None

    def _start_in_order(
        self,
        layout: Layout,
        buffer: Buffer,
        device_id: int,
        grid: Any,
        block: Any,
        shared: int,
        stream: Any,
        here: int,
        of_pycuda: bool,
    ) -> None:
        """Launch as `_start` does, on any stream, as if on CuPy's current one, `here`."""
        there = here if stream is None else self._handle_of(stream)
        refuse_outside_of_capture(here, there, (), self.name)
        start = functools.partial(
            self._start, layout, buffer, device_id, grid, block, shared, there
        )
        run_in_order(start, here, there, device_id, of_pycuda)

    def _handle_of(self, stream: Any) -> int:
        return handle_of(stream, self.name, "stream", False)

    def _convert_all(self, args: Sequence[Any], device_id: int, strided: bool) -> list[Any]:
        parameters, slots = self._parameters or [], self._slots or []
        if len(args) != len(parameters):
            given = "1 argument" if len(args) == 1 else f"{len(args)} arguments"
            raise TypeError(
                f"{self.name}: {given} for {len(parameters)} parameters: {self._signature()}"
            )
        return [
            convert(value, parameter, size, f"{self.name}: argument {i}", device_id, strided)
            for i, (value, parameter, (_, size)) in enumerate(
                zip(args, parameters, slots, strict=True)
            )
        ]

    def _run(
        self,
        layout: Layout,
        values: Sequence[Any],
        of_pycuda: bool,
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
            there = self._handle_of(stream)
        refuse_outside_of_capture(here, there, handlers, self.name)
        if timed:
            if reason := context.failure():
                raise drv.LaunchError(f"{self.name}: {reason}")
            if is_capturing(there):
                raise ValueError(
                    f"{self.name}: a kernel that is captured into a graph does not run yet, so it "
                    "cannot be timed; time the graph"
                )
        buffer = layout.take()
        try:
            layout.pack_into(buffer[0], 0, *values)
        except (TypeError, OverflowError) as error:  # of a prepared call, which knows what to say
            raise struct.error(str(error)) from None
        events = [cupy.cuda.Event() for _ in range(2)] if timed else []

        def start() -> None:
            if timed:
                runtime.eventRecord(events[0].ptr, there)
            self._start(layout, buffer, device_id, grid, block, shared, there)
            if timed:
                runtime.eventRecord(events[1].ptr, there)

        run_in_order(start, here, there, device_id, of_pycuda, handlers)
        return (lambda: _seconds(*events)) if timed else None

    def _start(
        self,
        layout: Layout,
        buffer: Buffer,
        device_id: int,
        grid: Any,
        block: Any,
        shared: int,
        stream: int,
    ) -> None:
        """Launch with the parameters in a buffer of a layout, which gets it back."""
        last = self._last
        if last[0] is not grid or last[1] is not block or last[2] != device_id:
            if block is None:
                raise ValueError(
                    f"{self.name}: block is missing; give the threads of a block, e.g. "
                    "block=(128, 1, 1)"
                )
            six = (*extent(grid, "grid", self.name), *extent(block, "block", self.name))
            handle = self._handles.get(device_id) or self._handle(device_id)
            what = (handle, *six)
            last = grid, block, device_id, functools.partial(_launch_kernel, *what), what
            if type(grid) is type(block) is tuple:  # the same tuples hold the same numbers
                self._last = last
        try:
            if shared != 0:
                context.cuda_device()  # to have one: CUDA is to be asked before the launch
                shared = self._allow(shared, last[4][0])
            last[3](shared, stream, 0, buffer[1])
        except _REFUSALS as error:
            self._start_anew(error, last, shared, stream, buffer)
        finally:
            layout.idle.append(buffer)

    def _start_anew(
        self, error: Exception, last: tuple[Any, ...], shared: int, stream: int, buffer: Buffer
    ) -> None:
        """Launch again if CUDA refused since the thread had no context; else say why it did."""
        # The collector may have run since, and a finalizer have made one current.
        had_none = getattr(error, "status", 0) == _INVALID_CONTEXT or (
            not context.forked and not _cuda_current()
        )
        context.cuda_device()  # which makes it current; or says what is
        if had_none:
            try:
                last[3](shared, stream, 0, buffer[1])
                return
            except _REFUSALS as another:
                error = another
        _, _, device_id, _, what = last
        raise explain(error, self, what[1:4], what[4:], shared, device_id, self.name) from error

    def _allow(self, shared: int, handle: int) -> int:
        """Return the bytes of dynamic shared memory; raise the kernel's limit if it is lower."""
        shared = shared_bytes(shared, self.name)
        if shared > self._free_shared:
            with _limit_lock:
                if driver.funcGetAttribute(_LIMIT, handle) < shared:
                    driver.funcSetAttribute(handle, _LIMIT, shared)
        return shared

    def _handle(self, device_id: int) -> int:
        handle = self._handles[device_id] = self._load(device_id)
        return handle

    def _current_handle(self) -> int:
        device_id = context.cuda_device()
        return self._handles.get(device_id) or self._handle(device_id)

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
            raise no_texture_references(f"{self.name}: texrefs")
        if isinstance(arg_types, bytes) or not isinstance(arg_types, Iterable):
            raise TypeError(
                f"{self.name}: arg_types is {named(arg_types)}; a str of struct's codes, e.g. "
                "'PPi', or a sequence of such and of NumPy's types is accepted"
            )
        if isinstance(arg_types, str):
            arg_types = [arg_types]
        codes = [code for kind in arg_types for code in self._codes_of(kind)]
        packed = [_PACKED.get(code, code) for code in codes]
        layout = Layout(packed, self._prepared_offsets(codes, packed))
        parameters = self._parameters
        if parameters is None or len(parameters) != len(codes):
            parameters = [_UNKNOWN] * len(codes)
        look_up = self._only_device is None
        layout.pack = make_prepared_packer(codes, parameters, layout, look_up)
        self._codes, self._prepared_parameters, self._prepared = codes, parameters, layout
        return self

    def _codes_of(self, kind: Any) -> list[str]:
        """Return the codes of `struct` that PyCUDA reads in a type given to ``prepare``."""
        if isinstance(kind, np.dtype):
            return [f"{kind.itemsize}s" if kind.char == "V" else kind.char]
        if isinstance(kind, type) and issubclass(kind, np.number | np.bool_):
            return [np.dtype(kind).char]
        if not isinstance(kind, str):
            return ["P"]
        codes = []
        for count, code in re.findall(r"(\d*)\s*(\S)", kind):
            if code not in "?cbBhHiIlLqQnNefdFDPs":
                raise TypeError(
                    f"{self.name}: {code!r} in {kind!r} is no type's code; those of struct are "
                    "accepted: P for pointers, i for int, f for float, ..."
                )
            codes += [count + code] if code == "s" else [code] * int(count or 1)
        return codes

    def _prepared_offsets(self, codes: list[str], packed: list[str]) -> list[int] | None:
        """Return where the parameters lie; None for where C puts such a list."""
        if self._slots is None:
            return None
        if len(codes) != len(self._slots):
            # As many bytes, after all: the parts of a struct one by one.
            end = sum(self._slots[-1]) if self._slots else 0
            if struct.calcsize("".join(packed)) == end:
                return None
            raise TypeError(
                f"{self.name}: {len(codes)} types prepared for {len(self._slots)} parameters: "
                f"{self._signature()}"
            )
        for index, (code, (_, size)) in enumerate(zip(packed, self._slots, strict=True)):
            parameter = self._parameters[index] if self._parameters else _UNKNOWN
            kind = "PnNlLqQ" if parameter.is_pointer else code
            if not parameter.is_pointer and parameter.dtype is not None:
                kind = _KINDS[parameter.dtype]
            if struct.calcsize(code) != size or code not in kind:
                raise TypeError(
                    f"{self.name}: type {index} is {codes[index]!r}, of {struct.calcsize(code)} "
                    f"bytes, but the parameter is another, of {size}: {self._signature()}"
                )
        return [offset for offset, _ in self._slots]

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        """Launch as if on CuPy's current stream, with arguments of the prepared types.

        Parameters
        ----------
        grid, block : int or sequence of 1 to 3 ints
        *args
            Device arrays, memory (``a.gpudata``) or ints for pointers, numbers for numbers, bytes
            for structs.
        shared_size : int
            Dynamic shared memory, bytes a block.
        """
        layout = self._prepared
        if layout is not None:
            # The usual arguments, as above.
            device_id = self._only_device
            if device_id is None:
                device_id = context.cuda_device()
            # On the default stream CUDA orders PyCUDA's work with it itself.
            if not _current_stream(device_id).ptr:
                try:
                    buffer = layout.idle.pop()
                except IndexError:
                    buffer = layout.take()
                try:
                    answer = layout.pack(buffer[0], args, device_id)
                except MISFITS:  # looked into below
                    answer = UNUSUAL
                if answer:  # not UNUSUAL
                    if answer is OF_PYCUDA and pycuda_device() != device_id:
                        context.current_device()
                    last = self._last
                    last_grid, last_block, device, start, _ = last
                    if (
                        grid is not last_grid
                        or block is not last_block
                        or device_id != device
                        or shared_size != 0
                    ):
                        self._start(layout, buffer, device_id, grid, block, shared_size, 0)
                        return
                    try:
                        start(0, 0, 0, buffer[1])
                    except _REFUSALS as error:
                        self._start_anew(error, last, 0, 0, buffer)
                    finally:
                        layout.idle.append(buffer)
                    return
                layout.idle.append(buffer)
                self._convert_and_call(layout, grid, block, None, args, shared_size, False)
                return
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
        layout = self._layout_prepared()
        timer = self._convert_and_call(layout, grid, block, None, args, shared_size, True)
        assert timer is not None
        return timer

    def _layout_prepared(self) -> Layout:
        if self._prepared is None:
            raise TypeError(
                f"{self.name}: it is not prepared; call prepare(arg_types) before the prepared "
                f"calls: {self._signature()}"
            )
        return self._prepared

    def _call_prepared(self, grid: Any, block: Any, stream: Any, args: Any, shared: int) -> None:
        layout = self._layout_prepared()
        device_id = context.cuda_device()
        here = _current_stream(device_id).ptr
        buffer = layout.take()
        try:
            answer = layout.pack(buffer[0], args, device_id)
        except MISFITS:  # looked into below
            answer = UNUSUAL
        of_pycuda = answer is OF_PYCUDA
        if of_pycuda and pycuda_device() != device_id:
            context.current_device()
        if answer is UNUSUAL:
            layout.idle.append(buffer)
            self._convert_and_call(layout, grid, block, stream, args, shared, False)
            return
        self._start_in_order(
            layout, buffer, device_id, grid, block, shared, stream, here, of_pycuda
        )

    def _convert_and_call(
        self,
        layout: Layout,
        grid: Any,
        block: Any,
        stream: Any,
        args: Any,
        shared: int,
        timed: bool,
    ) -> Callable[[], float] | None:
        device_id = context.cuda_device()
        of_pycuda = any(map(is_of_pycuda, args))
        if of_pycuda:
            context.current_device()
        values = [self._prepared_value(i, value, device_id) for i, value in enumerate(args)]
        try:
            return self._run(
                layout, values, of_pycuda, device_id, grid, block, shared, stream, timed=timed
            )
        except struct.error as error:
            raise TypeError(
                f"{self.name}: prepared for {', '.join(self._codes)}, but called with "
                f"{', '.join(type(value).__name__ for value in args)}: "
                f"{self._misfit(args, values)}{error}"
            ) from None

    def _misfit(self, args: Sequence[Any], values: Sequence[Any]) -> str:
        """Name the first argument that is not of its prepared type."""
        for index, (code, value) in enumerate(zip(self._codes, values, strict=False)):
            try:
                struct.pack(_PACKED.get(code, code), value)
            except (struct.error, TypeError, OverflowError):
                return f"argument {index} is {named(args[index])}, no {code!r}: "
        return ""

    def _prepared_value(self, index: int, value: Any, device_id: int) -> Any:
        if index >= len(self._codes):
            return value  # too many, which `struct` will say
        if isinstance(value, drv.ArgumentHandler):
            raise TypeError(
                f"{self.name}: argument {index} is a pycuda.driver.{type(value).__name__}, which "
                "prepared calls do not take; call the function itself"
            )
        code, parameter = self._codes[index], self._prepared_parameters[index]
        value, accepted = by_value(value), "a number"
        is_number, is_memory = isinstance(value, _NUMBERS), isinstance(value, HOLDERS)
        # A device array's __index__ would make the host wait for its value.
        is_index = is_number or (hasattr(value, "__index__") and not hasattr(value, "shape"))
        if is_memory or not is_index:
            if may_be_pointer(code, _UNKNOWN if is_memory else parameter):
                caller = f"{self.name}: argument {index}"
                parameter = parameter._replace(is_pointer=True)
                return convert(value, parameter, 8, caller, device_id, False)
        elif code in _COMPLEX and is_number:
            return _COMPLEX[code](value).tobytes()
        if code in _COMPLEX or code.endswith("s"):
            size = struct.calcsize(_PACKED.get(code, code))
            data = value.tobytes() if isinstance(value, np.generic | np.ndarray) else value
            if isinstance(data, bytes) and len(data) == size:
                return data
            accepted = f"{size} bytes"
        elif is_index and not is_memory and not np.iscomplexobj(value):
            return value  # (of a complex number `struct` takes the real part)
        what = f"device memory (a {kind(value)})" if is_memory else named(value)
        raise TypeError(
            f"{self.name}: argument {index} is {what}, but {code!r} is prepared: "
            f"{accepted} is accepted"
        )

    def _restore(self, module: Any, name: str, codes: list[str] | None) -> None:
        loaded = module.get_function(name)
        if codes is not None:
            loaded.prepare(codes)
        for own, value in loaded.__dict__.items():
            self.__dict__.setdefault(own, value)

    def get_attribute(self, attribute: Any) -> int:
        """Return a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        number = self._number(attribute, "attribute", "function_attribute.NUM_REGS")
        try:
            return int(driver.funcGetAttribute(number, self._current_handle()))
        except driver.CUDADriverError as error:
            raise self._refusal(f"attribute {named(attribute)}", error) from error

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        number = self._number(attribute, "attribute", "function_attribute.NUM_REGS")
        amount = self._number(value, "value", "")
        try:
            driver.funcSetAttribute(self._current_handle(), number, amount)
        except _REFUSALS as error:
            what = f"attribute {named(attribute)} cannot be set to {amount}"
            raise self._refusal(what, error) from error

    def set_cache_config(self, config: Any) -> None:
        """Set the preferred split of L1 cache and shared memory, a ``pycuda.driver.func_cache``."""
        number = self._number(config, "config", "func_cache.PREFER_L1")
        handle = ctypes.c_void_p(self._current_handle())
        status = context.libcuda.cuFuncSetCacheConfig(handle, number)
        try:
            driver.check_status(status)
        except driver.CUDADriverError as error:
            raise self._refusal(f"config {named(config)}", error) from error

    def _number(self, value: Any, name: str, example: str) -> int:
        try:
            return operator.index(value)
        except TypeError:
            accepted = f"a pycuda.driver.{example.partition('.')[0]}" if example else "an int"
            hint = f", e.g. pycuda.driver.{example}" if example else ""
            raise TypeError(
                f"{self.name}: {name} is {named(value)}; {accepted} is accepted{hint}"
            ) from None

    def _refusal(self, what: str, error: Exception) -> Exception:
        found: Exception = drv.LogicError(
            f"{self.name}: {what}: CUDA refuses it on this device ({error}); see cuFuncSetAttribute"
            " and cuFuncGetAttribute in CUDA's manual for what it takes"
        )
        return found

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled kernel, e.g. ``num_regs``."""
        if name in _STATE and "_deferred" in self.__dict__:  # its first use
            self._restore(*self.__dict__["_deferred"])
            return self.__dict__[name]
        attribute = getattr(drv.function_attribute, name.upper(), None)
        if attribute is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.get_attribute(attribute)


# What a function has when it is loaded, its name aside.
_STATE = frozenset(
    {
        *("_codes", "_free_shared", "_handles", "_last", "_layout", "_load", "_module"),
        *("_only_device", "_parameters", "_prepared", "_prepared_parameters", "_slots"),
    }
)


def _restored_function(module: Any, name: str, codes: list[str] | None) -> Function:
    """Return a function that is loaded when it is first used: here there need not be a GPU."""
    function = Function.__new__(Function)
    function.name = name
    function.__dict__["_deferred"] = module, name, codes
    return function


def _seconds(start: Any, end: Any) -> float:
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3

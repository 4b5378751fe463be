"""Calls of kernels, as if on CuPy's current stream: `SourceModule`'s functions, and `launch`."""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import pycuda.driver as drv
from cupy.cuda import driver

from . import context
from .arguments import is_of_pycuda, pack_arguments
from .errors import named
from .launching import explain, extent, no_texture_references, refusal, run_in_order, shared_bytes
from .parameters import (
    MISFITS,
    OF_PYCUDA,
    UNUSUAL,
    Buffer,
    Declaration,
    Layout,
    declaration,
    libcuda,
    slots_of,
)
from .prepared import Prepared
from .signature import read_parameters
from .streams import handle_of, pycuda_stream_of

_cuda_device = context.cuda_device
_current_stream = cupy.cuda.get_current_stream

# OverflowError: too large for CUDA's types.
_REFUSALS = (driver.CUDADriverError, drv.Error, OverflowError)
_LIMIT = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
_limit_lock = threading.RLock()  # several of our functions may share one CUfunction


class Function:
    """A kernel of a `SourceModule`, called like a ``pycuda.driver.Function``.

    It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.

    Notes
    -----
    A function is pickled as its module's source and its name.
    *Ownership:* keeps its module alive.  An array may be dropped after the call: its memory is
    reused only after the kernel, in the order of CuPy's current stream.
    *Ordering:* a call runs as if on CuPy's current stream, whatever stream it is launched on.
    GPUArrays and PyCUDA's memory, but not bare addresses, are also ordered with PyCUDA's default
    stream (rule: `bridge.streams`).  The host does not wait, except that ``pycuda.driver.In``,
    ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of a `cupy.RawKernel`'s call.
    """

    def __init__(self, module: Any, name: str, codes: list[str] | None = None) -> None:
        self.name = name
        self._module = module
        self._handles: dict[int, int] = {}
        # Of the last call: grid, block, device id, and what launches with them.
        self._last: tuple[Any, Any, int, Any] = None, None, -1, None
        self._codes = codes  # of the prepared types
        self._prepared: Prepared | None = None

    # Cached at the first use: unpickling a function needs no GPU.
    @functools.cached_property
    def _declaration(self) -> Declaration:
        request = self._module._request
        parameters = read_parameters(request.source, self.name, request.options)
        return declaration(self.name, parameters, slots_of(self._handle()))

    @functools.cached_property
    def _layout(self) -> Layout | None:
        known = self._declaration.parameters is not None
        return self._declaration.layout() if known else None

    @functools.cached_property
    def _free_shared(self) -> int:
        return (48 << 10) - int(self.shared_size_bytes)  # bytes for which no limit must be raised

    def __reduce__(self) -> Any:
        """Pickle the module, the name and what is prepared."""
        return Function, (self._module, self.name, self._codes)

    def __repr__(self) -> str:
        """Show the kernel as the source declares it."""
        known = self.__dict__.get("_declaration", f"{self.name}(...)")  # not before it is loaded
        return f"<{type(self).__module__}.Function {known}>"

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
        """Launch the kernel as if on CuPy's current stream.

        Parameters
        ----------
        *args
            As `bridge.launch` takes them.  If the source tells a parameter's type, other dtypes and
            widths raise, and Python's numbers of the same kind are converted.
        block, grid : int or sequence of 1 to 3 ints
            Threads per block, blocks per grid.
        shared : int
            Dynamic shared memory in bytes per block, up to the device's limit.
        stream : pycuda.driver.Stream, cupy.cuda.Stream or any ``__cuda_stream__``, optional
            The stream to launch on; CuPy's current one if omitted.
        time_kernel : bool
            Wait for the kernel, and return its time.
        strided : bool
            Accept arrays that are not contiguous.

        Returns
        -------
        float or None
            Seconds, with `time_kernel`.

        Raises
        ------
        TypeError
            If an argument is not what the kernel takes, or their number differs.
        ValueError
            If an array is not contiguous, an extent is less than 1, `shared` is negative, CUDA does
            not know the stream, or a graph is captured that the launch cannot be part of.
        pycuda.driver.Error
            If CUDA refuses the launch, e.g. because `block` is too large for the kernel.
        OverflowError
            If a Python int does not fit the parameter.
        ContextError
            If an array is on another device, or CUDA's context is not the primary one.
        """
        if texrefs:
            raise no_texture_references(f"{self.name}: texrefs")
        layout = self._layout or self._layout_of(args, strided)
        seconds = self._launch(layout, args, grid, block, shared, stream, strided, time_kernel)
        return seconds() if seconds else None

    def _layout_of(self, args: Sequence[Any], strided: bool) -> Layout:
        """Return a layout for arguments of a kernel whose parameters are not known."""
        _, packed, _ = pack_arguments(args, context.cuda_device(), strided, self.name)
        layout = Layout([f"{len(packed)}s"])
        pack_into = layout.pack_into
        layout.pack = lambda *_: UNUSUAL
        layout.fill = lambda block, *_: pack_into(block, 0, packed)
        return layout

    def _launch(
        self,
        layout: Layout,
        args: Sequence[Any],
        grid: Any,
        block: Any,
        shared: int,
        stream: Any,
        strided: bool = False,
        timed: bool = False,
    ) -> Any:
        """Launch in order, with arguments that a layout takes; return as `run_in_order` does."""
        device_id = _cuda_device()
        here = _current_stream(device_id).ptr
        there = here if stream is None else handle_of(stream, self.name, may_be_unordered=False)
        buffer = layout.take()
        try:
            answer = layout.pack(buffer[0], args, device_id)
        except MISFITS:  # `layout.fill` looks into it
            answer = UNUSUAL
        of_pycuda = answer is OF_PYCUDA
        handlers = []
        if answer is UNUSUAL:
            of_pycuda = any(map(is_of_pycuda, args))
            handlers = [value for value in args if isinstance(value, drv.ArgumentHandler)]
        if of_pycuda:
            context.current_device()  # PyCUDA must work in the same context
        if answer is UNUSUAL:
            layout.fill(buffer[0], args, device_id, strided)
        if here == there and not (timed or handlers or (of_pycuda and here)):
            self._start(buffer, device_id, grid, block, shared, here)
            layout.idle.append(buffer)
            return None

        def start() -> None:
            self._start(buffer, device_id, grid, block, shared, there)

        seconds = run_in_order(start, here, there, device_id, of_pycuda, handlers, self.name, timed)
        layout.idle.append(buffer)
        return seconds

    def _start(
        self, buffer: Buffer, device_id: int, grid: Any, block: Any, shared: int, stream: int
    ) -> None:
        """Launch with the parameters in a buffer."""
        last = self._last  # once: another thread's call may replace it
        if last[0] is not grid or last[1] is not block or last[2] != device_id:
            last = self._extents(grid, block, device_id)
        try:
            if shared != 0:
                shared = self._allow(shared, last[3].args[0])
            last[3](shared, stream, 0, buffer[1])
        except _REFUSALS as error:
            extents = last[3].args[1:]
            raise explain(error, self, extents, shared, device_id, self.name) from error

    def _extents(self, grid: Any, block: Any, device_id: int) -> Any:
        """Check the extents; return what launches with them, and note it for the next call."""
        if block is None:
            raise ValueError(f"{self.name}: block is missing; give one, e.g. block=(128, 1, 1)")
        extents = *extent(grid, "grid", self.name), *extent(block, "block", self.name)
        launches = functools.partial(driver.launchKernel, self._handle(device_id), *extents)
        last = grid, block, device_id, launches
        if type(grid) is type(block) is tuple:  # the same tuples hold the same numbers
            self._last = last
        return last

    def _allow(self, shared: int, handle: int) -> int:
        """Return the bytes of dynamic shared memory; raise the kernel's limit if it is lower."""
        shared = shared_bytes(shared, self.name)
        if shared > self._free_shared:
            with _limit_lock:
                if driver.funcGetAttribute(_LIMIT, handle) < shared:
                    driver.funcSetAttribute(handle, _LIMIT, shared)
        return shared

    def _handle(self, device_id: int | None = None) -> int:
        """Return the CUfunction on a device, the current one if omitted."""
        device_id = _cuda_device() if device_id is None else device_id
        if device_id not in self._handles:
            self._handles[device_id] = self._module._kernel(self.name, device_id)
        return self._handles[device_id]

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
        self._prepared = Prepared(arg_types, self._declaration)
        self._codes = self._prepared.codes
        return self

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        """Launch as if on CuPy's current stream, with arguments of the prepared types.

        Parameters
        ----------
        grid, block : int or sequence of 1 to 3 ints
        *args
            Device arrays, memory (``a.gpudata``) or ints for pointers, numbers for numbers, bytes
            for structs.
        shared_size : int
            Dynamic shared memory in bytes per block.
        """
        self._launch(self._layout_prepared(), args, grid, block, shared_size, None)

    def prepared_async_call(
        self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0
    ) -> None:
        """Launch like `prepared_call`, on the given stream (None: CuPy's current one)."""
        self._launch(self._layout_prepared(), args, grid, block, shared_size, stream)

    def prepared_timed_call(
        self, grid: Any, block: Any, *args: Any, shared_size: int = 0
    ) -> Callable[[], float]:
        """Launch like `prepared_call`; return a function that waits and returns the seconds."""
        seconds: Callable[[], float] = self._launch(
            self._layout_prepared(), args, grid, block, shared_size, None, timed=True
        )
        return seconds

    def _layout_prepared(self) -> Layout:
        if self._prepared is None:
            if self._codes is None:
                raise TypeError(
                    f"{self.name}: it is not prepared; call prepare(arg_types) before the prepared "
                    f"calls: {self._declaration}"
                )
            self._prepared = Prepared(self._codes, self._declaration)
        return self._prepared

    def get_attribute(self, attribute: Any) -> int:
        """Return a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._asking(f"attribute {named(attribute)}") as handle:
            return int(driver.funcGetAttribute(operator.index(attribute), handle))

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._asking(
            f"attribute {named(attribute)} cannot be set to {named(value)}"
        ) as handle:
            driver.funcSetAttribute(handle, operator.index(attribute), operator.index(value))

    def set_cache_config(self, config: Any) -> None:
        """Set the preferred split of L1 cache and shared memory, a ``pycuda.driver.func_cache``."""
        with self._asking(f"config {named(config)}") as handle:
            status = libcuda.cuFuncSetCacheConfig(ctypes.c_void_p(handle), operator.index(config))
            driver.check_status(status)

    @contextmanager
    def _asking(self, what: str) -> Iterator[int]:
        """Give the CUfunction on the current device, and explain what CUDA refuses."""
        handle = self._handle()
        try:
            yield handle
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {what}: an int is accepted, or a member of pycuda.driver's "
                f"function_attribute and func_cache ({error})"
            ) from None
        except _REFUSALS as error:
            what += f": CUDA refuses it on this device ({error})"
            raise refusal(self.name, what) from error

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled kernel, e.g. ``num_regs``."""
        attribute = getattr(drv.function_attribute, name.upper(), None)
        if attribute is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.get_attribute(attribute)


def launch(
    function: Any,
    /,
    *args: Any,
    grid: Any,
    block: Any,
    shared: int = 0,
    stream: Any = None,
    strided: bool = False,
) -> None:
    """Launch a compiled PyCUDA function as if it were on CuPy's current stream.

    Parameters
    ----------
    function : pycuda.driver.Function
        From ``pycuda.driver.Module.get_function`` or ``pycuda.compiler.SourceModule``.  Functions
        of `bridge.SourceModule` are accepted and called.
    *args
        In the order of the kernel's parameters: device arrays (`GPUArray`, `cupy.ndarray`, any
        ``__dlpack__`` or ``__cuda_array_interface__``), device allocations, None for a null
        pointer, NumPy scalars of the parameter's width, ``numpy.void`` for a struct, bool (one
        byte), ``pycuda.driver.In``, ``Out`` and ``InOut``.
    grid, block : int or sequence of 1 to 3 ints
        Blocks in the grid, threads per block.
    shared : int
        Dynamic shared memory in bytes per block.
    stream : pycuda.driver.Stream, or a CuPy stream over one, optional
        PyCUDA's default stream if omitted, or the one given to `use_stream`.
    strided : bool
        Accept arrays that are not contiguous: the kernel knows their strides.

    Raises
    ------
    TypeError, ValueError, ContextError, pycuda.driver.Error
        As calls of `bridge.function.Function` do, but the types of the arguments are not compared
        with the kernel's.  Also if PyCUDA's context is not the primary one.

    Examples
    --------
    >>> bridge.launch(function, x, numpy.int32(x.size), grid=8, block=128)  # doctest: +SKIP

    Notes
    -----
    *Ownership:* and *Ordering:* as `bridge.function.Function`.
    *Cost:* PyCUDA's bare launch, a little per argument, and a fence where streams differ.
    """
    if isinstance(function, Function):
        function(*args, grid=grid, block=block, shared=shared, stream=stream, strided=strided)
        return
    if not isinstance(function, drv.Function):
        raise TypeError(
            f"launch: function is {named(function)}; a pycuda.driver.Function is accepted, e.g. "
            "from SourceModule(...).get_function(name)"
        )
    device_id = context.current_device()
    current = _current_stream(device_id)
    here, target = current.ptr, None
    if stream is not None or here:
        target = pycuda_stream_of(current if stream is None else stream)
    if target is None and stream is not None:
        raise TypeError(
            f"launch: stream is {named(stream)}, but PyCUDA can launch on its own streams only: "
            "give a pycuda.driver.Stream, or none"
        )
    there = handle_of(target, "launch")
    grid, block = extent(grid, "grid", "launch"), extent(block, "block", "launch")
    shared = shared_bytes(shared, "launch")
    handlers, buffer, of_pycuda = pack_arguments(args, device_id, strided, "launch")

    def start() -> None:
        try:
            function._launch_kernel(grid, block, buffer, shared, target)
        except _REFUSALS as error:
            extents = *grid, *block
            raise explain(error, function, extents, shared, device_id, "launch") from error

    run_in_order(start, here, there, device_id, of_pycuda, handlers, "launch")

"""Kernel calls, as if on CuPy's current stream: functions of a `SourceModule`, and `launch`."""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import pycuda.driver as drv
from cupy.cuda import driver

from .. import context
from ..errors import named
from ..streams import pycuda_stream_of
from .launcher import Launcher, PycudaLauncher, Table
from .refusals import REFUSALS, no_texture_references, refusal
from .tables import codes_of, declared, libcuda, prepared, table_of

_LIMIT = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
_limit_lock = threading.RLock()  # several of our functions may share one CUfunction


class Function(Launcher):
    """A kernel of a `SourceModule`, called like a ``pycuda.driver.Function``.

    It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.

    Notes
    -----
    A function is pickled as its module's source and its name.
    *Ownership:* a function keeps its module alive.  You can drop an array after the call.  Its
    memory is reused only after the kernel, in the order of CuPy's current stream.
    *Ordering:* a call runs as if on CuPy's current stream, whatever stream it is launched on.
    GPUArrays and PyCUDA's memory, but not bare addresses, are also ordered with all of PyCUDA's
    streams, unless ``stream=`` names one (rule: `bridge.streams`).  The host does not wait, except
    that ``pycuda.driver.In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of calling a `cupy.RawKernel`.
    """

    def __init__(self, module: Any, name: str, codes: list[str] | None = None) -> None:
        self.name = name
        self._module = module
        self._codes = codes  # of the prepared types

    # Computed at the first use, since unpickling a function needs no GPU.
    @functools.cached_property
    def _declared(self) -> Table:
        handle, types = self._module._kernel(self.name, context.cuda_device())
        return declared(self.name, types, handle)

    @functools.cached_property
    def _free_shared(self) -> int:
        return (48 << 10) - int(self.shared_size_bytes)  # bytes that need no higher limit

    def _load(self, device_id: int) -> int:
        """Return the CUfunction on the current device."""
        return int(self._module._kernel(self.name, device_id)[0])

    def __reduce__(self) -> Any:
        """Pickle the module, the name and what is prepared."""
        return Function, (self._module, self.name, self._codes)

    def __repr__(self) -> str:
        """Show the types of the parameters; show the size of one whose type is not known."""
        known = self.__dict__.get("_declared") or f"{self.name}(...)"  # not before it is loaded
        return f"<{type(self).__module__}.Function {known}>"

    def _table_for(self, args: Sequence[Any]) -> Table:
        """Return the kernel's table."""
        self._table = self._declared
        return self._table

    def _allow(self, shared: int, device_id: int) -> int:
        """Return the bytes of dynamic shared memory; raise the kernel's limit if it is lower."""
        if shared > self._free_shared:
            handle = self._handle(device_id)
            with _limit_lock:
                if driver.funcGetAttribute(_LIMIT, handle) < shared:
                    driver.funcSetAttribute(handle, _LIMIT, shared)
        return shared

    def prepare(self, arg_types: Iterable[Any], texrefs: Sequence[Any] = ()) -> Function:
        """Fix the types of the arguments, for the ``prepared_`` calls; return this function.

        Parameters
        ----------
        arg_types : str or iterable
            Codes of `struct` ("PPif"), NumPy scalar types or dtypes; anything else means a pointer.

        Raises
        ------
        TypeError
            If the number of types differs from the kernel's.
        """
        if texrefs:
            raise no_texture_references(f"{self.name}: texrefs")
        codes = codes_of(arg_types, self.name)
        self._prepared = prepared(self.name, codes, self._declared)
        self._codes = codes
        return self

    def _prepared_table(self) -> Table:
        """Return the table of prepared calls, also of a function that was unpickled."""
        if self._codes is None:
            raise TypeError(
                f"{self.name}: it is not prepared; call prepare(arg_types) before the prepared "
                f"calls: {self._declared}"
            )
        self._prepared = prepared(self.name, self._codes, self._declared)
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
        """Yield the CUfunction on the current device, and explain errors of CUDA."""
        handle = self._handle(context.cuda_device())
        try:
            yield handle
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {what}: an int is accepted, or a member of pycuda.driver's "
                f"function_attribute and func_cache ({error})"
            ) from None
        except REFUSALS as error:
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
        In the order of the kernel's parameters.  For pointers, pass device arrays (`GPUArray`,
        `cupy.ndarray`, any ``__dlpack__`` or ``__cuda_array_interface__``), NumPy arrays on managed
        or pinned memory, device allocations,
        ``pycuda.driver.In``, ``Out`` or ``InOut``, or None for a null pointer.  For values, pass
        NumPy scalars of the parameter's width, bool (one byte), or ``numpy.void`` for a struct.
    grid, block : int or sequence of 1 to 3 ints
        The number of blocks in the grid, and of threads per block.
    shared : int
        Dynamic shared memory per block, in bytes.
    stream : pycuda.driver.Stream, or a CuPy stream over one, optional
        The stream to launch on.  If omitted, the PyCUDA stream given to `use_stream`, or else
        PyCUDA's default stream.
    strided : bool
        Accept arrays that are not contiguous, and arrays in C and in Fortran order together, for
        kernels that use the strides.

    Raises
    ------
    TypeError, ValueError, ContextError, pycuda.driver.Error
        As in calls of `bridge.kernels.function.Function`, but the types of the arguments are not
        compared with the kernel's.  ContextError also if PyCUDA and CuPy do not share a primary
        context on this thread.

    Notes
    -----
    *Ownership:* and *Ordering:* as in `bridge.kernels.function.Function`.
    *Cost:* that of a PyCUDA launch, a little per argument, and a fence if the streams differ.
    """
    if isinstance(function, Function):
        function(*args, grid=grid, block=block, shared=shared, stream=stream, strided=strided)
        return
    if not isinstance(function, drv.Function):
        raise TypeError(
            f"launch: function is {named(function)}; a pycuda.driver.Function is accepted, e.g. "
            "from SourceModule(...).get_function(name)"
        )
    current = cupy.cuda.get_current_stream(context.current_device())
    target = None
    if stream is not None or current.ptr:
        target = pycuda_stream_of(current if stream is None else stream)
    if target is None and stream is not None:
        raise TypeError(
            f"launch: stream is {named(stream)}, but PyCUDA can launch on its own streams only: "
            "give a pycuda.driver.Stream, or none"
        )
    there = target or cupy.cuda.Stream.null
    launcher = PycudaLauncher(function, target, table_of(args, "launch"), stream is not None)
    launcher(*args, grid=grid, block=block, shared=shared, stream=there, strided=strided)

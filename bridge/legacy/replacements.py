"""What replaces parts of PyCUDA under ``python -m bridge run``, for the whole process."""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import threading
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pycuda.compiler
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.tools import make_default_context

import bridge

from ..compiler import recorders
from ..compiler.signature import NOISE
from ..errors import warn
from ..hooks import LaunchPolicy, adapt_pycuda, cuda_refusal, libcuda, patches, push_primary
from .names import AUTOINIT
from .record import record_source

_get_current = drv.Context.get_current
_push, _pop = drv.Context.push, drv.Context.pop
_of_pycuda = pycuda.compiler.DynamicSourceModule
_enable = drv.Context.enable_peer_access
_ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: CuPy's copies enable it, too


def apply(pool: bool, strict: bool, record: Path | None, recorded: set[str]) -> None:
    """Make PyCUDA use the primary context, NVRTC and the checked `bridge.SourceModule`.

    Sources are appended to `record`, and to `recorded`.  Raises ContextError if
    ``pycuda.autoinit`` has already made a second context.
    """
    if getattr(sys.modules.get("pycuda.autoinit"), "__name__", "") == "pycuda.autoinit":
        import_module("bridge.autoinit")  # raises, with the reason
    sys.meta_path.insert(0, _AutoinitFinder())
    why = "contexts that the program makes are the primary one"
    patches.apply("run", why, drv.Device, {"make_context": _make_context})
    counted = {"push": _push_counted, "pop": staticmethod(_pop_counted), "detach": _detach_counted}
    shared = {"enable_peer_access": staticmethod(_enable_peer_access)}
    patches.apply("run", why, drv.Context, counted | shared)
    bridge.use_nvrtc()
    mismatch = None if strict else _warn_of_mismatch
    adapt_pycuda(mismatch)
    _SourceModule._policy = LaunchPolicy(follows_pycuda=True, mismatch=mismatch)
    why = "modules are compiled by NVRTC and take CuPy arrays"
    modules = {"SourceModule": _SourceModule, "DynamicSourceModule": _DynamicSourceModule}
    patches.apply("run", why, pycuda.compiler, modules)
    if pool:
        _use_pool()
    if record:
        recorders.append(functools.partial(record_source, record, recorded))


class _AutoinitFinder(MetaPathFinder, Loader):
    """Imports ``bridge.autoinit`` in place of ``pycuda.autoinit``; makes no context earlier."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in AUTOINIT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if threading.current_thread() is threading.main_thread():
            return import_module("bridge.autoinit")
        module = ModuleType(spec.name)  # its context is popped when the thread ends
        context = make_default_context()
        vars(module).update(context=context, device=context.get_device())
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed."""


# ---- contexts ------------------------------------------------------------------------------------


_pushed: list[Any] = []  # the context that the program pushed last on the main thread
_kept: list[Any] = []  # it, when the program has ended


class _LastPop:
    """Pops what is left when it is freed; otherwise, PyCUDA aborts the process."""

    def __del__(self, current: Any = _get_current, pop: Any = _pop) -> None:
        while current() is not None:
            pop()


def keep_context() -> None:
    """Keep a context current for the ``__del__`` of the program's last objects.

    Without bridge, it is current until one of them pops it.  Python frees what `sys` holds last.
    """
    with suppress(drv.Error):  # in a forked process
        for context in _pushed:
            _push(context)
            vars(sys)["_bridge_last_pop"] = _LastPop()
            _kept.append(context)


class _PoppedContexts(threading.local):
    count = 0  # that are not detached yet


_popped = _PoppedContexts()


@functools.cache  # by thread: after a pop, PyCUDA frees memory on the one that made the object
def _primary_context(thread_id: int, device: Any) -> Any:
    return device.retain_primary_context()


def _make_context(device: Any, flags: int = 0) -> Any:
    push_primary(device)  # starts CUDA, and pops at the thread's end what the program leaves
    _pop()
    context = _primary_context(threading.get_ident(), device)
    _push_counted(context)
    return context


def _push_counted(context: Any) -> None:
    _push(context)
    _popped.count = max(_popped.count - 1, 0)
    if threading.current_thread() is threading.main_thread():
        _pushed[:] = [context]


def _pop_counted(pop: Any = _pop, kept: Any = _kept, popped: Any = _popped) -> None:
    if not kept:  # these are known also when Python clears its modules
        pop()
        popped.count += 1


def _detach_counted(context: Any) -> None:
    """Pop a context that the program has not popped; keep the primary context."""
    if _popped.count > 0:
        _popped.count -= 1
    elif _get_current() is context and not _kept:
        _pop()


def _enable_peer_access(peer: Any, flags: int = 0) -> None:
    try:
        _enable(peer, flags)
    except drv.Error:
        status = libcuda.cuCtxEnablePeerAccess(ctypes.c_void_p(peer.handle), flags)
        if status != _ALREADY_ENABLED:
            raise


# ---- compiling and memory ------------------------------------------------------------------------


def _warn_of_mismatch(problem: Exception) -> None:
    warn(f"{problem} (bridge run --strict PROGRAM raises)")


class _SourceModule(bridge.SourceModule):
    __doc__ = bridge.SourceModule.__doc__


class _DynamicSourceModule(_SourceModule):
    """A `_SourceModule`, or PyCUDA's own if it must be linked: if kernels launch kernels."""

    def __new__(cls, source: Any, *args: Any, **keywords: Any) -> Any:
        if not re.search(r"<<<|\bcuda[A-Z]\w*\s*\(", NOISE.sub("", str(source))):
            return super().__new__(cls)
        try:
            return _of_pycuda(source, *args, **keywords)
        except (drv.LogicError, UnicodeDecodeError) as error:  # of the log in PyCUDA's message
            raise cuda_refusal(
                "DynamicSourceModule",
                "a kernel that launches kernels is linked with libcudadevrt.a, which comes with a "
                "toolkit or the pip package nvidia-cuda-runtime, by CUDA's linker, which refuses",
            ) from error

    def __init__(
        self, source: Any, nvcc: str = "nvcc", options: Any = None, *args: Any,
        cuda_libdir: Any = None, **keywords: Any,
    ) -> None:  # fmt: skip
        kept = options and [one for one in options if one not in ("-rdc=true", "-lcudadevrt")]
        super().__init__(source, nvcc, kept, *args[:6], **keywords)


def _use_pool() -> None:
    """Make CuPy's pool the default of all functions that allocate GPUArrays.

    Programs may free an array that a stream still uses: ``cuMemFree`` waits for the device.  The
    pool does not wait; it is `pycuda_allocator` that orders a block's next user after such work.
    """
    allocate, of_driver = bridge.pycuda_allocator(), drv.mem_alloc
    for function in [gpuarray.GPUArray.__init__, *vars(gpuarray).values()]:
        if isinstance(function, FunctionType):
            given, named = function.__defaults__ or (), function.__kwdefaults__ or {}
            new: dict[str, Any] = {}
            if any(value is of_driver for value in given):
                new["__defaults__"] = tuple(allocate if v is of_driver else v for v in given)
            if any(value is of_driver for value in named.values()):
                both = {n: allocate if v is of_driver else v for n, v in named.items()}
                new["__kwdefaults__"] = both
            patches.apply("run", "arrays are in CuPy's pool", function, new)

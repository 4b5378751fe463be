"""``python -m bridge run``: a PyCUDA program as it is, in one context with CuPy, without nvcc.

`replace` puts parts of `bridge` in the place of PyCUDA's, for the whole process.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any

import pycuda
import pycuda.compiler
import pycuda.driver as drv
from pycuda import gpuarray

from . import _core
from .context import push
from .kernels import compiler
from .kernels.function import Function
from .kernels.module import SourceModule
from .memory import pycuda_allocator

_AUTOINIT = ("pycuda.autoinit", "pycuda.autoprimaryctx")
_get_current = drv.Context.get_current
_push, _pop = drv.Context.push, drv.Context.pop

# What replaces what; and the lines of the program that touched it, for --explain.
_REPLACED = {
    "pycuda.autoinit": "the primary context, which CuPy uses: import bridge.autoinit",
    "make_context": "the primary context: with bridge.primary_context()",
    "SourceModule": "compiled by NVRTC, takes CuPy arrays too, checked: bridge.SourceModule",
    "PyCUDA's kernels": "compiled by NVRTC: bridge.use_nvrtc()",
    "allocations": "CuPy's pool: allocator=bridge.pycuda_allocator()",
}
_touched: dict[str, dict[str, None]] | None = None  # None: not asked for


def replace(pool: bool = False) -> None:
    """Put the primary context, NVRTC and the checked SourceModule in the place of PyCUDA's.

    With `pool`, arrays that PyCUDA allocates are in CuPy's pool.

    Raises
    ------
    ContextError
        If ``pycuda.autoinit`` has made a second context already.
    """
    if getattr(sys.modules.get("pycuda.autoinit"), "__name__", "") == "pycuda.autoinit":
        import_module("bridge.autoinit")  # which says what is wrong
    sys.meta_path.insert(0, _Autoinit())
    drv.Device.make_context = _make_context
    drv.Context.push, drv.Context.pop = _push_counted, staticmethod(_pop_counted)
    drv.Context.detach = _detach_counted
    compiler.use_nvrtc()
    pycuda.compiler.SourceModule = _SourceModule
    if pool:
        _use_pool()
    # Processes that the program spawns unpickle this first.
    prepare = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {**prepare(name), "bridge": _Replaced(pool)}


class _Replaced:
    """What replaces, where it is unpickled."""

    def __init__(self, pool: bool) -> None:
        self.pool = pool

    def __reduce__(self) -> Any:
        return replace, (self.pool,)


class _Autoinit(MetaPathFinder, Loader):
    """Imports ``bridge.autoinit`` as ``pycuda.autoinit``, and makes no context before."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _AUTOINIT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _note("pycuda.autoinit")
        return import_module("bridge.autoinit")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed."""


# ---- contexts ------------------------------------------------------------------------------------


class _Pushed:
    """How often the program has pushed a context on a thread, and not popped.

    When the thread ends, the rest is popped, or PyCUDA would abort the process.
    """

    count = 0

    def __del__(self) -> None:
        while self.count > 0 and _get_current() is not None:
            self.count -= 1
            _pop()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pushed = _Pushed()


_thread = _Thread()


def _make_context(device: Any, flags: int = 0) -> Any:
    _note("make_context")
    context = push(device)
    _thread.pushed.count += 1
    return context


def _push_counted(context: Any) -> None:
    _push(context)
    _thread.pushed.count += 1


def _pop_counted() -> None:
    _pop()
    _thread.pushed.count -= 1


def _detach_counted(context: Any) -> None:
    """Pop a context that the program has pushed and not popped; the primary one lives on."""
    if _thread.pushed.count > 0 and _get_current() is context:
        _pop_counted()


# ---- compiling and memory ------------------------------------------------------------------------


class _SourceModule(SourceModule):
    __doc__ = SourceModule.__doc__

    def __init__(self, *args: Any, **keywords: Any) -> None:
        of_pycuda = sys._getframe(1).f_code.co_filename.startswith(_FOLDERS)
        _note("PyCUDA's kernels" if of_pycuda else "SourceModule")
        super().__init__(*args, **keywords)

    def get_function(self, name: str) -> Function:
        """Return a function whose launches on several streams overlap, as PyCUDA's do."""
        function = super().get_function(name)
        function.overlaps = True
        return function


class _Stream(drv.Stream):  # type: ignore[misc]
    """A stream whose work comes before the reuse of any memory that is dropped behind it."""

    def __init__(self, flags: int = 0) -> None:
        super().__init__(flags)
        _core.follow(self, _core.device_of_stream(self.handle)[1])

    def __del__(self) -> None:
        _core.unfollow(self)


def _use_pool() -> None:
    """Make CuPy's pool the default of all functions that allocate GPUArrays.

    ``cuMemFree`` waits for all work of the device, so programs drop arrays without a thought of
    their streams.  A block in a pool does not wait: here every stream does, on the device.
    """
    malloc, of_driver = pycuda_allocator(), drv.mem_alloc

    def allocate(size: int) -> Any:
        _note("allocations")
        found = malloc(size)
        found.memory = _core.keep_behind_all(found.memory, found.memory.device_id)
        return found

    functions = [gpuarray.GPUArray.__init__, *vars(gpuarray).values()]
    for function in functions:
        if isinstance(function, FunctionType):
            for defaults in "__defaults__", "__kwdefaults__":
                _replace_in(function, defaults, of_driver, allocate)
    drv.Stream = _Stream


def _replace_in(function: Any, defaults: str, old: Any, new: Any) -> None:
    values = getattr(function, defaults)
    if isinstance(values, dict):
        values = {name: new if value is old else value for name, value in values.items()}
    elif values:
        values = tuple(new if value is old else value for value in values)
    setattr(function, defaults, values)


# ---- the program ---------------------------------------------------------------------------------


def run(arguments: Sequence[str], is_module: bool, explain: bool) -> int:
    """Run a program, or a module, with its arguments; return the exit status."""
    global _touched
    if explain:
        _touched = {}
    program = arguments[0]
    sys.argv[:] = arguments
    try:
        if is_module:
            sys.path[0] = ""
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        traceback = _of_program(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        if explain:
            _print_touched()
    return 0


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the program."""
    while traceback and _is_hidden(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


_FOLDERS = (f"{Path(__file__).parent}/", f"{Path(pycuda.__file__).parent}/", "<frozen ")


def _is_hidden(filename: str) -> bool:
    """Tell whether a file is of the package, of PyCUDA, or of what runs modules."""
    return filename.startswith(_FOLDERS) or filename == runpy.__file__


def _note(what: str) -> None:
    """Note the line of the program that touches something."""
    if _touched is None:
        return
    frame = sys._getframe(1)
    while frame.f_back and _is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    _touched.setdefault(what, {})[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None


def _print_touched() -> None:
    for what, lines in (_touched or {}).items():
        print(f"bridge run: {what} -> {_REPLACED[what]}", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)
    if not _touched:
        print("bridge run: nothing of PyCUDA was replaced", file=sys.stderr)

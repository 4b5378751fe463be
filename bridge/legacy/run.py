"""``python -m bridge run``: run a PyCUDA program unchanged, in CuPy's context, without nvcc.

`replace` replaces parts of PyCUDA with parts of `bridge`, for the whole process.
"""

from __future__ import annotations

import atexit
import builtins
import functools
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
from zipfile import is_zipfile

import pycuda
import pycuda.compiler
import pycuda.driver as drv
import pytools
from pycuda import gpuarray
from pycuda.tools import make_default_context

import bridge

from ..errors import warn
from ..hooks import LaunchPolicy, export_in_order, patches, push_primary

_AUTOINIT = ("pycuda.autoinit", "pycuda.autoprimaryctx")
_get_current = drv.Context.get_current
_push, _pop = drv.Context.push, drv.Context.pop

# For --explain: the replacements, and the lines of the program that used them.
_REPLACED = {
    "pycuda.autoinit": "the primary context, which CuPy uses: import bridge.autoinit",
    "make_context": "the primary context: with bridge.primary_context()",
    "SourceModule": "compiled by NVRTC, takes CuPy arrays too, checked: bridge.SourceModule",
    "PyCUDA's kernels": "compiled by NVRTC: bridge.use_nvrtc()",
    "allocations": "CuPy's pool: allocator=bridge.pycuda_allocator()",
}
_touched: dict[str, dict[str, None]] | None = None  # None: not asked for


def replace(pool: bool = False, strict: bool = False) -> None:
    """Make PyCUDA use the primary context, NVRTC and the checked `bridge.SourceModule`.

    ``skcuda`` and ``scikits.cuda`` are `bridge.legacy.skcuda`, unless an installed one imports.
    With `pool`, PyCUDA allocates arrays in CuPy's pool.  A kernel that would misread one of
    PyCUDA's own arrays warns, or raises if `strict`.

    Raises
    ------
    ContextError
        If ``pycuda.autoinit`` has already made a second context.
    """
    if getattr(sys.modules.get("pycuda.autoinit"), "__name__", "") == "pycuda.autoinit":
        import_module("bridge.autoinit")  # raises, with the reason
    sys.meta_path.insert(0, _Autoinit())
    import_module("bridge.legacy.skcuda")  # from now on, `import skcuda` finds it
    why = "contexts that the program makes are the primary one"
    patches.apply("run", why, drv.Device, {"make_context": _make_context})
    patches.apply(
        "run", why, drv.Context, {"push": _push_counted, "pop": staticmethod(_pop_counted)}
    )
    patches.apply("run", why, drv.Context, {"detach": _detach_counted})
    bridge.use_nvrtc()
    export_in_order()
    _SourceModule.policy = LaunchPolicy(True, mismatch=None if strict else _warn)
    why = "modules are compiled by NVRTC and take CuPy arrays"
    patches.apply("run", why, pycuda.compiler, {"SourceModule": _SourceModule})
    if pool:
        _use_pool()
    prepare = spawn.get_preparation_data

    def prepare_spawned(name: str) -> dict[str, Any]:
        return {**prepare(name), "bridge": _Replaced(pool, strict)}  # is unpickled first

    why = "spawned processes do the same"
    patches.apply("run", why, spawn, {"get_preparation_data": prepare_spawned})


class _Replaced:
    """Calls `replace` in the process that unpickles it."""

    def __init__(self, *arguments: bool) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return replace, self.arguments


class _Autoinit(MetaPathFinder, Loader):
    """Imports ``bridge.autoinit`` in place of ``pycuda.autoinit``; makes no context earlier."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _AUTOINIT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _note("pycuda.autoinit")
        if threading.current_thread() is threading.main_thread():
            return import_module("bridge.autoinit")
        module = ModuleType(spec.name)  # its context is popped when the thread ends
        context = make_default_context()
        vars(module).update(context=context, device=context.get_device())
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed."""


# ---- contexts ------------------------------------------------------------------------------------


class _Thread(threading.local):
    popped = 0  # contexts that are popped but not detached


_thread = _Thread()


def _make_context(device: Any, flags: int = 0) -> Any:
    _note("make_context")
    _thread.popped = max(_thread.popped - 1, 0)
    return push_primary(device)


def _push_counted(context: Any) -> None:
    _push(context)
    _thread.popped = max(_thread.popped - 1, 0)


def _pop_counted() -> None:
    _pop()
    _thread.popped += 1


def _detach_counted(context: Any) -> None:
    """Pop a context that the program has not popped; keep the primary context."""
    if _thread.popped > 0:
        _thread.popped -= 1
    elif _get_current() is context:
        _pop()


# ---- compiling and memory ------------------------------------------------------------------------


def _warn(problem: Exception) -> None:
    warn(f"{problem} (bridge run --strict raises)")


class _SourceModule(bridge.SourceModule):
    __doc__ = bridge.SourceModule.__doc__
    policy = LaunchPolicy(True, mismatch=_warn)  # follows PyCUDA

    def __new__(cls, *args: Any, **keywords: Any) -> _SourceModule:
        # Not in __init__, where warnings would name this file instead of the program's.
        _note("SourceModule", "PyCUDA's kernels")
        return super().__new__(cls)


def _use_pool() -> None:
    """Make CuPy's pool the default of all functions that allocate GPUArrays.

    ``cuMemFree`` waits for all work on the device, so programs free arrays that streams still use.
    A pool does not wait, but blocks of `pycuda_allocator` do, on the device.
    """
    malloc, of_driver = bridge.pycuda_allocator(), drv.mem_alloc

    def allocate(size: int) -> Any:
        _note("allocations")
        return malloc(size)

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


# ---- the program ---------------------------------------------------------------------------------


def run(arguments: Sequence[str], is_module: bool, explain: bool) -> None:
    """Run a program, or a module, with its arguments, as Python itself would."""
    global _touched
    if explain:
        _touched = {}
        atexit.register(_print_touched)
    program = arguments[0]
    sys.argv[:] = arguments
    path = Path(program).absolute()
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11
        sys.path[0] = str(Path.cwd() if is_module else path.resolve().parent)
    main = sys.modules["__main__"] = ModuleType("__main__")  # also after the program's last line
    try:
        if is_module:
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # as `python -m`
        elif path.is_file() and path.suffix != ".pyc" and not is_zipfile(path):
            vars(main).update(__file__=str(path), __builtins__=builtins)
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(main))
        else:  # a folder or an archive with a __main__
            runpy.run_path(program, run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = functools.partial(_print_error, sys.excepthook)
        raise


def _print_error(hook: Any, kind: Any, error: Any, traceback: TracebackType | None) -> None:
    """Print an error; its traceback starts in the program."""
    while traceback and _is_hidden(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    hook(kind, error.with_traceback(traceback), traceback)
    if traceback is None and "Missing parentheses in call to 'print'" in str(error):
        print("This is Python 2: python -m bridge migrate converts it", file=sys.stderr)


_BRIDGE, *_PYCUDA = (
    f"{Path(str(module.__file__)).parent}/" for module in (bridge, pycuda, pytools)
)


def _is_hidden(filename: str) -> bool:
    """Tell whether a file belongs to bridge, PyCUDA, pytools or the code that runs modules."""
    return filename.startswith(("<frozen ", _BRIDGE, *_PYCUDA)) or filename == runpy.__file__


def _note(what: str, by_pycuda: str = "") -> None:
    """Record the line of the program that uses a replaced part, perhaps by PyCUDA's own code."""
    if _touched is None:
        return
    frame = sys._getframe(1)
    while frame.f_back and _is_hidden(frame.f_code.co_filename):
        if by_pycuda and frame.f_code.co_filename.startswith(tuple(_PYCUDA)):
            what = by_pycuda
        frame = frame.f_back
    _touched.setdefault(what, {})[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None


def _print_touched() -> None:
    for what, lines in (_touched or {}).items():
        print(f"bridge run: {what} -> {_REPLACED[what]}", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)
    if not _touched:
        print("bridge run: this process used nothing that is replaced", file=sys.stderr)
    unseen = "pointers passed between the libraries (UnownedMemory, allocator=lambda ...)"
    print(f"bridge run: not looked for: {unseen}", file=sys.stderr)

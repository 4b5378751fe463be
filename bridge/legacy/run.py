"""``python -m bridge run``: run a PyCUDA program unchanged, in CuPy's context, without nvcc.

`replace` replaces parts of PyCUDA with parts of `bridge`, for the whole process.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import hashlib
import re
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
from pycuda import gpuarray
from pycuda.tools import make_default_context

import bridge

from ..compiler import Request, recorders
from ..errors import is_hidden, program_frame, warn
from ..hooks import LaunchPolicy, adapt_pycuda, patches, push_primary
from .names import AUTOINIT

_get_current = drv.Context.get_current
_push, _pop = drv.Context.push, drv.Context.pop

# For --explain: the replacements, and the lines of the program that used them.
_REPLACEMENTS = {
    "pycuda.autoinit": "the primary context, which CuPy uses: import bridge.autoinit",
    "make_context": "the primary context: with bridge.primary_context()",
    "SourceModule": "compiled by NVRTC, takes CuPy arrays too, checked: bridge.SourceModule",
    "PyCUDA's kernels": "compiled by NVRTC: bridge.use_nvrtc()",
    "textures": "references over texture and surface objects: bridge.SourceModule.get_texref",
    "allocations": "CuPy's pool: allocator=bridge.pycuda_allocator()",
}
_uses: dict[str, dict[str, None]] | None = None  # None: without --explain


def replace(pool: bool = False, strict: bool = False, folder: Path | None = None) -> None:
    """Make PyCUDA use the primary context, NVRTC and the checked `bridge.SourceModule`.

    ``skcuda`` and ``scikits.cuda`` are `bridge.legacy.skcuda`, unless an installed one imports.
    With `pool`, PyCUDA allocates arrays in CuPy's pool.  A kernel that would misread one of
    PyCUDA's own arrays warns, or raises if `strict`.  Each source is recorded in `folder`.  Raises
    ContextError if ``pycuda.autoinit`` has already made a second context.
    """
    if getattr(sys.modules.get("pycuda.autoinit"), "__name__", "") == "pycuda.autoinit":
        import_module("bridge.autoinit")  # raises, with the reason
    sys.meta_path.insert(0, _AutoinitFinder())
    import_module("bridge.legacy.skcuda")  # from now on, `import skcuda` finds it
    why = "contexts that the program makes are the primary one"
    patches.apply("run", why, drv.Device, {"make_context": _make_context})
    counted = {"push": _push_counted, "pop": staticmethod(_pop_counted), "detach": _detach_counted}
    patches.apply("run", why, drv.Context, counted)
    bridge.use_nvrtc()
    mismatch = None if strict else _warn_of_mismatch
    adapt_pycuda(mismatch)
    _SourceModule._policy = LaunchPolicy(follows_pycuda=True, mismatch=mismatch)
    why = "modules are compiled by NVRTC and take CuPy arrays"
    patches.apply("run", why, pycuda.compiler, {"SourceModule": _SourceModule})
    if pool:
        _use_pool()
    if folder:
        recorded = set[str]()
        recorders.append(functools.partial(_record_source, folder, recorded))
        atexit.register(
            lambda: print(
                f"bridge run: {len(recorded)} sources are in {folder}"
                + ("" if recorded else "; run a program that calls what this one defines"),
                file=sys.stderr,
            )
        )
    prepare = spawn.get_preparation_data

    def prepare_spawned(name: str) -> dict[str, Any]:
        replacing = _ReplaceInSpawned(pool, strict, folder)  # is unpickled first
        return {**prepare(name), "bridge": replacing}

    why = "spawned processes do the same"
    patches.apply("run", why, spawn, {"get_preparation_data": prepare_spawned})


class _ReplaceInSpawned:
    """Calls `replace` in the process that unpickles it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return replace, self.arguments


class _AutoinitFinder(MetaPathFinder, Loader):
    """Imports ``bridge.autoinit`` in place of ``pycuda.autoinit``; makes no context earlier."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in AUTOINIT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _record_use("pycuda.autoinit")
        if threading.current_thread() is threading.main_thread():
            return import_module("bridge.autoinit")
        module = ModuleType(spec.name)  # its context is popped when the thread ends
        context = make_default_context()
        vars(module).update(context=context, device=context.get_device())
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed."""


# ---- contexts ------------------------------------------------------------------------------------


class _PoppedContexts(threading.local):
    count = 0  # that are not detached yet


_popped = _PoppedContexts()


@functools.cache  # by thread: after a pop, PyCUDA frees memory on the one that made the object
def _primary_context(thread_id: int, device: Any) -> Any:
    return device.retain_primary_context()


def _make_context(device: Any, flags: int = 0) -> Any:
    _record_use("make_context")
    push_primary(device)  # starts CUDA, and pops at the thread's end what the program leaves
    _pop()
    context = _primary_context(threading.get_ident(), device)
    _push_counted(context)
    return context


def _push_counted(context: Any) -> None:
    _push(context)
    _popped.count = max(_popped.count - 1, 0)


def _pop_counted() -> None:
    _pop()
    _popped.count += 1


def _detach_counted(context: Any) -> None:
    """Pop a context that the program has not popped; keep the primary context."""
    if _popped.count > 0:
        _popped.count -= 1
    elif _get_current() is context:
        _pop()


# ---- compiling and memory ------------------------------------------------------------------------


def _warn_of_mismatch(problem: Exception) -> None:
    warn(f"{problem} (bridge run --strict PROGRAM raises)")


class _SourceModule(bridge.SourceModule):
    __doc__ = bridge.SourceModule.__doc__

    def __new__(cls, *args: Any, **keywords: Any) -> _SourceModule:
        # Not in __init__, whose frame would be in the tracebacks of the program's errors.
        by_pycuda = is_hidden(sys._getframe(1).f_code.co_filename)
        _record_use("PyCUDA's kernels" if by_pycuda else "SourceModule")
        return super().__new__(cls)

    def get_texref(self, name: str) -> Any:
        _record_use("textures")
        return super().get_texref(name)

    def get_surfref(self, name: str) -> Any:
        _record_use("textures")
        return super().get_surfref(name)


def _record_source(folder: Path, recorded: set[str], request: Request) -> None:
    """Write a program that compiles a source, for ``python -m bridge check``, and note its name."""
    source = "\n    ".join(map(repr, request.source.splitlines(keepends=True))) or "''"
    folders = [str(Path(one).absolute()) for one in request.include_dirs]
    given = f"options={request.options}, include_dirs={folders}, no_extern_c={request.no_extern_c}"
    program = f"SourceModule(\n    {source},\n    {given}\n)\n"
    text = f"# {_line_of_program()}\nfrom pycuda.compiler import SourceModule\n\n{program}"
    stem = re.sub(r"\W", "_", Path(program_frame().f_code.co_filename).stem)
    name = f"{stem}_{hashlib.sha256(program.encode()).hexdigest()[:16]}.py"
    recorded.add(name)
    (folder / name).write_text(text, encoding="utf-8")


def _use_pool() -> None:
    """Make CuPy's pool the default of all functions that allocate GPUArrays.

    Programs may free an array that a stream still uses: ``cuMemFree`` waits for the device.  The
    pool does not wait; it is `pycuda_allocator` that orders a block's next user after such work.
    """
    malloc, of_driver = bridge.pycuda_allocator(), drv.mem_alloc

    def allocate(size: int) -> Any:
        _record_use("allocations")
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
    global _uses
    if explain:
        _uses = {}
        atexit.register(_print_uses)
    program = arguments[0]
    sys.argv[:] = arguments
    path = Path(program).absolute()
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11
        sys.path.insert(0, str(Path.cwd() if is_module else path.resolve().parent))
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
    except BaseException as error:
        sys.excepthook = functools.partial(_print_error, sys.excepthook, error.__traceback__)
        raise


def _print_error(
    hook: Any, traceback: TracebackType | None, kind: Any, error: Any, _: TracebackType | None
) -> None:
    """Print an error; its traceback starts in the program, below `run`."""
    while traceback and is_hidden(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    hook(kind, error.with_traceback(traceback), traceback)
    if traceback is None and "Missing parentheses in call to" in str(error):
        print("This is Python 2: python -m bridge migrate converts it", file=sys.stderr)


def _record_use(part: str) -> None:
    """Record the line of the program that uses a replaced part of PyCUDA."""
    if _uses is not None:
        _uses.setdefault(part, {})[_line_of_program()] = None


def _line_of_program() -> str:
    frame = program_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _print_uses() -> None:
    for part, lines in (_uses or {}).items():
        print(f"bridge run: {part} -> {_REPLACEMENTS[part]}", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)
    if not _uses:
        print("bridge run: this process used nothing that is replaced", file=sys.stderr)
    unseen = "pointers passed between the libraries (UnownedMemory, allocator=lambda ...)"
    print(f"bridge run: not looked for: {unseen}", file=sys.stderr)

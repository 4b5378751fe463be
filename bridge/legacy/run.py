"""``python -m bridge run``: run a PyCUDA program unchanged, in CuPy's context, without nvcc.

Importing this module imports neither library, nor NumPy: what the program sets in ``os.environ``
before its own imports counts.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

from ..errors import import_libraries, is_hidden
from ..interop import patches


def replace(pool: bool = False, strict: bool = False, record: Path | None = None) -> None:
    """Have parts of PyCUDA replaced when it is first imported; at once if it has been.

    With `pool`, PyCUDA allocates arrays in CuPy's pool.  A kernel that would misread one of
    PyCUDA's own arrays warns, or raises if `strict`.  Sources are appended to `record`.
    ``skcuda`` and ``scikits.cuda`` are `bridge.legacy.skcuda`, unless an installed one imports.
    Processes that ``multiprocessing`` spawns do the same.
    """
    atexit.register(_keep_context)  # before bridge's own, which it is called after
    import_module("bridge.legacy.skcuda")  # from now on, `import skcuda` finds it
    recorded = set[str]()
    if record:
        atexit.register(
            lambda: print(
                f"bridge run: {len(recorded)} sources are in {record}"
                + ("" if recorded else "; run a program that calls what this one defines"),
                file=sys.stderr,
            )
        )
    prepare = spawn.get_preparation_data

    def prepare_spawned(name: str) -> dict[str, Any]:
        replaces = _ReplaceInSpawned(pool=pool, strict=strict, record=record)
        return {**prepare(name), "bridge": replaces}

    why = "spawned processes do the same"
    patches.apply("run", why, spawn, {"get_preparation_data": prepare_spawned})

    def replace_now() -> None:
        with _without_the_programs_modules():
            try:
                import_libraries()
            except ImportError as error:
                sys.exit(f"FAILED: {error}")
            from .replacements import apply

            apply(pool, strict, record, recorded)

    if "pycuda" in sys.modules:
        replace_now()
    else:
        sys.meta_path.insert(0, _Finder(replace_now))


@contextmanager
def _without_the_programs_modules() -> Iterator[None]:
    """Set aside what stands beside the program: a ``cuda.py`` hides a package that CuPy needs."""
    folder, path, before = Path(sys.argv[0]).resolve().parent, sys.path[:], {*sys.modules}
    if (folder / "cupy").exists():  # the program is an installed one
        yield
        return
    sys.path[:] = [one for one in path if Path(one).resolve() != folder]
    own = {file.stem for file in folder.glob("*.py")} - {"__main__"}
    is_own = {name: str(getattr(sys.modules[name], "__file__", "")) for name in own & before}
    aside = {
        n: sys.modules.pop(n) for n, file in is_own.items() if Path(file).is_relative_to(folder)
    }
    try:
        yield
    finally:
        sys.path[:] = path
        for name in own - before | aside.keys():
            sys.modules.pop(name, None)  # the program imports its own
        sys.modules.update(aside)


def _keep_context() -> None:
    if replacements := sys.modules.get("bridge.legacy.replacements"):
        replacements.keep_context()


class _ReplaceInSpawned(dict[str, Any]):
    """Arguments of `replace`, which is called in the process that unpickles them."""

    def __reduce__(self) -> Any:
        return functools.partial(replace, **self), ()


class _Finder(MetaPathFinder):
    """Calls a function when the package ``pycuda`` has been imported, before its modules are."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == "bridge.hooks":
            import_module("pycuda")  # first: what replaces its parts needs these hooks
        if name != "pycuda":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            self.function()  # says what is missing
            return spec
        sys.meta_path.insert(0, self)  # the program may only ask whether there is one
        loader: Any = spec.loader

        def execute(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            del loader.exec_module
            loader.exec_module(module)
            self.function()

        loader.exec_module = execute
        return spec


# ---- the program ---------------------------------------------------------------------------------


def run(arguments: Sequence[str], is_module: bool) -> None:
    """Run a program, or a module, with its arguments, as Python itself would."""
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

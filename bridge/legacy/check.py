"""``python -m bridge check``: which PyCUDA programs of a folder run with bridge, and which not.

Nothing of the programs (``*.py``, ``*.ipynb``) is run: sources are read from their syntax trees, as
far as `bridge.legacy.values` knows their values.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import symtable
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import cupy
import pycuda.compiler
import pycuda.driver as drv
from pycuda.elementwise import get_elwise_kernel
from pycuda.reduction import ReductionKernel
from pytools.prefork import ExecError

from ..compiler import Request, examine
from .migrate.python2 import to_python3
from .names import AMBIGUOUS, BEFORE_CUDA_4, SERVED, cupy_name, within_skcuda
from .values import Unknown, Values

# Names of PyCUDA that `bridge run` does not support, and what to do instead.
_NOT_SERVED = {
    **BEFORE_CUDA_4,
    "DynamicSourceModule": "needs libcudadevrt.a, from nvidia-cuda-runtime or a toolkit",
}
# Names of PyCUDA that compile sources; kernels give what they generate to SourceModule.
_COMPILING: dict[str, Any] = {
    "SourceModule": lambda *args, **keywords: pycuda.compiler.SourceModule(*args, **keywords),
    **{"ElementwiseKernel": get_elwise_kernel, "ReductionKernel": ReductionKernel},
}


class _Program(ast.NodeVisitor):
    """Reads the calls of ``SourceModule`` in a program, and names that `run` does not serve."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path = path
        self.before = ""  # what must be done before it runs
        self.calls: list[tuple[str, ast.Call]] = []  # what is called, and the call
        self.not_served: dict[str, int] = {}  # names, and the first line of each
        self.compiling = {name: name for name in _COMPILING}  # what the program calls them
        self.skcuda_modules: dict[str, str] = {}
        tree = ast.parse(text, str(path))
        self.values = Values(path, tree)
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        """Note what a node calls and names."""
        match node:
            case ast.ImportFrom():
                for alias in node.names:
                    called = alias.asname or alias.name
                    if alias.name in _COMPILING:
                        self.compiling[called] = "" if node.module == "cupy" else alias.name
                    self._note_skcuda(f"{node.module}.{alias.name}", called, node.lineno)
                    if alias.name not in BEFORE_CUDA_4:
                        self._note_not_served(alias.name, node.lineno)
            case ast.Import():
                for alias in node.names:
                    self._note_skcuda(alias.name, alias.asname or alias.name, node.lineno)
            case ast.Attribute(owner, name):
                if name not in AMBIGUOUS or _give_functions(self.values.assigned(owner)):
                    self._note_not_served(name, node.lineno)
                if library := self.skcuda_modules.get(ast.unparse(owner)):
                    self._note_skcuda(f"skcuda.{library}.{name}", "", node.lineno)
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if self.compiling.get(name):
                if ast.unparse(node.func).split(".")[0] not in ("cp", "cupy"):
                    self.calls.append((self.compiling[name], node))
        self.generic_visit(node)

    def _note_not_served(self, name: str, line: int) -> None:
        if name in _NOT_SERVED:
            self.not_served.setdefault(name, line)

    def _note_skcuda(self, name: str, called: str, line: int) -> None:
        """Note a name of scikit-cuda: a module of its, or what that has."""
        parts = within_skcuda(name)
        if not parts or parts[0] == "autoinit":
            return
        if parts[0] not in SERVED:
            self.not_served.setdefault(f"skcuda.{parts[0]}", line)
        elif len(parts) == 1:
            self.skcuda_modules[called] = parts[0]
        elif parts[1] != "*" and not _is_served(*parts[:2]):
            self.not_served.setdefault(f"skcuda.{parts[0]}.{parts[1]}", line)

    def requests(self, called: str, call: ast.Call, arch: str) -> list[Request]:
        """Return what a call compiles; raise Unknown as `value` does."""
        value = self.values.value
        args = [value(arg) for arg in call.args]
        keywords = {k.arg: value(k.value) for k in call.keywords if k.arg}
        with mock.patch.object(pycuda.compiler, "SourceModule") as module:
            _COMPILING[called](*args, **keywords)
        return [self._request(arch, *one.args, **one.kwargs) for one in module.call_args_list]

    def _request(self, arch: str, *args: Any, **keywords: Any) -> Request:
        given = dict(zip(Request._fields, args, strict=False)) | keywords
        source, no_extern_c = given["source"], bool(given.get("no_extern_c"))
        if not isinstance(source, str):
            raise Unknown(type(source).__name__)
        found = self.values.found
        options, folders = (list(given.get(n) or ()) for n in ("options", "include_dirs"))
        folders = [str(found(folder)) for folder in folders]
        included = re.findall(r'#\s*include\s*[<"](.+?)[>"]', source)
        if any((self.path.parent / name).is_file() for name in included):
            folders.append(str(self.path.parent))  # otherwise, the code is cached
        for index, option in enumerate(options):
            if options[index - 1 : index] == ["-I"]:
                options[index] = str(found(option))
            elif option.startswith("-I") and option != "-I":
                options[index] = f"-I{found(option[2:])}"
        return Request(source, "nvcc", options, False, no_extern_c, arch, None, None, folders)


def _give_functions(values: Sequence[ast.expr | None]) -> bool:
    """Tell whether all expressions are calls of ``get_function``."""
    calls = [one for one in values if isinstance(one, ast.Call)]
    names = [getattr(one.func, "attr", "") for one in calls]
    return names == ["get_function"] * len(values)


def _is_served(library: str, name: str) -> bool:
    """Tell whether a module of `bridge.legacy.skcuda` has a name, without importing it."""
    path = Path(__file__).parent / "skcuda" / f"{library}.py"
    symbols = symtable.symtable(path.read_text(), str(path), "exec").get_symbols()
    if name in {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}:
        return True
    function = cupy_name(library, name)
    try:
        of_cupy = hasattr(getattr(cupy.cuda, library), function) if function else False
    except Exception:  # CUDA's library is not here: nothing can be told
        return True
    return of_cupy or function.endswith(("copy", "swap"))


def _nvcc_compiles(request: Request) -> bool:
    try:
        pycuda.compiler.compile(*request)
    except (drv.CompileError, ExecError):
        return False
    return True


def _show_progress(text: str) -> None:
    """Overwrite the last line, if it is a terminal's."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:width]}\033[K", end="", file=sys.stderr, flush=True)


def _print(line: str) -> None:
    _show_progress("")
    print(line, flush=True)


def check_programs(
    folder: str, arch: str = "sm_90", verbose: bool = False, with_nvcc: bool = True
) -> bool:
    """Print a line for each program, and a summary; return whether programs were read and run."""
    root, count, not_served = Path(folder), Counter[str](), Counter[str]()
    nvcc = shutil.which("nvcc") if with_nvcc else None
    with_nvcc = nvcc is not None and "hostcuda" not in Path(nvcc).resolve().parts
    paths = [path for path in root.rglob("*") if path.suffix in (".py", ".ipynb")]
    paths = sorted(filter(Path.is_file, paths)) if root.is_dir() else [root]
    for number, path in enumerate(paths, 1):
        _show_progress(f"{number} of {len(paths)}: {path}")
        try:
            text = path.read_bytes()
            if not any(w.encode() in text for w in (*_COMPILING, "skcuda", "scikits")):
                continue
            if path.suffix == ".ipynb":
                text = _code_of_notebook(text)
            text, edits = to_python3(text, path.name)
            program = _Program(path, text)
        except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
            _print(f"{path}: cannot be read: {error}")
            count[_NOT_KNOWN] += 1
            continue
        if path.suffix == ".ipynb":
            program.before = "%load_ext bridge"
        elif edits:  # it is Python 2, or has lines for IPython
            program.before = "bridge migrate"
        for name, line in program.not_served.items():
            not_served[name] += 1
            if verbose:
                _print(f"{path}:{line}: {name}")
        found = Counter[str]()
        for call in program.calls:
            found.update(_check_source(program, *call, arch, with_nvcc, verbose))
        verdict, why = _verdict(program, found)
        _print(f"{path}: {verdict}{why}")
        count.update(found)
        count[verdict] += 1
    _print("\n".join(_summary(count, not_served, with_nvcc, arch)))
    return bool(count[_WILL] and not count[_WILL_NOT])


_RECORD = "record them with bridge run --record FOLDER PROGRAM, then bridge check FOLDER"
_VERDICTS = _WILL, _WILL_NOT, _NOT_KNOWN = "will run", "will not run", "not known"


def _verdict(program: _Program, found: Counter[str]) -> tuple[str, str]:
    """Say whether `run` runs a program, and why not."""
    reasons = [f"{found['fail']} of its sources do not compile"] * bool(found["fail"])
    reasons += [f"{name} is not served" for name in program.not_served]
    if reasons:
        return _WILL_NOT, f": {', '.join(reasons)}"
    if late := found["made at run time"]:
        return _NOT_KNOWN, f": {late} of its sources are made when it runs; {_RECORD}"
    return _WILL, program.before and f", after {program.before}"


def _code_of_notebook(text: bytes) -> bytes:
    """Return the code of a notebook's cells, without the lines that IPython reads."""
    cells = json.loads(text).get("cells", ())
    code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    return re.sub(r"^(\s*)([%!].*)", r"\1pass  # \2", "\n".join(code), flags=re.MULTILINE).encode()


def _check_source(
    program: _Program, called: str, call: ast.Call, arch: str, with_nvcc: bool, verbose: bool
) -> Iterator[str]:
    """Compile the source of a call, print what came of it, and yield what to count."""
    place = f"{program.path}:{call.lineno}"
    read = partial(program.requests, called, call, arch)
    found, errors = program.values.each(call, read)
    if not found:
        error, text = errors[0], str(errors[0])
        is_unknown = isinstance(error, Unknown)
        why = text.split("\n")[0][:60] if is_unknown else f"{type(error).__name__}: {text}"
        _print(f"{place}: the source is made when the program runs: {why}")
        yield "made at run time"
    distinct = {repr(one): one for requests in found for one in requests}
    for request in distinct.values():
        yield from _compile(request, place, arch, with_nvcc, verbose)


def _compile(
    request: Request, place: str, arch: str, with_nvcc: bool, verbose: bool
) -> Iterator[str]:
    problem, by_nvcc, kernels = "", None, {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if with_nvcc:
                by_nvcc = _nvcc_compiles(request)
            kernels = examine(request, arch)
    except Exception as error:
        log = getattr(error, "stderr", None) or str(error)
        problem = next((line for line in log.splitlines() if "error" in line), str(error))
    if problem:
        _print(f"{place}: does not compile: {problem}")
    elif verbose:
        shown = [
            f"{name}({', '.join(one.text for one in found)})" if found is not None else name
            for name, found in kernels.items()
        ]
        _print(f"{place}: compiles: {'; '.join(shown)}")
    yield "fail" if problem else "compile"
    parameters = [one for found in kernels.values() for one in found or ()]
    yield from ["kernels"] * len(kernels) + ["parameters"] * len(parameters)
    yield from ["kernels of unknown types" for found in kernels.values() if found is None]
    yield from ["known" for one in parameters if one.dtype is not None]
    if by_nvcc is not None:
        yield f"nvcc {by_nvcc}, ours {not problem}"


def _summary(
    count: Counter[str], not_served: Counter[str], with_nvcc: bool, arch: str
) -> Sequence[str]:
    verdicts = [f"{count[verdict]} {verdict}" for verdict in _VERDICTS]
    yes, no, late = count["compile"], count["fail"], count["made at run time"]
    lines = [f"programs: {', '.join(verdicts)}"]
    if not any(count[verdict] for verdict in _VERDICTS):
        return ["no program that uses SourceModule or scikit-cuda was found"]
    lines.append(
        f"sources: {yes} of {yes + no + late} compile for {arch}, {no} do not, {late} are made "
        "when the program runs, and were not read"
    )
    if count["kernels"]:
        lines.append(
            f"kernels: {count['kernels']}; the types of {count['known']} of {count['parameters']} "
            "parameters are known, and arguments for these are checked"
        )
    if count["kernels of unknown types"]:
        lines.append(
            f"kernels of unknown types: {count['kernels of unknown types']}; their arguments are "
            "checked by size alone"
        )
    if with_nvcc:
        both = [count[f"nvcc {a}, ours {b}"] for a in (True, False) for b in (True, False)]
        lines.append(
            "nvcc and bridge / only nvcc / only bridge / neither: " + " / ".join(map(str, both))
        )
    for name, times in not_served.most_common():
        advice = _NOT_SERVED.get(name, "not in bridge's skcuda; see CuPy")
        lines.append(f"not served by bridge run: {name} (files: {times}): {advice}")
    return lines

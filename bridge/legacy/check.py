"""``python -m bridge check``: which PyCUDA programs of a folder run with bridge, and which not.

Nothing of the programs (``*.py``, ``*.ipynb``) is run: sources are read from their syntax trees, as
far as they are made of constants, of variables with one value, and of files.
"""

from __future__ import annotations

import ast
import json
import operator
import os.path
import re
import shutil
import string
import symtable
import warnings
from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import cupy
import pycuda.compiler
import pycuda.driver as drv
from pytools.prefork import ExecError

from ..compiler import Request, examine
from .migrate.python2 import to_python3
from .names import AMBIGUOUS, BEFORE_CUDA_4, SERVED, cupy_name, within_skcuda

# Names of PyCUDA that `bridge run` does not support, and what to do instead.
_NOT_SERVED = {
    **BEFORE_CUDA_4,
    "DynamicSourceModule": "needs libcudadevrt.a, from nvidia-cuda-runtime or a toolkit",
}
_OPERATORS: dict[type[ast.operator], Any] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    ast.Pow: lambda one, other: one**other if other < 100 else _large(),
}
_TEMPLATES = dict.fromkeys(("Template", "string.Template"), string.Template)
_FUNCTIONS: dict[str, Any] = {"str": str, "int": int, "dict": dict, **_TEMPLATES} | {
    f"os.path.{name}": getattr(os.path, name)
    for name in ("join", "split", "dirname", "abspath", "realpath", "normpath")
}
_METHODS = {
    **dict.fromkeys(("format", "join", "replace", "upper", "lower"), str),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), str),
    **{"read_text": Path, "substitute": string.Template, "safe_substitute": string.Template},
}


class _Unknown(Exception):  # noqa: N818 (it says what it is)
    """A value that only the running program knows."""


def _large() -> NoReturn:
    raise _Unknown("a large number")


# What is assigned to each name, in a function and around it; None is known to the program only.
_Scope = ChainMap[str, list[ast.expr | None]]


class _Program(ast.NodeVisitor):
    """Reads the calls of ``SourceModule`` in a program, and names that `run` does not serve."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path = path
        self.calls: list[tuple[ast.Call, _Scope]] = []
        self.not_served: dict[str, int] = {}  # names, and the first line of each
        self.ambiguous: list[tuple[ast.Attribute, _Scope]] = []  # whose names others have, too
        self.values: _Scope = ChainMap({"__file__": [ast.Constant(str(path.resolve()))]})
        self.source_modules = {"SourceModule"}
        self.skcuda_modules: dict[str, str] = {}  # what the program calls them
        self.visit(ast.parse(text, str(path)))
        for node, values in self.ambiguous:
            if _give_functions(values.get(ast.unparse(node.value), [node.value])):
                self.not_served.setdefault(node.attr, node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        parameters = [one for one in ast.iter_child_nodes(node.args) if isinstance(one, ast.arg)]
        self.values = self.values.new_child({one.arg: [None] for one in parameters})
        self.generic_visit(node)
        self.values = self.values.parents

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):  # of `for` and the like; _assign has seen the others
            self._assign(node, None)

    def _assign(self, target: ast.expr | None, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values.maps[0].setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):  # of any object that is called so: self.f
            self.values.maps[-1].setdefault(ast.unparse(target), []).append(value)
            self.visit(target.value)
        elif target is not None:
            self.visit(target)

    def visit_Assign(self, node: Any) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._assign(target, node.value)
        if node.value is not None:
            self.visit(node.value)

    visit_AnnAssign = visit_AugAssign = visit_Assign  # noqa: N815 (ast's names)

    def visit_withitem(self, node: ast.withitem) -> None:
        self._assign(node.optional_vars, node.context_expr)
        self.visit(node.context_expr)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            called = alias.asname or alias.name
            if alias.name == "SourceModule":
                self.source_modules.add(called)
            self._note_skcuda(f"{node.module}.{alias.name}", called, node.lineno)
            if alias.name not in BEFORE_CUDA_4:
                self._note_not_served(alias.name, node.lineno)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note_skcuda(alias.name, alias.asname or alias.name, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store):  # of `for` and the like
            self._assign(node, None)
            return
        if node.attr in AMBIGUOUS:
            self.ambiguous.append((node, self.values))
        else:
            self._note_not_served(node.attr, node.lineno)
        if library := self.skcuda_modules.get(ast.unparse(node.value)):
            self._note_skcuda(f"skcuda.{library}.{node.attr}", "", node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in self.source_modules:
            self.calls.append((node, self.values))
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

    def value(self, node: ast.expr | None) -> Any:
        """Return an expression's value; raise _Unknown if only the running program knows it."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name() | ast.Attribute() if (
                len(found := self.values.get(name := ast.unparse(node), [])) == 1 and found[0]
            ):
                known, self.values = self.values, self.values.new_child({name: []})  # not itself
                try:
                    return self.value(found[0])
                finally:
                    self.values = known
            case ast.BinOp(one, operation, other) if type(operation) in _OPERATORS:
                return _OPERATORS[type(operation)](self.value(one), self.value(other))
            case ast.JoinedStr(values):
                return "".join(str(self.value(one)) for one in values)
            case ast.FormattedValue(value, format_spec=None):
                return self.value(value)
            case ast.List(items) | ast.Tuple(items):
                return tuple(map(self.value, items))
            case ast.Dict(keys, values):
                return dict(zip(map(self.value, keys), map(self.value, values), strict=True))
            case ast.Subscript(value, index):
                return self.value(value)[self.value(index)]
            case ast.Attribute(value, "parent"):
                return Path(self.value(value)).parent
            case ast.Call():
                return self._value_of_call(node)
        raise _Unknown(ast.unparse(node) if node is not None else "**")

    def _value_of_call(self, node: ast.Call) -> Any:
        args = [self.value(arg) for arg in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        name = ast.unparse(node.func)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*args, **keywords)
        if name in ("open", "Path"):
            return self._found(args[0])
        if name == "os.getcwd":
            return str(self.path.parent)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if node.func.attr == "read" and isinstance(owner, Path):
                return owner.read_text(errors="replace")
            if isinstance(owner, _METHODS.get(node.func.attr, ())):
                return getattr(owner, node.func.attr)(*args, **keywords)
        raise _Unknown(ast.unparse(node))

    def request(self, call: ast.Call, values: _Scope, arch: str) -> Request:
        """Return what a call of ``SourceModule`` compiles; raise _Unknown as `value` does."""
        self.values = values
        given = dict(zip(Request._fields, map(self.value, call.args), strict=False))
        given |= {k.arg: self.value(k.value) for k in call.keywords if k.arg}
        source, no_extern_c = given["source"], bool(given.get("no_extern_c"))
        if not isinstance(source, str):
            raise _Unknown(type(source).__name__)
        options, folders = (list(given.get(n) or ()) for n in ("options", "include_dirs"))
        folders = [*(str(self._found(folder)) for folder in folders), str(self.path.parent)]
        for index, option in enumerate(options):
            if options[index - 1 : index] == ["-I"]:
                options[index] = str(self._found(option))
            elif option.startswith("-I") and option != "-I":
                options[index] = f"-I{self._found(option[2:])}"
        return Request(source, "nvcc", options, False, no_extern_c, arch, None, False, folders)

    def _found(self, name: str) -> Path:
        """Return a file or a folder: the program is started in its own, or further up."""
        paths = [folder / name for folder in self.path.parents]
        return next(filter(Path.exists, paths), paths[0])


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


def check_programs(
    folder: str, arch: str = "sm_90", verbose: bool = False, with_nvcc: bool = True
) -> bool:
    """Print a line for each program, and a summary; return whether programs were read and run."""
    root, count, not_served = Path(folder), Counter[str](), Counter[str]()
    nvcc = shutil.which("nvcc") if with_nvcc else None
    with_nvcc = nvcc is not None and "hostcuda" not in Path(nvcc).resolve().parts
    paths = [path for path in root.rglob("*") if path.suffix in (".py", ".ipynb")]
    for path in sorted(filter(Path.is_file, paths)) if root.is_dir() else [root]:
        try:
            text = path.read_bytes()
            if not any(word in text for word in (b"SourceModule", b"skcuda", b"scikits")):
                continue
            if path.suffix == ".ipynb":
                text = _code_of_notebook(text)
            program = _Program(path, to_python3(text, path.name)[0])
        except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
            print(f"{path}: cannot be read: {error}")
            count[_NOT_KNOWN] += 1
            continue
        for name, line in program.not_served.items():
            not_served[name] += 1
            if verbose:
                print(f"{path}:{line}: {name}")
        found = Counter[str]()
        for call in program.calls:
            found.update(_check_source(program, *call, arch, with_nvcc, verbose))
        verdict, why = _verdict(program, found)
        print(f"{path}: {verdict}{why}", flush=True)
        count.update(found)
        count[verdict] += 1
    print("\n".join(_summary(count, not_served, with_nvcc, arch)))
    return bool(count[_WILL] and not count[_WILL_NOT])


_VERDICTS = _WILL, _WILL_NOT, _NOT_KNOWN = "will run", "will not run", "not known"


def _verdict(program: _Program, found: Counter[str]) -> tuple[str, str]:
    """Say whether `run` runs a program, and why not."""
    reasons = [f"{found['fail']} of its sources do not compile"] * bool(found["fail"])
    reasons += [f"{name} is not served" for name in program.not_served]
    if reasons:
        return _WILL_NOT, f": {', '.join(reasons)}"
    if late := found["made at run time"]:
        return _NOT_KNOWN, f": {late} of its sources are made when it runs; try bridge run"
    return _WILL, ""


def _code_of_notebook(text: bytes) -> bytes:
    """Return the code of a notebook's cells, without the lines that IPython reads."""
    cells = json.loads(text).get("cells", ())
    code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    return re.sub(r"^(\s*)([%!].*)", r"\1pass  # \2", "\n".join(code), flags=re.MULTILINE).encode()


def _check_source(
    program: _Program, call: ast.Call, values: _Scope, arch: str, with_nvcc: bool, verbose: bool
) -> Iterator[str]:
    """Compile the source of a call, print what came of it, and yield what to count."""
    place = f"{program.path}:{call.lineno}"
    try:
        request = program.request(call, values, arch)
    except Exception as error:  # whatever the program's own code raises
        is_unknown, text = isinstance(error, _Unknown), str(error)
        why = text.split("\n")[0][:60] if is_unknown else f"{type(error).__name__}: {text}"
        print(f"{place}: the source is made when the program runs: {why}")
        yield "made at run time"
        return
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
        print(f"{place}: does not compile: {problem}")
    elif verbose:
        shown = [
            f"{name}({', '.join(one.text for one in found)})" if found is not None else name
            for name, found in kernels.items()
        ]
        print(f"{place}: compiles: {'; '.join(shown)}")
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

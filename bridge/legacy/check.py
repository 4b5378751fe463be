"""``python -m bridge check``: which PyCUDA programs of a folder run with bridge, and which not.

Nothing of the programs (``*.py``, ``*.ipynb``) is run: sources are read from their syntax trees, as
far as `bridge.legacy.values` knows their values.
"""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import symtable
import sys
import warnings
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
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
from .migrate.python2 import code_of_notebook, to_python3
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
_KERNELS = "|".join(_COMPILING)
_WORDS = re.compile(rf"{_KERNELS}|pycuda.+compiler|skcuda|scikits".encode())
_COMPILING["compile"] = _COMPILING["SourceModule"]  # pycuda.compiler's, with its parameters
_WHOLE_NAME = re.compile(
    rf"(?:pycuda|bridge)\.(?:.+\.)?({_KERNELS}|(?<=^pycuda\.compiler\.)compile)"
)


class _Program(ast.NodeVisitor):
    """Reads the calls of ``SourceModule`` in a program, and names that `run` does not serve."""

    def __init__(self, path: Path, text: bytes, cells: Sequence[int]) -> None:
        self.path = path
        self.cells = cells  # the first line of each, in a notebook
        self.before = ""  # ", after ...": what must be done before it runs
        self.calls: list[tuple[str, ast.Call]] = []  # what is called, and the call
        self.called = set[ast.AST]()
        self.passed: list[Any] = []  # what compiles, where it is not called
        self.said = set[str]()
        self.not_served: dict[str, int] = {}  # names, and the first line of each
        self.imported = defaultdict[str, list[str]](list)  # the whole names of each
        self.defined = set[str]()
        self.skcuda_modules: dict[str, str] = {}
        self.uses_skcuda = False
        tree = ast.parse(text, str(path))
        choices = filter(_is_choice, ast.walk(tree))
        self.perhaps = {node for one in choices for node in ast.walk(one)}
        self.needed = set[str]()  # the modules that it imports in any case
        self.wrong: dict[str, int] = {}  # other reasons why it does not run, and their lines
        self.is_part = (path.parent / "__init__.py").exists()  # of a package
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name) | ast.ClassDef(name):
                    self.defined.add(name)
                case ast.Import(names):
                    for one in names:
                        root = one.name.split(".")[0]
                        self.imported[one.asname or root].append(one.name if one.asname else root)
                        self._note_needed(node, one.name)
                case ast.ImportFrom(module, names, level):
                    for one in names:
                        whole = f"{'.' * level}{module or ''}.{one.name}"
                        self.imported[one.asname or one.name].append(whole)
                        self._note_needed(node, whole)
                    self.is_part |= level > 0
        self.values = Values(path, tree)
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        """Note what a node calls and names."""
        match node:
            case ast.ImportFrom():
                for alias in node.names:
                    called = alias.asname or alias.name
                    self._note_skcuda(f"{node.module}.{alias.name}", called, node.lineno)
            case ast.Import():
                for alias in node.names:
                    self._note_skcuda(alias.name, alias.asname or alias.name, node.lineno)
            case ast.Name(name):
                for whole in self.imported.get(name, ()):
                    if (last := whole.rpartition(".")[2]) not in BEFORE_CUDA_4:
                        self._note_not_served(last, node.lineno)
            case ast.Attribute(owner, name):
                if name not in AMBIGUOUS or _give_functions(self.values.assigned(owner)):
                    self._note_not_served(name, node.lineno)
                self._note_absent(node)
                if library := self.skcuda_modules.get(ast.unparse(owner)):
                    self._note_skcuda(f"skcuda.{library}.{name}", "", node.lineno)
            case ast.keyword("grid" | "block", given):
                for one in self.values.assigned(given):
                    if isinstance(one, ast.Tuple) and any(map(_is_quotient, one.elts)):
                        self.wrong.setdefault(f"{node.arg} has a / for a //", one.lineno)
            case ast.Call(function) if name := self._compiling(function):
                self.calls.append((name, node))
                self.called.add(function)
        if node not in self.called and self._compiling(node):
            self.passed.append(node)
        self.generic_visit(node)

    def missing(self) -> list[str]:
        """Return what it imports in any case, and what is neither installed nor beside it."""
        served = {"skcuda", "scikits"}  # by `bridge.legacy.skcuda`
        return [
            root
            for root in sorted(self.needed - served)
            if not any(self.values.found(f"{root}{end}").exists() for end in ("", ".py"))
            and (root == "pycuda.gl" or find_spec(root) is None)
        ]

    def _note_needed(self, node: ast.AST, whole: str) -> None:
        if node not in self.perhaps and not whole.startswith("."):
            is_gl = whole.startswith("pycuda.gl") and not drv.have_gl_ext()
            self.needed.add("pycuda.gl" if is_gl else whole.split(".")[0])

    def _note_absent(self, node: ast.Attribute) -> None:
        """Note a name that NumPy or one of Python's modules does not have here."""
        if node in self.perhaps or not isinstance(node.ctx, ast.Load):
            return
        for whole in self.imported.get(ast.unparse(node.value), ()):
            if whole in (*sys.stdlib_module_names, "numpy") and not _has(whole, node.attr):
                advice = f", write {node.attr}" * hasattr(builtins, node.attr)
                self.wrong.setdefault(f"no {whole}.{node.attr} here{advice}", node.lineno)

    def _compiling(self, node: ast.AST) -> str:
        """Return PyCUDA's name of what compiles sources, or "" for any other expression."""
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return ""
        root, *rest = ast.unparse(node).split(".")
        unknown = [one.replace("*", root) for one in self.imported.get("*", ())]
        for one in self.imported.get(root, unknown):
            if match := _WHOLE_NAME.fullmatch(".".join((one, *rest))):
                return match[1]
        name = [root, *rest][-1]
        is_own = root in self.imported or name in self.defined
        return name if name == "SourceModule" and not is_own else ""

    def say(self, line: int, text: str) -> None:
        """Print what is found in a line of the program, once."""
        place = f"{self.path}:{line}"
        if cell := bisect(self.cells, line):
            within = line - self.cells[cell - 1] + 1
            place = f"{self.path}: code cell {cell} of {len(self.cells)}, line {within}"
        if (text := f"{place}: {text}") not in self.said:
            self.said.add(text)
            _print(text)

    def _note_not_served(self, name: str, line: int) -> None:
        if name in _NOT_SERVED:
            self.not_served.setdefault(name, line)

    def _note_skcuda(self, name: str, called: str, line: int) -> None:
        """Note a name of scikit-cuda: a module of its, or what that has."""
        parts = within_skcuda(name)
        if not parts or parts[0] == "autoinit":
            return
        self.uses_skcuda = True
        if parts[0] not in SERVED:
            self.not_served.setdefault(f"skcuda.{parts[0]}", line)
        elif len(parts) == 1:
            self.skcuda_modules[called] = parts[0]
        elif parts[1] != "*" and not _is_served(*parts[:2]):
            self.not_served.setdefault(f"skcuda.{parts[0]}.{parts[1]}", line)

    def requests(self, called: str, call: ast.Call, arch: str) -> list[Request]:
        """Return what a call compiles; raise Unknown as `value` does."""
        args, keywords = self.values.arguments(call)
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


def _is_choice(node: ast.AST) -> bool:
    """Tell whether a statement tries, or asks for a version: what it holds need not be here."""
    if isinstance(node, ast.If):
        return re.search("hasattr|version", ast.unparse(node.test)) is not None
    return isinstance(node, ast.Try)


def _is_quotient(node: ast.expr) -> bool:
    """Tell whether an expression is a quotient, or contains one outside of calls: a float."""
    match node:
        case ast.BinOp(left, operator, right):
            return isinstance(operator, ast.Div) or _is_quotient(left) or _is_quotient(right)
    return False


def _has(module: str, name: str) -> bool:
    """Tell whether a module has a name, or is not known."""
    known = sys.modules.get(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are deprecated
        if known is None or hasattr(known, name):
            return True
    return hasattr(known, "__path__") and find_spec(f"{module}.{name}") is not None


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
            if not _WORDS.search(text):
                continue
            is_notebook, cells = path.suffix == ".ipynb", list[int]()
            if is_notebook:
                text, cells = code_of_notebook(text)
            text, edits = to_python3(text, path.name, with_notes=False)
            program = _Program(path, text, cells)
        except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
            _print(f"{path}: cannot be read: {error}")
            count[_NOT_KNOWN] += 1
            continue
        if not (program.calls or program.passed or program.uses_skcuda or program.not_served):
            continue
        if is_notebook or edits:  # or it is Python 2, or has lines for IPython
            first = "%load_ext bridge" if is_notebook else "bridge migrate"
            program.before = f", after {first}"
        for name, line in program.not_served.items():
            not_served[name] += 1
            if verbose:
                program.say(line, name)
        found = Counter[str]()
        for node in program.passed:
            program.say(node.lineno, f"{_LATE}: {ast.unparse(node)} is not called here")
            found["made at run time"] += 1
        for call in program.calls:
            found.update(_check_source(program, *call, arch, with_nvcc, verbose))
        verdict, why = _verdict(program, found)
        _print(f"{path}: {verdict}{why}")
        count.update(found)
        count[verdict] += 1
    _print("\n".join(_summary(count, not_served, with_nvcc, arch)))
    return bool(count[_WILL] and not count[_WILL_NOT])


_LATE = "the source is made when the program runs"
_RECORD = "bridge run --record FOLDER PROGRAM, then bridge check FOLDER"
_VERDICTS = _WILL, _WILL_NOT, _NOT_KNOWN = "will run", "will not run", "not known"


def _verdict(program: _Program, found: Counter[str]) -> tuple[str, str]:
    """Say whether `run` runs a program, after what, if what is there, and why not."""
    missing = ", ".join(program.missing())
    reasons = [f"{found['fail']} of its sources cannot be compiled"] * bool(found["fail"])
    reasons += [f"{name} is not served" for name in program.not_served]
    reasons += [f"{what} (line {line})" for what, line in program.wrong.items()]
    if reasons:
        reasons += [f"{missing} cannot be imported"] * bool(missing)
        return _WILL_NOT, f"{program.before.replace('after', 'also after')}: {', '.join(reasons)}"
    needs = program.before + f", if {missing} can be imported" * bool(missing)
    late = found["made at run time"]
    reasons += [f"{late} of its sources cannot be read before it runs"] * bool(late)
    reasons += [one for one in found if one.startswith("the file ")]
    if reasons and program.is_part:
        reasons.append("it is a module of a package: record a program that imports it")
    return (_NOT_KNOWN, f"{needs}: {', '.join(reasons)}") if reasons else (_WILL, needs)


def _check_source(
    program: _Program, called: str, call: ast.Call, arch: str, with_nvcc: bool, verbose: bool
) -> Iterator[str]:
    """Compile the source of a call, print what came of it, and yield what to count."""
    say = partial(program.say, call.lineno)
    read = partial(program.requests, called, call, arch)
    found, errors = program.values.each(call, read)
    for error in errors:
        text = str(error)
        if isinstance(error, FileNotFoundError):
            text = str(error.filename).removeprefix(f"{program.path.parent}/")
            say(f"the file {text} is not found")
            yield f"the file {text} is not found"
            continue
        is_unknown = isinstance(error, Unknown)
        why = text.split("\n")[0][:60] if is_unknown else f"{type(error).__name__}: {text}"
        say(f"{_LATE}: it depends on {why}" if re.fullmatch(r"[\w.]+", why) else f"{_LATE}: {why}")
    if not all(isinstance(error, FileNotFoundError) for error in errors):
        yield "made at run time"
    distinct = {repr(one): one for requests in found for one in requests}
    for request in distinct.values():
        yield from _compile(request, say, arch, with_nvcc, verbose)


def _compile(
    request: Request, say: Callable[[str], None], arch: str, with_nvcc: bool, verbose: bool
) -> Iterator[str]:
    problem, hint, by_nvcc, kernels = "", "", None, {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if with_nvcc:
                by_nvcc = _nvcc_compiles(request)
            kernels = examine(request, arch)
    except Exception as error:
        log = getattr(error, "stderr", None) or str(error)
        problem = next((line for line in log.splitlines() if "error" in line), str(error))
        hint = getattr(error, "msg", "").partition("; ")[2]
    if header := re.search(r'not open source file "((?!cu|nv|crt/)[^"]*\..*)"', problem):
        say(f"the file {header[1]} is not found{hint.partition(']')[2]}")
        yield f"the file {header[1]} is not found"
        return
    if problem:
        only = " (nvcc compiles it)" if by_nvcc else ""
        say(f"does not compile{only}: {problem}" + f" ({hint})" * bool(hint))
    elif verbose:
        shown = [
            f"{name}({', '.join(one.text for one in found)})" if found is not None else name
            for name, found in kernels.items()
        ]
        say(f"compiles: {'; '.join(shown)}")
    yield "fail" if problem else "compile"
    yield from ["kernels of unknown types" for found in kernels.values() if found is None]
    if by_nvcc is not None:
        yield f"nvcc {by_nvcc}, ours {not problem}"


def _summary(
    count: Counter[str], not_served: Counter[str], with_nvcc: bool, arch: str
) -> Sequence[str]:
    verdicts = [f"{count[verdict]} {verdict}" for verdict in _VERDICTS]
    yes, no, late = count["compile"], count["fail"], count["made at run time"]
    missing = sum(times for what, times in count.items() if what.startswith("the file "))
    lines = [f"programs: {', '.join(verdicts)}"]
    if not any(count[verdict] for verdict in _VERDICTS):
        return ["no program (.py, .ipynb) that compiles a source or uses scikit-cuda was found"]
    lines.append(
        f"sources: {yes} of {yes + no + late + missing} can be compiled for {arch}, {no} cannot, "
        f"{late} cannot be read before the program runs"
        + f", {missing} in files that are not found"
        * bool(missing)
    )
    if count["kernels of unknown types"]:
        lines.append(
            f"kernels of unknown types: {count['kernels of unknown types']}; their arguments are "
            "checked by size alone"
        )
    if with_nvcc:
        both = [count[f"nvcc {a}, ours {b}"] for a in (True, False) for b in (True, False)]
        who = "nvcc and bridge", "nvcc only", "bridge only", "neither"
        lines.append(
            "compiled by " + ", ".join(f"{a}: {n}" for a, n in zip(who, both, strict=True))
        )
    for name, times in not_served.most_common():
        advice = _NOT_SERVED.get(name, "not in bridge's skcuda; see CuPy")
        lines.append(f"not served by bridge run: {name} (files: {times}): {advice}")
    if late:
        lines.append(f"record sources that are made when a program runs: {_RECORD}")
    return lines

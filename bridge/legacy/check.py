"""``python -m bridge check``: which PyCUDA programs of a folder run with bridge, and which not.

Nothing of the programs (``*.py``, ``*.ipynb``) is run.  A program will run if nothing speaks
against that.  It will not if an error is in what is executed in any case.  Else it is not known.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cupy
import pycuda.driver as drv

from ..compiler import Request, examine
from .migrate.python2 import code_of_notebook, parse, to_python3
from .names import AMBIGUOUS, BEFORE_CUDA_4, SERVED, cupy_name, within_skcuda
from .record import KEPT, sources_in
from .values import Unknown, Values

# Names of PyCUDA that compile; of the first ones, the source is an argument.
_MODULES = "SourceModule|DynamicSourceModule"
_GENERATING = "ElementwiseKernel|ReductionKernel"
_WORDS = re.compile(rf"{_MODULES}|{_GENERATING}|pycuda.+compiler|skcuda|scikits".encode())
_WHOLE_NAME = re.compile(
    rf"(?:pycuda|bridge)\.(?:.+\.)?({_MODULES}|{_GENERATING}|(?<=^pycuda\.compiler\.)compile)"
)
_CONTEXT = re.compile(rb"autoinit|autoprimaryctx|[cC]ontext|init_device")
# What is not executed in any case.
_PERHAPS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.If | ast.IfExp | ast.For
_PERHAPS |= ast.While | ast.Try | ast.With | ast.Match | ast.BoolOp
_PERHAPS |= ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_LATE = "made when the program runs"
_VERDICTS = _WILL, _WILL_NOT, _NOT_KNOWN = "will run", "will not run", "not known"


class _Program(ast.NodeVisitor):
    """Finds the sources of a program, and what speaks against running it."""

    def __init__(self, path: Path, text: bytes, cells: Sequence[int]) -> None:
        self.path = path
        self.cells = cells  # the first line of each, in a notebook
        self.sources: list[tuple[int, bool, Request]] = []  # the lines, whether certain
        self.kernels: list[tuple[int, str]] = []  # that it gets from modules, by name
        self.uses_skcuda = False
        self.errors: dict[str, int] = {}  # and the first line of each
        self.doubts: dict[str, int] = {}
        self.read = set[Path]()  # modules beside it
        self.is_certain = True  # what is visited is executed in any case
        self.is_optional = False  # and an error there is handled
        self.imported: dict[str, str] = {}  # the whole names
        self.defined = set[str]()  # names that the program gives a value of its own
        tree = parse(text)
        self.values = Values(tree)
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                    self.defined.add(name)
                case ast.Import(names):
                    for one in names:
                        root = one.name.split(".")[0]
                        self.imported.setdefault(
                            one.asname or root, one.name if one.asname else root
                        )
                case ast.ImportFrom(module, names, level):
                    for one in names:
                        whole = f"{'.' * level}{module or ''}.{one.name}"
                        self.imported.setdefault(one.asname or one.name, whole)
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        """Note what a node imports, names and compiles."""
        outside = self.is_certain, self.is_optional
        if isinstance(node, _PERHAPS) and not _is_main(node):
            self.is_certain = False
            self.is_optional |= _handles_missing(node)
        skipped: ast.AST | None = None
        match node:
            case ast.Import(names):
                for one in names:
                    self._note_name(one.name, node.lineno)
            case ast.ImportFrom(str(module), names, 0):
                for one in names:
                    self._note_name(f"{module}.{one.name}", node.lineno)
            case ast.Call(function) if name := self._compiling(function):
                self._note_source(name, node)
                skipped = function
            case ast.Call(ast.Attribute(_, "get_function"), [ast.Constant(str(name))]):
                self.kernels.append((node.lineno, name))
            case ast.Name() | ast.Attribute() if name := self._compiling(node):
                self._note(f"{name} is not called", node.lineno, False)
            case ast.Attribute(_, name):
                if name in BEFORE_CUDA_4 and name not in AMBIGUOUS:  # others come before `launch`
                    text = f"{name} is not served, {BEFORE_CUDA_4[name]}"
                    self._note(text, node.lineno, self.is_certain)
                if isinstance(node.ctx, ast.Load):
                    self.is_certain &= ast.unparse(node).split(".")[0] not in self.defined
                    self._note_name(self._whole_name(node), node.lineno)
        for child in ast.iter_child_nodes(node):
            if child is not skipped:
                self.visit(child)
        self.is_certain, self.is_optional = outside

    def _note(self, text: str, line: int, is_certain: bool) -> None:
        (self.errors if is_certain else self.doubts).setdefault(text, line)

    def _note_name(self, whole: str, line: int) -> None:
        """Note a name of a module that is not here."""
        root, *rest = whole.split(".")
        parts = within_skcuda(whole)
        self.uses_skcuda |= bool(parts) and parts[0] != "autoinit"
        if self.is_optional:
            return
        if root in ("skcuda", "scikits"):
            if parts and parts[0] != "autoinit" and not _is_served(*parts[:2]):
                is_certain = self.is_certain and not self._is_here("skcuda")
                self._note(f"skcuda.{'.'.join(parts[:2])} is not served", line, is_certain)
        elif whole.startswith("pycuda.gl") and not drv.have_gl_ext():
            self._note("pycuda.gl cannot be imported", line, False)
        elif root and (missing := self._missing(root)):
            self._note(f"{missing} cannot be imported", line, False)
        elif rest and _is_gone(whole):
            advice = f", write {rest[-1]}" * hasattr(builtins, rest[-1])
            self._note(f"no {whole} here{advice}", line, self.is_certain)

    def _is_here(self, root: str) -> bool:
        """Tell whether a module is installed, or beside the program or further up."""
        is_beside = any((folder / root).exists() for folder in self.path.parents)  # a package
        return is_beside or root in sys.modules or find_spec(root) is not None

    def _missing(self, root: str) -> str:
        """Return a module that is missing: this one, or one that a file beside it needs."""
        own = next((p for f in self.path.parents if (p := f / f"{root}.py").exists()), None)
        if own is None or own in self.read:
            return "" if own or self._is_here(root) else root
        self.read.add(own)
        with suppress(SyntaxError, ValueError):
            for node in parse(own.read_bytes()).body:
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                if found := next(filter(None, map(self._missing, map(_root, names))), ""):
                    return found
        return ""

    def _note_source(self, called: str, call: ast.Call) -> None:
        given: dict[Any, ast.expr] = dict(zip(Request._fields, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords}
        try:
            if called in _GENERATING or None in given:
                raise Unknown(called)
            known = {name: self.values.value(given[name]) for name in KEPT if name in given}
            known["options"] = known.get("options") or []
            known["include_dirs"] = [self.path.parent / d for d in known.get("include_dirs") or ()]
            request = Request(**known)
            if not isinstance(request.source, str):
                raise Unknown(called)
        except Exception:  # whatever the program's own code raises
            self._note(f"a source is {_LATE}", call.lineno, False)
        else:
            is_certain = self.is_certain and called != "DynamicSourceModule"
            self.sources.append((call.lineno, is_certain, request))

    def _whole_name(self, node: ast.expr) -> str:
        """Return the name that the imports give to an expression, or ""."""
        match node:
            case ast.Name(name):
                return self.imported.get(name, "")
            case ast.Attribute(owner, name) if inside := self._whole_name(owner):
                return f"{inside}.{name}"
        return ""

    def _compiling(self, node: ast.expr) -> str:
        """Return PyCUDA's name of what compiles sources, or "" for any other expression."""
        name = getattr(node, "attr", None) or getattr(node, "id", "")
        if whole := self._whole_name(node):
            found = _WHOLE_NAME.fullmatch(whole)
            return found[1] if found else ""
        is_own = ast.unparse(node).split(".")[0] in self.imported or name in self.defined
        return name if name in _MODULES.split("|") and not is_own else ""

    def compile_sources(self, arch: str, verbose: bool) -> Iterator[bool]:
        """Compile the sources, and note what does not; tell of each whether it does."""
        names = set[str]()
        for line, is_certain, request in self.sources:
            place = f"{self.path}:{line}"
            if self.cells:
                place = f"{self.path}: {self._place(line)}"
            problem, kernels = _compile(request, arch, place, verbose)
            names.update(kernels)
            if problem:
                self._note(problem, line, is_certain and "not found" not in problem)
            yield not problem
        for line, name in self.kernels if names and not (self.errors or self.doubts) else ():
            if name not in names and not name.startswith("_Z"):
                self._note(f"no source has the kernel {name}", line, False)

    def _place(self, line: int) -> str:
        if cell := bisect(self.cells, line):
            within = line - self.cells[cell - 1] + 1
            return f"code cell {cell} of {len(self.cells)}, line {within}"
        return f"line {line}"

    def verdict(self) -> tuple[str, str]:
        """Return whether `run` will run it, and what speaks against that."""
        found = self.errors or self.doubts
        why = ", ".join(f"{text} ({self._place(line)})" for text, line in found.items())
        return (_WILL_NOT if self.errors else _NOT_KNOWN if found else _WILL), why


def _root(name: str) -> str:
    return name.partition(".")[0]


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _handles_missing(node: ast.AST) -> bool:
    """Tell whether a statement handles the error of a module, or of a name, that is missing."""
    types = [ast.unparse(one.type) for one in getattr(node, "handlers", ()) if one.type]
    return re.search("ImportError|ModuleNotFound|AttributeError|NameError", str(types)) is not None


def _is_gone(whole: str) -> bool:
    """Tell whether Python, PyCUDA, NumPy or SciPy has a module here without this name."""
    module, _, name = whole.rpartition(".")
    root = module.split(".")[0]
    if root not in ("pycuda", "numpy", "scipy", *sys.stdlib_module_names):
        return False
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")  # some names are deprecated
        if root in ("numpy", "scipy"):
            import_module(module)
        known = sys.modules.get(module)
        if known is None or name == "*" or hasattr(known, name):
            return False
        return not hasattr(known, "__path__") or find_spec(whole) is None
    return False


def _is_served(library: str, name: str = "*") -> bool:
    """Tell whether a module of `bridge.legacy.skcuda` has a name, without importing it."""
    if library not in SERVED or name == "*":
        return library in SERVED
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


def _compile(request: Request, arch: str, place: str, verbose: bool) -> tuple[str, Sequence[str]]:
    """Compile a source, and print what came of it; return what is wrong, and the kernels."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernels = examine(request._replace(arch=arch), arch)
    except Exception as error:
        log = getattr(error, "stderr", None) or str(error)
        problem = next((line for line in log.splitlines() if "error" in line), str(error))
        hint = getattr(error, "msg", "").partition("; ")[2]
        print(f"{place}: does not compile: {problem}" + f" ({hint})" * bool(hint))
        header = re.search(r'not open source file "([^"]*)"', problem)
        return (f"the file {header[1]} is not found" if header else "a source does not compile"), ()
    if verbose:
        shown = [
            f"{name}({', '.join(one.text for one in found)})" if found is not None else name
            for name, found in kernels.items()
        ]
        print(f"{place}: compiles: {'; '.join(shown)}")
    return "", [*kernels]


def check_record(path: Path, arch: str, verbose: bool) -> bool:
    """Compile the sources of a record, and print a summary; return whether all compile."""
    sources = sources_in(path)
    found = Counter(not _compile(one, arch, line, verbose)[0] for line, one in sources)
    print(f"sources: {found[True]} of {len(sources)} compile for {arch}")
    return not found[False]


def check_programs(root: Path, arch: str, verbose: bool) -> bool:
    """Print a line for each program, and a summary; return whether all that are known run.

    Raise ValueError if there is no program.
    """
    count = Counter[str]()
    paths = [path for path in root.rglob("*") if path.suffix in (".py", ".ipynb")]
    paths = sorted(filter(Path.is_file, paths)) if root.is_dir() else [root]
    for path in paths:
        try:
            text = path.read_bytes()
            if not _WORDS.search(text):
                continue
            is_notebook, cells = path.suffix == ".ipynb", list[int]()
            if is_notebook:
                text, cells = code_of_notebook(text)
            text, edits = to_python3(text, str(path), with_notes=False)
            program = _Program(path, text, cells)
        except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
            if path == root:
                raise
            print(f"{path}: cannot be read: {error}")
            count[_NOT_KNOWN] += 1
            continue
        late = f"a source is {_LATE}" in program.doubts
        if not (program.sources or late or program.uses_skcuda or program.errors):
            continue
        if not _CONTEXT.search(text):
            program.doubts["nothing makes a context"] = 1
        if edits:
            advice = ": check the copy that bridge migrate writes" * (not is_notebook)
            program.doubts[f"it is not Python 3{advice}"] = edits[0][0]
        compiled = Counter(program.compile_sources(arch, verbose))
        verdict, why = program.verdict()
        needs = ", after %load_ext bridge" * is_notebook
        print(f"{path}: {verdict}{needs}{': ' * bool(why)}{why}")
        count.update({verdict: 1, "compile": compiled[True], "fail": compiled[False], _LATE: late})
    if not any(count[verdict] for verdict in _VERDICTS):
        raise ValueError(
            "no program (.py, .ipynb) that compiles a source or uses scikit-cuda was found"
        )
    print(f"programs: {', '.join(f'{count[verdict]} {verdict}' for verdict in _VERDICTS)}")
    print(f"sources: {count['compile']} can be compiled for {arch}, {count['fail']} cannot")
    if count[_LATE]:
        print(
            f"to compile sources that are {_LATE}: bridge run --record FILE PROGRAM, then "
            "bridge check FILE"
        )
    return bool(count[_WILL] and not count[_WILL_NOT])

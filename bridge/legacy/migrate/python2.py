"""Programs in Python 2, which fissix converts, and lines for IPython, which become comments."""

from __future__ import annotations

import ast
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from io import BytesIO, StringIO
from itertools import accumulate

MAGIC = rb"([ \t]*)(!.*|%%?[a-z].*)"  # a line for IPython
_ASYNC = rb"([(,]\s*)async(\s*=(?!=))"  # a parameter of PyCUDA's
# What only Python 2 has.
_NAMES = {"basestring", "cmp", "execfile", "file", "long", "raw_input", "reduce", "reload"}
_NAMES |= {"unichr", "unicode", "xrange"}
_METHODS = {"has_key", "iteritems", "iterkeys", "itervalues"}
_MODULES = {
    "ConfigParser",
    "Image",
    "ImageTk",
    "Queue",
    "StringIO",
    "Tkinter",
    "__builtin__",
    "cPickle",
}
_MODULES |= {"cStringIO", "httplib", "thread", "urllib2", "urlparse"}
_OF_MODULES = {*(f"itertools.{name}" for name in ("ifilter", "imap", "izip", "izip_longest"))}
_OF_MODULES |= {f"string.{name}" for name in ("letters", "lowercase", "maketrans", "uppercase")}
_OF_MODULES |= {"sys.maxint", "os.getcwdu"}
_LISTS = {"items", "keys", "values"}  # methods of dict that give lists


def code_of_notebook(text: bytes) -> tuple[bytes, list[int]]:
    """Return a notebook's code, without the lines that IPython reads, and each cell's first line.

    Raise ValueError if it is not a notebook.
    """
    try:
        notebook = json.loads(text)
        sheets = notebook.get("worksheets") or [notebook]  # before version 4
        cells = [cell for one in sheets for cell in one["cells"] if cell["cell_type"] == "code"]
        code = ["".join(cell["input" if "input" in cell else "source"]) for cell in cells]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is not a notebook ({type(error).__name__}: {error})") from None
    starts = accumulate((one.count("\n") + 1 for one in code[:-1]), initial=1)
    text = "\n".join(code).encode()
    return re.sub(rb"(?m)^" + MAGIC, rb"\1pass  # \2", text), [*starts]


def parse(text: bytes) -> ast.Module:
    """Return the syntax tree of a program in Python 3, without warnings of escapes in strings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def problem_of(text: bytes) -> SyntaxError | ValueError | MemoryError | None:
    """Return why a program is not Python 3, or None."""
    try:
        parse(text)
    except (SyntaxError, ValueError, MemoryError) as error:  # MemoryError: too many operators
        return error
    return None


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression, and those outside of calls that a sum or a tuple is made of."""
    yield node
    match node:
        case ast.BinOp(left, _, right):
            yield from (*_parts(left), *_parts(right))
        case ast.Tuple(values):
            for value in values:
                yield from _parts(value)


def _has_quotient(node: ast.expr) -> bool:
    return any(isinstance(getattr(one, "op", None), ast.Div) for one in _parts(node))


def _of_python2(text: bytes) -> str:
    """Return what a program uses of Python 2, a name or the ``/`` of two integers, or ""."""
    if re.search(rb"NameError|version_info|\bPY[23]\b", text):
        return ""  # it is for both
    found, used, defined, modules = set[str](), set[str](), set[str](), set[str]()
    sizes, quotients, keys, sorts = set[str](), set[str](), set[str](), set[str]()
    tree = parse(text)
    tried = {one for node in ast.walk(tree) if isinstance(node, ast.Try) for one in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr() | ast.AnnAssign() | ast.Nonlocal() | ast.AsyncFunctionDef():
                return ""  # Python 2 has none
            case ast.keyword("grid" | "block", value):
                sizes |= {*map(ast.unparse, _parts(value))}
                quotients |= {ast.unparse(value)} if _has_quotient(value) else set()
            case ast.Assign([ast.Name(name)], value) if _has_quotient(value):
                quotients.add(name)
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(_, method))):
                keys |= {name} if method in _LISTS else set()
            case ast.Call(ast.Name("print"), _, [_, *_]) if b"print_function" not in text:
                return ""
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Call(ast.Attribute(ast.Call(ast.Attribute(_, method)), "sort")):
                found |= {method} & _LISTS
            case ast.Call(ast.Attribute(owner, "sort")):
                sorts.add(ast.unparse(owner))
            case ast.Call(ast.Attribute(owner, name)) if name in _METHODS:
                if ast.unparse(owner) not in modules:  # six.iteritems(a)
                    used.add(name)
            case ast.Attribute():
                found |= {ast.unparse(node)} & _OF_MODULES
            case ast.ImportFrom(str(module), names, 0) if node not in tried:
                found |= {module} & _MODULES | {f"{module}.{n.name}" for n in names} & _OF_MODULES
            case ast.Import(names) if node not in tried:
                found |= {one.name for one in names} & _MODULES
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                defined.add(name)
            case ast.alias(name, called):
                defined.add(called or name)
                modules.add(called or name)
    found |= used & (_NAMES | _METHODS) - defined | keys & sorts
    found |= {"/"} if sizes & quotients else set()  # PyCUDA takes no float there
    return min(found, default="")


def to_python3(
    text: bytes, name: str, with_notes: bool = True
) -> tuple[bytes, list[tuple[int, str]]]:
    """Convert a program that is not Python 3, or uses names of Python 2; return it, and the edits.

    Lines for IPython, such as ``!pip install cupy``, become comments.  Raise ImportError if a
    library for it is not installed, and ValueError for neither syntax.
    """
    edits = list[tuple[int, str]]()
    if problem_of(text) and (found := re.search(_ASYNC, text)):  # a keyword since Python 3.7
        edits.append((text.count(b"\n", 0, found.end()) + 1, "async= -> async_="))
        text = re.sub(_ASYNC, rb"\1async_\2", text)
    lines = text.splitlines(keepends=True)
    problem: object
    while problem := problem_of(text):
        number = getattr(problem, "lineno", None) or 0
        magic = re.match(MAGIC, b"".join(lines[number - 1 : number]))
        if magic is None:
            break
        lines[number - 1] = lines[number - 1].replace(magic[2], b"pass  # " + magic[2])
        edits.append((number, f"{magic[2].decode(errors='replace').strip()} -> (a comment)"))
        text = b"".join(lines)
    else:
        if not (of_python2 := _of_python2(text)):
            return text, edits
        problem = f"{of_python2} is Python 2's"
    from .leftovers import LeftoverEdits  # `check` needs LibCST for programs in Python 2 only

    try:
        from fissix.pgen2.parse import ParseError
        from fissix.pgen2.tokenize import TokenError
        from fissix.refactor import RefactoringTool, get_fixers_from_package
    except ImportError as error:
        raise ImportError(
            f"{name} is not Python 3 ({problem}), and fissix, which converts Python 2, is not "
            f"installed ({error}): `pip install fissix`, or bridge with its extra [migrate]"
        ) from None
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(text).readline)
        source = text.decode(encoding)
        fixers = [*get_fixers_from_package("fissix.fixes")]
        fixers.remove("fissix.fixes.fix_import")  # a program has no package: no relative imports
        tool = RefactoringTool(fixers)
        source = str(tool.refactor_string(f"{source.rstrip()}\n", name))
        if problem_of(source.encode(encoding)):  # 0777L is 0777 so far
            tool = RefactoringTool(["fissix.fixes.fix_numliterals"], {"print_function": True})
            source = str(tool.refactor_string(source, name))
        if problem_of(source.encode(encoding)):
            source = _expand_tabs(source)
    except (ParseError, TokenError, tokenize.TokenError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{name} is neither Python 3 ({problem}) nor Python 2 ({type(error).__name__}: {error})"
        ) from None
    if problem := problem_of(source.encode(encoding)):
        raise ValueError(f"{name} is not Python 3 after fissix has converted it, too: {problem}")
    edits, converted = [(1, "Python 2 -> Python 3 (fissix)"), *edits], source.encode(encoding)
    has_true_division = re.search(rb"from __future__ import[\w\s,(]*\bdivision\b", text)
    leftovers = LeftoverEdits(converted, has_true_division is not None)
    if not with_notes:  # so that lines keep their numbers
        leftovers.notes.clear()
    return leftovers.apply(), edits + leftovers.records


def _expand_tabs(source: str) -> str:
    """Put spaces in the place of tabs that indent: Python 2 accepts a mixture."""
    from fissix.pgen2.tokenize import generate_tokens

    lines, within_strings = source.split("\n"), set[int]()
    for token in generate_tokens(StringIO(source).readline):
        within_strings.update(range(token[2][0], token[3][0]))  # from the second line of each
    for number in {*range(len(lines))} - within_strings:
        code = lines[number].lstrip(" \t\f")
        indent = lines[number][: len(lines[number]) - len(code)]
        lines[number] = indent.expandtabs(8) + code
    return "\n".join(lines)

"""The values of a program's expressions, as far as they are made of constants and files.

Nothing of the program is run.  Where a value depends on a branch or a loop, each one is tried.
What gives a name a value in any other way makes it unknown.
"""

from __future__ import annotations

import ast
import operator
import os.path
import string
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

_MOST = 8  # combinations of branches and of items
_OPERATORS: dict[type[ast.operator], Any] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: lambda *pair: _product(*pair)},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    ast.Pow: lambda one, other: one**other if other < 100 else _large(),
}
_PLAIN = str, int, dict, range
_FUNCTIONS: dict[str, Any] = {one.__name__: one for one in _PLAIN} | {
    f"os.path.{name}": getattr(os.path, name)
    for name in ("join", "split", "dirname", "abspath", "realpath", "normpath")
}
_FUNCTIONS |= dict.fromkeys(("Template", "string.Template"), string.Template)
_METHODS = {
    **dict.fromkeys(("format", "join", "replace", "upper", "lower"), str),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), str),
    **dict.fromkeys(("absolute", "read_text", "resolve"), Path),
    **dict.fromkeys(("substitute", "safe_substitute"), string.Template),
}
_CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "sort"}
_CHANGES |= {"setdefault", "update"}
_LOOPS = ast.For | ast.AsyncFor | ast.While
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef
_FRAMES = _DEFINITIONS | ast.Lambda | ast.Module
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SCOPES = _FRAMES | ast.ClassDef | _COMPREHENSIONS
_position = operator.attrgetter("lineno", "col_offset")


class Unknown(Exception):  # noqa: N818 (it says what it is)
    """A value that only the running program knows."""


class Unassigned(Unknown):
    """A name without a value, where the program would raise NameError."""


def _large() -> NoReturn:
    raise Unknown("a large number")


def _product(one: Any, other: Any) -> Any:
    lengths = [len(each) for each in (one, other) if hasattr(each, "__len__")]
    count = other if hasattr(one, "__len__") else one
    return one * other if not lengths or lengths[0] * count < 10**7 else _large()


class Values:
    """What is assigned to the names of a program, and the values of expressions made of them."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self._parents: dict[ast.AST, Any] = {
            one: node for node in ast.walk(tree) for one in ast.iter_child_nodes(node)
        }
        self._assigned: dict[str, list[tuple[ast.AST, ast.expr | None]]] = {}
        self._chosen: dict[ast.AST, int] = {}  # a branch of `if`, an item of `for`
        self._pending: list[dict[ast.AST, int]] = []  # the other combinations
        self._here: ast.AST = tree  # what is evaluated
        self._elsewhere = set[str]()  # names that functions assign outside of themselves
        self._noted = set[ast.AST]()
        self._families: dict[str, set[str]] = {"": set()}  # classes that inherit from each other
        for node in ast.walk(tree):
            self._note(node)

    # ---- what is assigned ------------------------------------------------------------------------

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets, value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(ast.expr() as target, _, value) if value:
                self._assign(target, value)
            case ast.withitem(value, ast.expr() as target):
                self._assign(target, value)
            case ast.AugAssign(target, operation, value):
                self._assign(target, ast.BinOp(target, operation, value))
            case ast.For(target, items):
                loop: Any = (node,)  # ast.walk does not enter a tuple
                self._assign(target, ast.Subscript(items, ast.Constant(loop)))
            case ast.Call(ast.Attribute(changed, name)) if name in _CHANGES:
                self._assign(changed, None)
            case ast.Global(names) | ast.Nonlocal(names):
                self._elsewhere.update(names)
            case ast.Name(ctx=use) | ast.Attribute(ctx=use) if not isinstance(use, ast.Load):
                if node not in self._noted:
                    self._assign(node, None)
            case ast.arg(str(name)) | ast.MatchMapping(rest=str(name)):
                self._assigned.setdefault(name, []).append((node, None))
        if isinstance(own := getattr(node, "name", None), str):  # an import, a function, a pattern
            called = getattr(node, "asname", None) or own.split(".")[0]
            self._assigned.setdefault(called, []).append((node, None))
        if isinstance(node, ast.ClassDef):
            bases = {*map(ast.unparse, node.bases)} - {"object"}
            family = {node.name}.union(*(self._families.get(base, {"?"}) for base in bases))
            self._families |= dict.fromkeys(family, family)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                name, scope = ast.unparse(target), self._scope(target)
                self._noted.add(target)
                if isinstance(target, ast.Attribute) and not name.startswith(("self.", "cls.")):
                    self._elsewhere |= {f"self.{target.attr}", f"cls.{target.attr}"}
                owners = ("self", "cls", scope.name) if isinstance(scope, ast.ClassDef) else ()
                for called in (name, *(f"{owner}.{name}" for owner in owners)):
                    self._assigned.setdefault(called, []).append((target, value))
            case ast.Tuple(targets) | ast.List(targets):
                for index, one in enumerate(targets):
                    self._assign(one, value and ast.Subscript(value, ast.Constant(index)))
            case ast.Subscript(changed) | ast.Starred(changed):
                self._assign(changed, None)

    def _around(self, node: ast.AST) -> Iterator[tuple[ast.AST, Any]]:
        """Yield each node around a node, after the part of it that the node is in."""
        while parent := self._parents.get(node):
            yield node, parent
            node = parent

    def _scope(self, node: ast.AST) -> ast.AST:
        is_walrus = isinstance(self._parents[node], ast.NamedExpr)
        kinds: Any = _FRAMES | ast.ClassDef if is_walrus else _SCOPES
        found: Iterator[ast.AST] = (one for _, one in self._around(node) if isinstance(one, kinds))
        return next(found)

    def _class(self, node: ast.AST) -> str:
        return next(
            (one.name for _, one in self._around(node) if isinstance(one, ast.ClassDef)), ""
        )

    def _branches(self, node: ast.AST) -> Iterator[tuple[ast.AST, int, int]]:
        """Yield what is not always executed around a node, its branches, and the node's."""
        for part, one in self._around(node):
            handlers, cases = getattr(one, "handlers", ()), getattr(one, "cases", ())
            if part in cases:
                yield one, len(cases) + 1, cases.index(part)
            elif handlers and part in one.body:
                yield handlers[0], 2, 0
            elif handlers and part in (*handlers, *one.orelse):
                yield one, len(handlers) + 1, [*handlers, part].index(part)
            elif isinstance(one, ast.If | _LOOPS) and part in (*one.body, *one.orelse):
                yield one, 2, int(part in one.orelse)
            elif isinstance(one, _DEFINITIONS) and one.name != "__init__":
                yield one, 2, 0

    def assigned(self, node: ast.expr) -> list[ast.expr | None]:
        """Return all that is assigned to a name or an attribute, or else the node itself."""
        return [value for _, value in self._assigned.get(ast.unparse(node), [(node, node)])]

    # ---- values ----------------------------------------------------------------------------------

    def each(self, node: ast.AST, read: Callable[[], Any]) -> tuple[list[Any], list[Exception]]:
        """Return what `read` returns at a node in each combination of branches, and its errors."""
        found, errors = [], []
        self._pending = [{one: number for one, _, number in self._branches(node)}]
        for chosen in islice(self._pending, _MOST):  # which grows
            self._chosen, self._here = dict(chosen), node
            try:
                found.append(read())
            except Exception as error:  # whatever the program's own code raises
                errors.append(error)
        if len(self._pending) > _MOST:
            errors.append(Unknown(f"there are more than {_MOST} possible ones"))
        if found:
            errors = [error for error in errors if not isinstance(error, Unassigned)]
        return found, errors

    def _choose(self, what: ast.AST, count: int) -> int:
        """Return the number of one possibility; others are tried later."""
        if isinstance(what, ast.ExceptHandler):  # whether what it handles is raised late
            block = self._parents[what]
            if self._choose(block, len(block.handlers) + 1) == len(block.handlers):
                return 0
        if what not in self._chosen:
            others = range(1, min(count, _MOST + 1))
            self._pending += [{**self._chosen, what: number} for number in others]
            self._chosen[what] = 0
        return self._chosen[what]

    def value(self, node: ast.expr | None) -> Any:
        """Return an expression's value; raise Unknown if only the running program knows it."""
        match node:
            case ast.Name("__file__"):
                return str(self.path.resolve())
            case ast.Constant(value):
                return value
            case ast.Name() | ast.Attribute() if (name := ast.unparse(node)) in self._assigned:
                return self._value_of_name(name)
            case ast.BinOp(one, operation, other) if type(operation) in _OPERATORS:
                return _OPERATORS[type(operation)](self.value(one), self.value(other))
            case ast.UnaryOp(ast.USub(), one):
                return -self.value(one)
            case ast.IfExp(_, one, other):
                return self.value((one, other)[self._choose(node, 2)])
            case ast.JoinedStr(values):
                return "".join(str(self.value(one)) for one in values)
            case ast.FormattedValue(value, -1, spec):
                return format(self.value(value), self.value(spec) if spec else "")
            case ast.List(items) | ast.Tuple(items):
                return tuple(map(self.value, items))
            case ast.Dict(keys, values):
                return dict(zip(map(self.value, keys), map(self.value, values), strict=True))
            case ast.Subscript(value, ast.Constant((ast.For() as loop,))):
                first = tuple(islice(self.value(value), _MOST + 1))
                return first[self._choose(loop.target, len(first))]
            case ast.Subscript(value, index):
                return self.value(value)[self.value(index)]
            case ast.Attribute(value, "parent"):
                return Path(self.value(value)).parent
            case ast.Attribute(ast.Name("np" | "numpy"), name) if name in np.sctypeDict:
                return np.sctypeDict[name]
            case ast.Call():
                return self._value_of_call(node)
        raise Unknown(ast.unparse(node) if node is not None else "**")

    def _value_of_name(self, name: str) -> Any:
        if name in self._elsewhere:
            raise Unknown(name)
        here, around = self._here, [one for _, one in self._around(self._here)]
        scopes = [one for one in around if isinstance(one, _SCOPES)]
        stars = self._assigned.get("*", []) if "." not in name else []
        found = [(*one, self._scope(one[0])) for one in (*self._assigned[name], *stars)]
        found.sort(key=lambda one: _position(one[0]))
        is_whole = "." not in name  # all that may assign it is in `found`
        if is_whole:
            visible = [scopes[0], *(one for one in scopes[1:] if not isinstance(one, ast.ClassDef))]
            own = next((one for one in visible if any(one is s for *_, s in found)), None)
            found = [one for one in found if one[-1] is own]
        elif name.startswith(("self.", "cls.")):
            family = self._families[self._class(here)]
            found = [one for one in found if self._class(one[0]) in family or not family]
            is_whole = "?" not in family
            if len({self._class(one[0]) for one in found}) > 1:
                raise Unknown(name)
        frame = next(n for n, one in enumerate(scopes) if isinstance(one, _FRAMES))
        current = [one for one in scopes[: frame + 1] if not isinstance(one, _COMPREHENSIONS)]
        repeated = set[ast.AST]()  # loops in which a later step has another value
        for target, value, scope in reversed(found):
            loops = {one for _, one in self._around(target) if isinstance(one, _LOOPS)}
            if scope in current and _position(target) >= _position(here):
                repeated |= loops.intersection(around)
            elif all(self._choose(one, n) == number for one, n, number in self._branches(target)):
                if value is None or repeated - loops:
                    raise Unknown(name)
                self._here = target
                try:
                    return self.value(value)
                finally:
                    self._here = here
        raise (Unassigned if is_whole and found and not repeated else Unknown)(name)

    def arguments(self, call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of a call's arguments."""
        keywords: dict[str, Any] = {}
        for one in call.keywords:
            keywords |= {one.arg: self.value(one.value)} if one.arg else self.value(one.value)
        return [self.value(arg) for arg in call.args], keywords

    def _value_of_call(self, node: ast.Call) -> Any:
        name, method = ast.unparse(node.func), getattr(node.func, "attr", "")
        args, keywords = self.arguments(node)
        own = self._assigned.get(name.split(".")[0], ())
        if all(isinstance(one, ast.alias) for one, _ in own):
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](*args, **keywords)
            if name in ("open", "file", "Path"):
                return self.found(args[0])
            if name == "os.getcwd":
                return str(self.path.parent)
            if name.startswith(("np.", "numpy.")):
                return self.value(node.func)(*args)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if method == "read" and isinstance(owner, Path):
                return owner.read_text(errors="replace")
            if isinstance(owner, _METHODS.get(method, ())):
                return getattr(owner, method)(*args, **keywords)
        raise Unknown(ast.unparse(node))

    def found(self, name: str) -> Path:
        """Return a file or a folder: the program is started in its own, or further up."""
        paths = [folder / name for folder in self.path.parents]
        return next(filter(Path.exists, paths), paths[0])

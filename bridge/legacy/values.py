"""The values of a program's expressions, as far as they are made of constants and files.

Nothing of the program is run.  Where a value depends on a branch or a loop, each one is tried.
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
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
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
    **{"read_text": Path, "substitute": string.Template, "safe_substitute": string.Template},
}
_CHANGES = {"append", "extend", "insert", "update"}
_LOOPS = ast.For | ast.While
_SCOPES = ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.Module
_BRANCHES = ast.If | ast.ExceptHandler | ast.FunctionDef  # which may not be executed
_position = operator.attrgetter("lineno", "col_offset")


class Unknown(Exception):  # noqa: N818 (it says what it is)
    """A value that only the running program knows."""


def _large() -> NoReturn:
    raise Unknown("a large number")


class Values:
    """What is assigned to the names of a program, and the values of expressions made of them."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self._parents = {one: node for node in ast.walk(tree) for one in ast.iter_child_nodes(node)}
        self._assigned: dict[str, list[tuple[ast.AST, ast.expr | None]]] = {}
        self._chosen: dict[ast.AST, int] = {}  # a branch of `if`, an item of `for`
        self._pending: list[dict[ast.AST, int]] = []  # the other combinations
        self._here: ast.AST = tree  # what is evaluated
        for node in ast.walk(tree):
            self._note(node)
        for found in self._assigned.values():
            found.sort(key=lambda one: _position(one[0]))

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
            case ast.arg(name):
                self._assigned.setdefault(name, []).append((node, None))
            case ast.Expr(ast.Call(ast.Attribute(changed, name))) if name in _CHANGES:
                self._assign(changed, None)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                name, scope = ast.unparse(target), self._scope(target)
                loops = (one for _, one in self._around(target) if isinstance(one, _LOOPS))
                if value and any(loops) and name in map(ast.unparse, ast.walk(value)):
                    value = None  # each step changes it
                owners = ("self", "cls", scope.name) if isinstance(scope, ast.ClassDef) else ()
                for called in (name, *(f"{owner}.{name}" for owner in owners)):
                    self._assigned.setdefault(called, []).append((target, value))
            case ast.Tuple(targets) | ast.List(targets):
                for index, one in enumerate(targets):
                    self._assign(one, value and ast.Subscript(value, ast.Constant(index)))
            case ast.Subscript(changed) | ast.Starred(changed):
                self._assign(changed, None)

    def _around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield each node around a node, after the part of it that the node is in."""
        while parent := self._parents.get(node):
            yield node, parent
            node = parent

    def _scope(self, node: ast.AST) -> ast.AST:
        return next(one for _, one in self._around(node) if isinstance(one, _SCOPES))

    def _branches(self, node: ast.AST) -> dict[ast.AST, int]:
        """Return the branches around a node: 1 for an `else`, 0 for others."""
        found = [pair for pair in self._around(node) if isinstance(pair[1], _BRANCHES)]
        return {one: int(part in getattr(one, "orelse", ())) for part, one in found}

    def assigned(self, node: ast.expr) -> list[ast.expr | None]:
        """Return all that is assigned to a name or an attribute, or else the node itself."""
        return [value for _, value in self._assigned.get(ast.unparse(node), [(node, node)])]

    # ---- values ----------------------------------------------------------------------------------

    def each(self, node: ast.AST, read: Callable[[], Any]) -> tuple[list[Any], list[Exception]]:
        """Return what `read` returns at a node in each combination of branches, and its errors."""
        found, errors = [], []
        self._pending = [self._branches(node)]
        for chosen in islice(self._pending, _MOST):  # which grows
            self._chosen, self._here = dict(chosen), node
            try:
                found.append(read())
            except Exception as error:  # whatever the program's own code raises
                errors.append(error)
        return found, errors

    def _choose(self, what: ast.AST, count: int) -> int:
        """Return the number of one possibility; others are tried later."""
        if what not in self._chosen:
            others = range(1, min(count, _MOST))
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
                first = tuple(islice(self.value(value), _MOST))
                return first[self._choose(loop, len(first))]
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
        here, found = self._here, [(*one, self._scope(one[0])) for one in self._assigned[name]]
        scopes = [one for _, one in self._around(here) if isinstance(one, _SCOPES)]
        if "." not in name:
            own = next((one for one in scopes if any(one is s for *_, s in found)), None)
            found = [one for one in found if one[-1] is own]
        for target, value, scope in reversed(found):
            is_later = scope is scopes[0] and _position(target) >= _position(here)
            branches = self._branches(target).items()
            if is_later or any(self._choose(one, 2) != number for one, number in branches):
                continue
            if value is None:
                break
            self._here = target
            try:
                return self.value(value)
            finally:
                self._here = here
        raise Unknown(name)

    def _value_of_call(self, node: ast.Call) -> Any:
        name, method = ast.unparse(node.func), getattr(node.func, "attr", "")
        args = [self.value(arg) for arg in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
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

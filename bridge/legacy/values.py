"""Values that a program's text settles: constants, and strings that are formatted from them.

Names count if the program binds them once.  Everything else is known only when the program runs.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

_METHODS = {"format", "replace"}  # of strings


class Unknown(Exception):  # noqa: N818 (it says what it is)
    """A value that only the running program knows."""


class Values:
    """The values of a program's expressions."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, ast.expr] = {}
        bound, star = Counter[str](), 0
        for node in ast.walk(tree):
            named: Any = node  # an import, a definition or a pattern
            own = getattr(named, "asname", None) or getattr(named, "name", None)
            match node:
                case ast.alias("*"):
                    star = node.lineno  # may bind any name again
                case ast.Assign([ast.Name(name)], value):
                    self._assigned[name] = value
                case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if len(names) == len(values):
                    self._assigned |= dict(zip(map(ast.unparse, names), values, strict=True))
                case ast.Name(name, ast.Store() | ast.Del()) | ast.arg(name):
                    own = name
                case ast.MatchMapping(rest=name):
                    own = name
            bound[str(own).partition(".")[0]] += 1
        for name, value in [*self._assigned.items()]:
            if bound[name] > 1 or value.lineno < star:
                del self._assigned[name]

    def value(self, node: ast.expr | None) -> Any:
        """Return an expression's value; raise Unknown if only the running program knows it."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in self._assigned:
                if not isinstance(value := self.value(self._assigned[name]), list | dict):
                    return value  # others may have been changed
            case ast.BinOp(one, ast.Add(), other):
                return self.value(one) + self.value(other)
            case ast.BinOp(one, ast.Mod(), other):
                return self.value(one) % self.value(other)
            case ast.JoinedStr(values):
                return "".join(map(self.value, values))
            case ast.FormattedValue(value, -1, None):
                return format(self.value(value))
            case ast.List(values):
                return [*map(self.value, values)]
            case ast.Tuple(values):
                return tuple(map(self.value, values))
            case ast.Dict(keys, values):
                return {
                    self.value(key): self.value(one) for key, one in zip(keys, values, strict=True)
                }
            case ast.Call(ast.Attribute(owner, name), args, keywords) if name in _METHODS:
                given = {one.arg: self.value(one.value) for one in keywords if one.arg}
                if isinstance(text := self.value(owner), str) and len(given) == len(keywords):
                    return getattr(text, name)(*map(self.value, args), **given)
        raise Unknown

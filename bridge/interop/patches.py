"""What bridge replaces in other packages: one table, from which it is applied, listed and undone.

Nothing else replaces an attribute of their modules, classes and functions.  Single objects get
attributes ``_bridge_...``.  `bridge.show_config()` prints the table.  Of CuPy, the methods of
streams and ``@`` are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

_MISSING = object()


class Patch(NamedTuple):
    """An attribute that is replaced."""

    group: str  # what is undone together
    why: str
    target: Any  # a module, a class or a function; or `sys.modules`
    name: str
    old: Any  # _MISSING: there was none
    new: Any


_applied: list[Patch] = []  # the newest comes last


def apply(group: str, why: str, target: Any, new: dict[str, Any]) -> None:
    """Replace attributes, by name, unless they have been."""
    for name, value in new.items():
        if _get(target, name) is not value:
            _applied.append(Patch(group, why, target, name, _get(target, name), value))
            _set(target, name, value)


def undo(group: str) -> None:
    """Put back what a group has replaced; what others have replaced since then stays."""
    for one in [one for one in _applied if one.group == group]:
        after = _of(one.target, one.name)
        above = after[after.index(one) + 1 :]
        if above:
            _applied[_applied.index(above[0])] = above[0]._replace(old=one.old)
        elif _get(one.target, one.name) is one.new:
            _set(one.target, one.name, one.old)
        _applied.remove(one)


def original(target: Any, name: str) -> Any:
    """Return what an attribute was before its first patch."""
    return next((one.old for one in _of(target, name)), _get(target, name))


def listed() -> Iterator[tuple[str, str, str]]:
    """Yield the group of each patch, what is replaced (``pycuda.driver.Context.pop``), and why."""
    for group, why, target, name, *_ in _applied:
        home = "sys.modules" if isinstance(target, dict) else target.__name__
        if hasattr(target, "__qualname__"):
            home = f"{target.__module__}.{target.__qualname__}".replace("._driver.", ".driver.")
        yield group, f"{home}.{name}", why


def _of(target: Any, name: str) -> list[Patch]:
    return [one for one in _applied if one.target is target and one.name == name]


def _get(target: Any, name: str) -> Any:
    if isinstance(target, dict):
        return target.get(name, _MISSING)
    if isinstance(target, type):  # which may inherit the attribute
        return vars(target).get(name, _MISSING)
    return getattr(target, name, _MISSING)


def _set(target: Any, name: str, value: Any) -> None:
    if isinstance(target, dict):
        target.pop(name) if value is _MISSING else target.update({name: value})
    elif value is _MISSING:
        delattr(target, name)
    else:
        setattr(target, name, value)

"""Editing a program's source with its comments kept: what names stand for, edits, and notes.

`Edits` follows names through the program's own imports and assignments.  A subclass decides what to
edit, and `Edits.apply` makes the edits.  Everything else stays as it is, byte for byte.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

try:
    import libcst as cst
    from libcst import metadata
except ImportError as missing:
    raise ImportError(
        f"bridge migrate: LibCST, which edits programs, is not installed ({missing}): "
        "`pip install libcst fissix`, or bridge with [migrate]"
    ) from None

__all__ = ["NOTE", "SOURCE_MODULES", "Edits", "cst", "notes_in"]

NOTE, NEXT = "# bridge: ", "#         "  # the start of a note, and of its next lines
SOURCE_MODULES = ("pycuda.compiler.SourceModule", "pycuda.driver.SourceModule")
_MAKE_BOTH = "empty zeros ones arange empty_like zeros_like ones_like"
_MAKE_GPUARRAYS = f"GPUArray to_gpu to_gpu_async {_MAKE_BOTH}"
_MAKE_CUPY_ARRAYS = (
    f"{_MAKE_BOTH} array asarray full linspace eye full_like random.rand random.randn "
    "sqrt exp log sin cos"
)
_KINDS = {
    **dict.fromkeys((*SOURCE_MODULES, "bridge.SourceModule"), "module"),
    **{f"pycuda.gpuarray.{name}": "gpu" for name in _MAKE_GPUARRAYS.split()},
    **{f"cupy.{name}": "cupy" for name in _MAKE_CUPY_ARRAYS.split()},
    **{"bridge.as_cupy": "cupy", "bridge.as_pycuda": "gpu"},
    **{"len": "int", "int": "int", "float": "float"},
}


class Edits(cst.CSTVisitor):
    """Finds what to edit in a program, and what to note for a person; `apply` does it."""

    METADATA_DEPENDENCIES = (
        metadata.ParentNodeProvider,
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ScopeProvider,
    )

    def __init__(self, text: bytes) -> None:
        super().__init__()
        wrapper = metadata.MetadataWrapper(cst.parse_module(text))
        self.module = wrapper.module
        self.replacements: dict[cst.CSTNode, Any] = {}  # what takes their places
        self.notes: dict[cst.CSTNode, list[str]] = {}  # by statement
        self.insertions: dict[cst.CSTNode, list[cst.BaseStatement]] = {}  # to insert
        self.records: list[tuple[int, str]] = []  # lines of the program, and what is edited there
        self.kinds: dict[tuple[Any, str], str] = {}  # of names, by scope
        wrapper.visit(self)

    def apply(self) -> bytes:
        """Return the edited program."""
        edited = self.module.visit(_Apply(self))
        return edited.bytes if isinstance(edited, cst.Module) else b""

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's source."""
        return self.module.code_for_node(node)

    def alias_code(self, node: cst.ImportAlias) -> str:
        """Return the source of an imported name, without the comma behind it."""
        return self.code(node.with_changes(comma=cst.MaybeSentinel.DEFAULT))

    def find(self, kind: Any, root: cst.CSTNode | None = None) -> list[Any]:
        """Return the nodes of a kind, in the module or in another node."""
        node = root or self.module
        inside = [one for child in node.children for one in self.find(kind, child)]
        return [node, *inside] if isinstance(node, kind) else inside

    def line(self, node: cst.CSTNode) -> int:
        """Return the line in which a node begins."""
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)

    def parent(self, node: cst.CSTNode) -> Any:
        """Return the node around a node."""
        return self.get_metadata(metadata.ParentNodeProvider, node)

    def enclosing(self, node: cst.CSTNode, *kinds: type[Any]) -> Any:
        """Return the innermost node of some kinds at or around a node, or else the module."""
        while not isinstance(node, (*kinds, cst.Module)):
            node = self.parent(node)
        return node

    def statement(self, node: cst.CSTNode) -> Any:
        """Return the statement that a node is in."""
        return self.enclosing(node, cst.SimpleStatementLine, cst.BaseCompoundStatement)

    def qualified(self, node: cst.CSTNode) -> str:
        """Return the full name that the imports, or Python itself, give to a name; or ""."""
        found = self.get_metadata(metadata.QualifiedNameProvider, node, None) or set()
        if len(found) != 1 or any(n.source is metadata.QualifiedNameSource.LOCAL for n in found):
            return ""  # it may be something else
        return str(next(iter(found)).name).removeprefix("builtins.")

    def kind(self, node: Any) -> str:
        """Return what the value of an expression is, if nothing else is possible; or ""."""
        match node:
            case cst.Name(value=name):
                key = self.get_metadata(metadata.ScopeProvider, node, None), name
                if key not in self.kinds:
                    self.kinds[key] = ""  # unknown, to values that need it themselves
                    kinds = {*map(self.kind, self.values(node))}
                    self.kinds[key] = kinds.pop() if len(kinds) == 1 else ""
                return self.kinds[key]
            case cst.Integer():
                return "int"
            case cst.Float():
                return "float"
            case cst.BinaryOperation(left=left, right=right):
                kinds = {self.kind(left), self.kind(right)}
                if len(kinds) > 1:
                    kinds.discard("int")  # the other one decides
                return kinds.pop() if len(kinds) == 1 else ""
            case cst.Call(func=func) if self.qualified(func) in _KINDS:
                return _KINDS[self.qualified(func)]
            case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value=name))):
                known = (self.kind(value), name)
                if known in (("module", "get_function"), ("function", "prepare")):
                    return "function"
        return ""

    def method(self, call: cst.Call) -> str:
        """Return the name of the method that is called; or ""."""
        return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""

    def assignments(self, name: cst.Name) -> list[Any]:
        """Return all that gives a name its value."""
        scope = self.get_metadata(metadata.ScopeProvider, name, None)
        return list(scope[name.value]) if scope is not None and name.value in scope else []

    def values(self, name: cst.Name) -> Iterator[cst.BaseExpression | None]:
        """Yield what is assigned to a name; None for a loop, a parameter and the like."""
        for one in self.assignments(name):
            node = getattr(one, "node", None)
            around = self.parent(node) if isinstance(node, cst.Name) else None
            assign = self.parent(around) if isinstance(around, cst.AssignTarget) else None
            yield assign.value if assign else None

    def edit(self, node: cst.CSTNode, new: Any, text: str = "") -> None:
        """Put another node in a node's place."""
        self.replacements[node] = new
        self.record(node, text or self.code(new))

    def edit_statement(self, node: Any, text: str) -> None:
        """Put one or more statements, behind each other, in a small statement's place."""
        new: Any = cst.parse_statement(text)
        last = new.body[-1].with_changes(semicolon=node.semicolon)
        self.edit(node, cst.FlattenSentinel([*new.body[:-1], last]), text)

    def record(self, node: cst.CSTNode, text: str) -> None:
        """Record what becomes of a node, for the list of edits."""
        self.records.append((self.line(node), f"{_short(self.code(node))} -> {_short(text)}"))

    def rewrite(self, node: cst.BaseExpression, text: str) -> None:
        """Put an expression in an expression's place."""
        new = cst.parse_expression(text)
        self.edit(node, new.with_changes(lpar=node.lpar, rpar=node.rpar))

    def note(self, node: cst.CSTNode, text: str) -> None:
        """Write a comment above a node's statement."""
        notes = self.notes.setdefault(self.statement(node), [])
        if text not in notes:
            notes.append(text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self.edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edits = self.edits
        new = edits.replacements.get(original_node, updated_node)
        if not isinstance(original_node, cst.BaseStatement):
            return new
        if original_node in edits.notes:
            notes = [line for note in edits.notes[original_node] for line in _comment(note)]
            new = new.with_changes(leading_lines=[*new.leading_lines, *notes])
        before = edits.insertions.get(original_node, ())
        return cst.FlattenSentinel([*before, new]) if before else new  # an `elif` is one statement


def _comment(note: str) -> list[cst.EmptyLine]:
    lines = textwrap.wrap(NOTE + note, 90, subsequent_indent=NEXT, break_on_hyphens=False)
    return [cst.EmptyLine(comment=cst.Comment(line)) for line in lines]


def notes_in(text: bytes) -> list[tuple[int, str]]:
    """Return the lines and the texts of the notes in an edited program."""
    found, end = list[tuple[int, str]](), 0
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        if line.strip().startswith(NOTE):
            found.append((number, line.strip().removeprefix(NOTE)))
        elif number == end + 1 and line.strip().startswith(NEXT):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip().removeprefix(NEXT)}")
        else:
            continue
        end = number
    return found

"""What fissix leaves of Python 2: divisions, and names that Python 3 does not have."""

from __future__ import annotations

from typing import Any

from .editing import Edits, cst

_DIVISION = "in Python 2, / of two integers rounds down: write // if both are"
_GONE = "Python 3 has no {}: write {}"
_INSTEAD = {
    "file": "open",
    "string.maketrans": "str.maketrans",
    "string.letters": "string.ascii_letters",
    "string.lowercase": "string.ascii_lowercase",
    "string.uppercase": "string.ascii_uppercase",
    **{name: f"from PIL import {name}" for name in ("Image", "ImageDraw", "ImageFont", "ImageTk")},
    "cmp": "(a > b) - (a < b)",
}


class LeftoverEdits(Edits):
    """Writes // where both sides are integers, and open for file; notes what may be wrong."""

    def __init__(self, text: bytes, has_true_division: bool) -> None:
        self._has_true_division = has_true_division
        super().__init__(text)

    def visit_Module(self, node: cst.Module) -> None:
        """Take the sizes of launches for integers: PyCUDA takes no others."""
        self._sizes = set[Any]()
        for one in self.find(cst.Arg):
            if one.keyword and one.keyword.value in ("grid", "block"):
                self._note_size(one.value)

    def _note_size(self, value: Any) -> None:
        """Note an integer, and those that it is made of: of a tuple, a sum, or a name."""
        if value in self._sizes:
            return
        self._sizes.add(value)
        match value:
            case cst.Tuple(elements=elements):
                parts: list[Any] = [one.value for one in elements]
            case cst.BinaryOperation(left=left, right=right):
                parts = [left, right]
            case cst.Name():
                parts = [*self.values(value)]
            case _:
                return
        for part in parts:
            self._note_size(part)

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        """Edit a division if both kinds are known."""
        slash, kinds = node.operator, (self.kind(node.left), self.kind(node.right))
        if not isinstance(slash, cst.Divide) or "float" in kinds or self._has_true_division:
            return
        if kinds == ("int", "int") or node in self._sizes:
            self.replacements[slash] = cst.FloorDivide(
                slash.whitespace_before, slash.whitespace_after
            )
            self.record(node, f"{self.code(node.left)} // {self.code(node.right)}")
        else:
            self.note(node, _DIVISION)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        """Note a division in place."""
        if isinstance(node.operator, cst.DivideAssign) and not self._has_true_division:
            self.note(node, _DIVISION)

    def visit_Call(self, node: cst.Call) -> None:
        """Write open for file, unless the program has a `file` of its own."""
        name = node.func
        if isinstance(name, cst.Name) and name.value in _INSTEAD and not self.assignments(name):
            if name.value == "file":
                self.rewrite(name, "open")
            else:
                self.note(node, _GONE.format(name.value, _INSTEAD[name.value]))

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Write the names of today."""
        if (full := self.qualified(node)) in _INSTEAD:
            self.rewrite(node, _INSTEAD[full])

    def visit_Import(self, node: cst.Import) -> None:
        """Import from PIL what it had as modules."""
        found = [name for one in node.names if (name := self.code(one.name)) in _INSTEAD]
        if found and len(node.names) == 1:
            self.edit_statement(node, f"from PIL {self.code(node)}")
        elif found:
            self.note(node, _GONE.format(found[0], _INSTEAD[found[0]]))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """Note names that modules of Python do not have."""
        if node.module and not isinstance(node.names, cst.ImportStar):
            for one in node.names:
                if (name := f"{self.code(node.module)}.{self.code(one.name)}") in _INSTEAD:
                    self.note(node, _GONE.format(name, _INSTEAD[name]))

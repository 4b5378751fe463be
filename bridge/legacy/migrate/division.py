"""The divisions of Python 2, which fissix leaves as they are."""

from __future__ import annotations

from .editing import Edits, cst

_DIVISION = "in Python 2, / of two integers rounds down: write // if both are"


class DivisionEdits(Edits):
    """Writes // where both sides are integers, and a note where they may be."""

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        """Edit a division if both kinds are known."""
        slash, kinds = node.operator, (self.kind(node.left), self.kind(node.right))
        if not isinstance(slash, cst.Divide) or "float" in kinds:
            return
        if kinds == ("int", "int"):
            self.replacements[slash] = cst.FloorDivide(
                slash.whitespace_before, slash.whitespace_after
            )
            self.record(node, f"{self.code(node.left)} // {self.code(node.right)}")
        else:
            self.note(node, _DIVISION)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        """Note a division in place."""
        if isinstance(node.operator, cst.DivideAssign):
            self.note(node, _DIVISION)

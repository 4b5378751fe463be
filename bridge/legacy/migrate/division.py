"""The divisions of Python 2, which fissix leaves as they are."""

from __future__ import annotations

from .editing import Edits, cst

_DIVISION = "in Python 2, / of two integers rounds down: write // if both are"


class DivisionEdits(Edits):
    """Writes // where both sides are integers, and a note where they may be."""

    def __init__(self, text: bytes) -> None:
        self._sizes = set[cst.BaseExpression]()  # of grids and blocks, which are integers
        super().__init__(text)

    def visit_Arg(self, node: cst.Arg) -> None:
        """Take the sizes of a launch for integers: PyCUDA takes no others."""
        name = node.keyword.value if node.keyword else ""
        if name in ("grid", "block") and isinstance(node.value, cst.Tuple):
            self._sizes = {one.value for one in node.value.elements}

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        """Edit a division if both kinds are known."""
        if node in self._sizes:
            self._sizes |= {node.left, node.right}
        slash, kinds = node.operator, (self.kind(node.left), self.kind(node.right))
        if not isinstance(slash, cst.Divide) or "float" in kinds:
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
        if isinstance(node.operator, cst.DivideAssign):
            self.note(node, _DIVISION)

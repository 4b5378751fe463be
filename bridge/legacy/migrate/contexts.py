"""The contexts of a PyCUDA program: edits that put CuPy's in their place."""

from __future__ import annotations

from typing import Any

from ..names import AUTOINIT
from .editing import Edits, cst

_OTHERS = ("pycuda.tools.make_default_context", "pycuda.gl.make_context")
_THREADS = ("threading", "concurrent", "_thread", "joblib")

_AT_TOP = "import bridge.autoinit instead, at the top of the program: it needs the main thread"
_SECOND = (
    "this makes a second context beside CuPy's. Work under `with bridge.primary_context(device):`, "
    "and remove the context's push, pop and detach"
)
_FLAGS = "CuPy's context takes no flags: they are left out"


class ContextEdits(Edits):
    """Puts CuPy's context, the device's primary one, in the place of PyCUDA's own."""

    def visit_Module(self, node: cst.Module) -> None:
        """Decide about all contexts, before the visits of the nodes inside."""
        self.imports = self.find(cst.Import | cst.ImportFrom)
        self.imported = [name for one in self.imports for name in self.names(one)]
        self.bridge_uses: list[int] = []  # lines that use the name `bridge`
        self.has_context = False
        self.undecided = False  # there is a context that a person should decide on
        self.kept_imports = [one for one in self.imports if self._keeps_autoinit(one)]
        for call in self.find(cst.Call):
            self._edit_context(call)

    def names(self, node: Any) -> list[str]:
        """Return the full names of what a statement imports."""
        if isinstance(node, cst.Import):
            return [self.code(alias.name) for alias in node.names]
        if not isinstance(node, cst.ImportFrom) or node.module is None or node.relative:
            return []
        names: Any = node.names
        ends = (
            ["*"] if isinstance(names, cst.ImportStar) else [self.code(one.name) for one in names]
        )
        return [f"{self.code(node.module)}.{end}" for end in ends]

    def imports_any(self, *roots: str) -> bool:
        """Tell whether the program imports some modules, or something of them."""
        return any(f"{name}.".startswith(f"{root}.") for name in self.imported for root in roots)

    def _in_thread(self, node: cst.CSTNode) -> bool:
        """Tell whether a node is in a function of a program with threads."""
        is_inside = isinstance(self.enclosing(node, cst.FunctionDef), cst.FunctionDef)
        return is_inside and self.imports_any(*_THREADS)

    def _note_context(self, node: cst.CSTNode, text: str) -> None:
        self.undecided = True
        self.note(node, text)

    def _keeps_autoinit(self, node: Any) -> bool:
        names = self.names(node)
        if "pycuda.gl.autoinit" in names:
            self._note_context(node, _SECOND)
        if not any(name.startswith(AUTOINIT) for name in names):
            return False
        if "pycuda.autoinit.*" in names or self._in_thread(node):
            self._note_context(node, _AT_TOP)
            return True
        self.has_context = True
        return False

    def _edit_context(self, call: Any) -> None:
        """Push the primary context in the place of a new one: it is popped as before."""
        name, around = self.qualified(call.func), self.parent(call)
        is_pycudas = f"{name or 'pycuda'}.".startswith("pycuda.")
        if name in _OTHERS:
            self._note_context(call, _SECOND)
            return
        if self.method(call) != "make_context" or not is_pycudas:
            return
        made = f"{self.code(call.func.value)}.retain_primary_context()"
        if isinstance(around, cst.Assign) and len(around.targets) == 1:
            target = self.code(around.targets[0].target)
            self.edit_statement(around, f"{target} = {made}; {target}.push()")
        elif isinstance(around, cst.Expr):
            self.rewrite(call, f"{made}.push()")
        else:
            self._note_context(call, _SECOND)
        self.has_context = True
        if call.args:
            self.note(call, _FLAGS)

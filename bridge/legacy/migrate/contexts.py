"""The contexts of a PyCUDA program: edits that put CuPy's in their place."""

from __future__ import annotations

from typing import Any

from ..names import AUTOINIT
from .editing import Edits, WithBlock, cst

_DEVICE = "pycuda.driver.Device"
_OTHERS = ("pycuda.tools.make_default_context", "pycuda.gl.make_context")
_THREADS = ("threading", "concurrent", "_thread", "joblib")

_AT_TOP = "import bridge.autoinit instead, at the top of the program: it needs the main thread"
_SECOND = (
    "this makes a second context beside CuPy's. Work under `with bridge.primary_context(device):`, "
    "and remove the context's push, pop and detach"
)
_DELETE = (
    "delete arrays and modules before this block ends: on a thread without a context, PyCUDA "
    "cannot free them"
)


class ContextEdits(Edits):
    """Puts bridge's contexts in the place of PyCUDA's, where a context begins and ends in sight."""

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
        """Make a ``with`` of a context that is made and popped in one list of statements."""
        is_other = self.qualified(call.func) in _OTHERS
        if not is_other and self.method(call) != "make_context":
            return
        found = None if is_other else self._find_with(call)
        if found is None:
            self._note_context(call, _SECOND)
            return
        self.wrapped[self.parent(self.statement(call))] = found
        self.has_context = True
        self.bridge_uses.append(self.line(call))
        self.record(self.parent(call), f"with {self.code(found.item)}:")
        for one in found.removed:
            self.record(one.body[0], "(removed)")
        if self.imports_any(*_THREADS):
            self.note(call, _DELETE)

    def _find_with(self, call: Any) -> WithBlock | None:
        line, assign, device = self.statement(call), self.parent(call), call.func.value
        block = self.parent(line)
        is_line = isinstance(block, cst.Module | cst.IndentedBlock) and self.line_code(line)
        if not is_line or not isinstance(assign, cst.Assign) or len(assign.targets) > 1:
            return None
        if call.args or block in self.wrapped:
            return None
        is_device = self.qualified(getattr(device, "func", device)) == _DEVICE
        if not is_device and _DEVICE not in map(self.qualified, self.find(cst.Attribute)):
            return None
        name, first = self.code(assign.targets[0].target), block.body.index(line)
        ends = f"{name}.pop()", f"{name}.detach()"
        steps = [self.line_code(one) for one in block.body]
        last = first + 1
        whole = block.body[last] if last < len(steps) else None
        if isinstance(whole, cst.Try) and whole.finalbody and not (whole.handlers or whole.orelse):
            inside, removed = [*whole.body.body], [*whole.finalbody.body.body]
            if tuple(map(self.line_code, removed)) not in (ends[:1], ends):
                return None
        elif ends[0] in steps[first:]:
            last = steps.index(ends[0], first)
            while steps[last + 1 :] and steps[last + 1].startswith((ends[1], "del ")):
                last += 1
            inside = [*block.body[first + 1 : last + 1]]
            removed = [one for one in inside if self.line_code(one) in ends]
            inside = [one for one in inside if one not in removed]
        else:
            return None
        switches = self._count_switches(assign.targets[0].target)
        if switches != len(removed) or any(self.find(cst.Yield, one) for one in inside):
            return None
        number = device.args[0].value if is_device and len(device.args) == 1 else None
        text = self.code(number if isinstance(number, cst.Integer) else device)
        made: Any = cst.parse_statement(f"with bridge.primary_context({text}) as {name}: pass")
        return WithBlock(first, last, inside, removed, made.items[0])

    def _count_switches(self, target: Any) -> int:
        """Count how often the program pushes, pops or detaches a context, or hands that on."""
        if isinstance(target, cst.Name):
            same = [
                name
                for name in self.find(cst.Name)
                if target in [getattr(one, "node", None) for one in self.assignments(name)]
            ]
        else:  # self.context
            same = self.find(cst.Attribute, self.enclosing(target, cst.ClassDef))
            same = [one for one in same if self.code(one) == self.code(target)]
        around = [self.parent(one) for one in same]
        verbs = [one.attr.value for one in around if isinstance(one, cst.Attribute)]
        return sum(verbs.count(verb) for verb in ("push", "pop", "detach"))

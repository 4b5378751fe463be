"""What becomes what in a PyCUDA program, and what a person should decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..names import AMBIGUOUS, AUTOINIT, BEFORE_CUDA_4, SERVED, not_served, within_skcuda
from .contexts import ContextEdits
from .editing import SOURCE_MODULES, cst

_GENERATING = ("curandom", "cumath", "elementwise", "gpuarray", "reduction", "scan")
_LIBRARIES = {"pycuda", "cupy", "skcuda", "scikits"}
_STREAMS = ("cupy.cuda.Stream", "cupy.cuda.ExternalStream", "bridge.as_cupy_stream")
_NAMES = {"gpu": "GPUArray", "cupy": "CuPy array"}
_NEVER = 1 << 60  # behind the last line

_NONE_HERE = (
    "no context is made in this file: the program that imports it needs `import bridge.autoinit`"
)
_GONE = "functions of bridge have no {}: {}"
_PREPARE = "prepare takes no block: give it to each call, f.prepared_call(grid, block, *args)"
_NVCC = "bridge compiles without nvcc: leave out nvcc=, or pass backend='nvcc', too"
_COPY = "this copies through the host. If {0} is a {1}, write {2}"
_MEMCPY = (
    "this copies through the host. Use bridge.as_cupy or bridge.as_pycuda: a view in place of the "
    "copy, or an assignment, view[...] = array"
)
_VIEW = "this copies on the device. If nothing writes to either array later, leave out the copy"
_POINTER = "this address has no owner and no order: use {}"
_VIEWS = "bridge.as_pycuda(x), with the CuPy array, or bridge.as_pycuda(memory, shape, dtype)"
_ALLOCATOR = f"if this allocator gives memory in use, a + 1 overwrites it: use {_VIEWS}"
_BESIDE = (
    "Python 3 finds {0}.py if this file is started as a program. If it is imported from its "
    "package, write `from . import {0}` or `from .{0} import ...`"
)
_ADDRESS = "pass the array: an address is ordered with CuPy's current stream only"


class ProgramEdits(ContextEdits):
    """Finds the edits of a PyCUDA program."""

    def __init__(self, text: bytes, folder: Path) -> None:
        self.folder = folder
        super().__init__(text)

    def visit_Module(self, node: cst.Module) -> None:
        """Decide first about what concerns the whole program."""
        super().visit_Module(node)
        self.bridge_imports: list[int] = []  # lines that import `bridge`
        self._check_name()
        calls = [(self.qualified(call.func), call) for call in self.find(cst.Call)]
        attributes = self.find(cst.Attribute)
        gone = sorted(one.attr.value for one in attributes if self._is_before_cuda_4(one))
        self.refusal = ""  # when SourceModule can be bridge's, if not now
        if self.undecided:
            self.refusal = "once each context is CuPy's"
        elif gone:
            self.refusal = f"once nothing calls {gone[0]}"
        elif any(name in SOURCE_MODULES and _gives_nvcc(call) for name, call in calls):
            self.refusal = "once no call gives nvcc="
        # A copy through the host waits.  On streams that run beside the default one, others do not.
        self.has_streams = any(
            name in _STREAMS or (name == "pycuda.driver.Stream" and call.args)
            for name, call in calls
        )
        self.has_free = any(one.attr.value == "free" for one in attributes)
        for one in self.imports:
            for name in self.names(one):
                self._note_skcuda(one, name)
                self._note_beside(one, name.partition(".")[0])

    def _check_name(self) -> None:
        for name in self.find(cst.Name):
            for one in self.assignments(name) if name.value == "bridge" else ():
                node = getattr(one, "node", None)
                if node and not any(full.startswith("bridge") for full in self.names(node)):
                    raise ValueError(
                        f"the program has a `bridge` of its own, in line {self.line(node)}; rename "
                        "it, because the copy imports the package of this name"
                    )

    def _note_skcuda(self, node: cst.CSTNode, name: str) -> None:
        """Note a module of scikit-cuda that `bridge.legacy.skcuda` does not have."""
        parts = within_skcuda(name)
        if parts and parts[0] not in ("*", "autoinit", *SERVED):
            self.note(node, not_served(parts[0]))

    def _note_beside(self, node: cst.CSTNode, root: str) -> None:
        """Note a module of the program's own package, which Python 2 finds without a dot."""
        if all((self.folder / name).exists() for name in ("__init__.py", f"{root}.py")):
            self.note(node, _BESIDE.format(root))

    def _is_before_cuda_4(self, node: cst.Attribute) -> bool:
        """Tell whether a name is certainly one that functions had before CUDA 4."""
        name = node.attr.value
        is_sure = name not in AMBIGUOUS or self.kind(node.value) == "function"
        return name in BEFORE_CUDA_4 and is_sure

    # Imports, and what they give.

    def visit_Import(self, node: cst.Import) -> bool:
        """Import bridge.autoinit."""
        if node in self.kept_imports or not {*self.names(node)} & {*AUTOINIT}:
            return False
        names = [self.alias_code(one) for one in node.names]
        for number, one in enumerate(node.names):
            if (name := self.code(one.name)) in AUTOINIT:
                names[number] = names[number].replace(name, "bridge.autoinit")
                if not one.asname and self.parent(self.parent(node)) is self.module:
                    self.bridge_imports.append(self.line(node))
                if not one.asname and self._needs_pycuda():
                    names.append("pycuda")
        self.edit_statement(node, f"import {', '.join(names)}")
        return False

    def _needs_pycuda(self) -> bool:
        """Tell whether a `pycuda` that stays in use has no other import than autoinit's."""
        aliases = [alias for one in self.find(cst.Import) for alias in one.names]
        names = [self.code(alias.name) for alias in aliases if not alias.asname]
        if any(f"{name}.".startswith("pycuda.") for name in names if name not in AUTOINIT):
            return False
        edited = {*AUTOINIT, *(() if self.refusal else SOURCE_MODULES)}
        chains = [one for one in self.find(cst.Attribute) if self.qualified(one) in edited]
        inside = {name for chain in chains for name in self.find(cst.Name, chain)}
        stays = [one for one in self.find(cst.Name) if one not in inside]
        return any(self.qualified(one) == one.value == "pycuda" for one in stays)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Import from bridge what it has."""
        names = self.names(node)
        moved = [n for n in names if n in SOURCE_MODULES or n.startswith(AUTOINIT)]
        if not moved or isinstance(node.names, cst.ImportStar) or node in self.kept_imports:
            return False
        if self.refusal and moved[0] in SOURCE_MODULES:
            self.note(node, f"{self.refusal}, write `from bridge import SourceModule`")
            return False
        aliases = dict(zip(names, map(self.alias_code, node.names), strict=True))
        is_inside = names[0].startswith(tuple(f"{name}." for name in AUTOINIT))
        new = [aliases.pop(name).replace("autoprimaryctx as", "autoinit as") for name in moved]
        new = ["autoinit as autoprimaryctx" if one == "autoprimaryctx" else one for one in new]
        text = f"from bridge{'.autoinit' * is_inside} import {', '.join(new)}"
        if aliases:
            package = names[0].rpartition(".")[0]
            text += f"; from {package} import {', '.join(aliases.values())}"
        self.edit_statement(node, text)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Take from bridge what the program takes from a module of PyCUDA."""
        full, name = self.qualified(node), node.attr.value
        if full in SOURCE_MODULES and self.refusal:
            self.note(node, f"{self.refusal}, write bridge.SourceModule")
        elif full in SOURCE_MODULES:
            self._use_bridge(node, "bridge.SourceModule")
        elif full in AUTOINIT and not self.kept_imports:
            self._use_bridge(node, "bridge.autoinit")
        elif self._is_before_cuda_4(node):
            self.note(node, _GONE.format(name, BEFORE_CUDA_4[name]))
        else:
            return True
        return False

    def _use_bridge(self, node: cst.BaseExpression, text: str) -> None:
        self.bridge_uses.append(self.line(node))
        self.rewrite(node, text)

    # Arrays and kernels.

    def visit_Call(self, node: cst.Call) -> bool:
        """Convert arrays, and pass them to prepared calls."""
        name, method = self.qualified(node.func), self.method(node)
        plain = [one.value for one in node.args if not one.keyword and not one.star]
        is_one = len(node.args) == len(plain) == 1
        if name == "cupy.asarray" and is_one and self.kind(plain[0]) == "gpu":
            return self._edit_conversion(node, f"bridge.as_cupy({self.code(plain[0])})")
        if name in ("cupy.asarray", "cupy.array") and is_one:
            return self._edit_copy(node, plain[0], "gpu", 'bridge.as_cupy({}).copy("K")')
        if name == "pycuda.gpuarray.to_gpu" and is_one:
            return self._edit_copy(node, plain[0], "cupy", "bridge.as_pycuda({}.copy())")
        if name == "pycuda.gpuarray.GPUArray":
            return self._edit_address(node)
        if name == "cupy.cuda.UnownedMemory":
            self.note(node, _POINTER.format("bridge.as_cupy(a), with the GPUArray"))
        elif name.startswith("pycuda.driver.memcpy_") and any(map(self._host_copy, plain)):
            self.note(node, _MEMCPY)
        elif name in SOURCE_MODULES and _gives_nvcc(node):
            self.note(node, _NVCC)
        elif method == "prepare" and (
            _gives(node, "block") or any(isinstance(one, cst.Tuple) for one in plain[1:2])
        ):
            self.note(node, _PREPARE)
        elif method == "prepared_async_call":
            self._pass_arrays(node)
        return True

    def _edit_conversion(self, node: cst.Call, text: str) -> bool:
        """Edit a conversion, unless a person must see to a context first."""
        if self.undecided:
            self.note(node, f"once each context is CuPy's, write {text}")
        else:
            self._use_bridge(node, text)
        return self.undecided

    def _host_copy(self, node: Any) -> Any:
        """Return the array that ``array.get()`` or ``cupy.asnumpy(array)`` copies; or None."""
        match node:
            case cst.Call(func=cst.Attribute(value=value, attr=cst.Name("get")), args=()):
                return value
            case cst.Call(func=func, args=[cst.Arg(value=value)]):
                return value if self.qualified(func) == "cupy.asnumpy" else None

    def _edit_copy(self, node: cst.Call, given: Any, wanted: str, template: str) -> bool:
        """Edit a copy through the host to a copy on the device, which nobody can tell from it."""
        array = self._host_copy(given)
        kind = self.kind(array)
        if array is None or kind not in ("", wanted):
            return True
        text = template.format(self.code(array))
        if not kind or self.undecided or self.has_streams or (self.has_free and wanted == "cupy"):
            self.note(node, _COPY.format(self.code(array), _NAMES[wanted], text))
            return True
        self.note(node, _VIEW)
        return self._edit_conversion(node, text)

    def _edit_address(self, node: cst.Call) -> bool:
        """Edit a GPUArray on the address of a CuPy array."""
        names = [one.keyword.value if one.keyword else str(n) for n, one in enumerate(node.args)]
        given = dict(zip(names, (one.value for one in node.args), strict=True))
        allocator = given.pop("allocator", given.pop("2", None))
        pointer = (
            allocator.body if isinstance(allocator, cst.Lambda) else given.pop("gpudata", None)
        )
        if pointer is None:
            if allocator is not None and not self._allocates(allocator):
                self.note(node, _ALLOCATOR)
            return True
        address = self.code(pointer).removeprefix("int(").removesuffix(")")
        array = address.removesuffix(".data.ptr")
        values = {"base": array} | {name: self.code(one) for name, one in given.items()}
        usual = {"base": array, "0": f"{array}.shape", "1": f"{array}.dtype"}
        if values == usual and array != address and array.replace(".", "").isidentifier():
            return self._edit_conversion(node, f"bridge.as_pycuda({array})")
        self.note(node, _POINTER.format(_VIEWS))
        return True

    def _allocates(self, allocator: Any) -> bool:
        """Tell whether an allocator certainly gives memory of its own."""
        of_a_pool = self.code(allocator).endswith((".allocate", "pycuda_allocator()"))
        return of_a_pool or self.qualified(allocator).startswith("pycuda.driver.")

    def _pass_arrays(self, node: Any) -> None:
        """Pass arrays instead of their addresses to a prepared call on a stream."""
        is_ours = self.kind(node.func.value) == "function" and not self.refusal
        for one in node.args[3:]:
            match one.value:
                case cst.Attribute(value=array, attr=cst.Name("gpudata")) if (
                    is_ours and self.kind(array) == "gpu"
                ):
                    self.rewrite(one.value, self.code(array))
                case cst.Attribute(attr=cst.Name("gpudata" | "ptr")) if self.imports_any("cupy"):
                    self.note(node, _ADDRESS)

    # What the copy needs besides.

    def leave_Module(self, original_node: cst.Module) -> None:
        """Import bridge where nothing else does, and have NVRTC compile PyCUDA's own kernels."""
        body = original_node.body
        roots = [{name.partition(".")[0] for name in self._imports_only(one)} for one in body]
        head = next((n for n, one in enumerate(body) if not _is_head(one)), 0)
        first = next((n for n, found in enumerate(roots) if found & _LIBRARIES), head)
        after = next((n for n in range(first, len(body)) if not roots[n]), 0)
        generates = self.imports_any(*(f"pycuda.{name}" for name in _GENERATING))
        if generates and self.has_context and not self.undecided and after:
            text = "bridge.use_nvrtc(modules=True)  # for PyCUDA's own kernels"
            self._insert(body[after], f"\n{text}")
        if self.imports_any("skcuda", "scikits.cuda"):
            self._insert(
                body[first], "import bridge.legacy.skcuda  # so that the next import finds it"
            )
        elif self.bridge_uses and min(self.bridge_uses) < min(self.bridge_imports, default=_NEVER):
            self._insert(body[first], "import bridge")
        has_context = self.has_context or self.undecided or self.imports_any("bridge.autoinit")
        if self.replacements and not has_context:
            self.note(min(self.replacements, key=self.line), _NONE_HERE)

    def _imports_only(self, statement: Any) -> list[str]:
        """Return what a line imports, if it does nothing else."""
        lines = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        is_import = all(isinstance(one, cst.Import | cst.ImportFrom) for one in lines)
        return [name for one in lines for name in self.names(one) or [""]] if is_import else []

    def _insert(self, statement: cst.BaseStatement, text: str) -> None:
        self.insertions.setdefault(statement, []).append(cst.parse_statement(text))
        self.bridge_uses.append(self.line(statement))
        self.records.append((self.line(statement), f"(new) {text.strip()}"))


def _is_head(statement: Any) -> bool:
    """Tell whether a statement is a docstring, or imports from __future__."""
    one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(one, cst.ImportFrom):
        return isinstance(one.module, cst.Name) and one.module.value == "__future__"
    return isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString)


def _gives(call: cst.Call, name: str) -> bool:
    return any(one.keyword is not None and one.keyword.value == name for one in call.args)


def _gives_nvcc(call: cst.Call) -> bool:
    return _gives(call, "nvcc") or any(not one.keyword for one in call.args[1:2])

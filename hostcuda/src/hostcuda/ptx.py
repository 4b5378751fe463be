"""Translate PTX to C++ for the host: registers are variables, instructions are statements.

The driver runs each thread of the GPU as a call of the kernel's function (``fibers.cpp``).
"""

from __future__ import annotations

import platform
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import ptx_arithmetic, ptx_compare, ptx_control
from .ptx_analysis import (
    arithmetic_floats,
    contractions,
    counted,
    fused_sum,
    infer,
    keeps_subnormals,
    unwritten,
    waiting,
    watches,
)
from .ptx_parser import (
    Function,
    Instruction,
    Module,
    Unsupported,
    Variable,
    parse,
    size_of,
    unknown,
)
from .ptx_writer import DECIMAL, FLOATS, HANDLERS, Modifiers, Shared, Writer, integer

__all__ = ["FILES", "Unsupported", "translate", "unknown"]

FOLDER = Path(__file__).resolve().parent
# What a translation depends on.
FILES = [*sorted(FOLDER.glob("ptx*.py")), FOLDER / "arithmetic.h", FOLDER / "translated.h"]
_ = ptx_arithmetic, ptx_compare, ptx_control  # they register instructions

_MEETING = {"bar", "barrier", "shfl", "vote", "match", "redux", "elect", "activemask", "nanosleep"}


def _lay_out(variables: Iterable[Variable], end: int, offsets: dict[int, int]) -> int:
    """Give variables offsets from `end` on; return where they end."""
    for v in variables:
        offsets[id(v)] = _aligned(end, v.align)
        end = offsets[id(v)] + v.bytes
    return end


class _Translator:
    def __init__(
        self, module: Module, limits: Mapping[str, tuple[int, ...]], checks: bool, source: str
    ) -> None:
        self.module, self.limits, self.source = module, limits, source
        self.lines: set[int] = set()  # of the source: those that can run
        self.made: dict[str, Instruction] = {}  # by the lines of C++
        self.local_bytes: dict[str, int] = {}
        self.common = Shared(module, checks)
        self.bodies = {n: f for n, f in module.functions.items() if f.body is not None}
        self.flushes = self._flushes()
        self.memory = [v for v in module.variables.values() if v.space in ("global", "const")]
        shared = [v for v in module.variables.values() if v.space == "shared"]
        self.shared = [v for v in shared if not v.is_extern]
        self.externs = [v for v in shared if v.is_extern]
        self.calls = {
            name: {n for i in f.body or () if i.name == "call" for n in self._targets(i)}
            for name, f in self.bodies.items()
        }
        self.waiting = {name: waiting(f.body or []) for name, f in self.bodies.items()}
        self.spinning = {name: self._loops(f) for name, f in self.bodies.items()}
        self.common.counts_changes = any(self.spinning.values())

    def _instructions(self) -> Iterable[Instruction]:
        for function in self.bodies.values():
            yield from function.body or ()

    def _flushes(self) -> bool:
        """Tell whether the processor may flush subnormal floats: nothing here keeps them."""
        body = [*self._instructions()]
        return (
            platform.machine() == "x86_64"
            and any("ftz" in i.modifiers for i in body)
            and not any(map(keeps_subnormals, body))
        )

    def _targets(self, call: Instruction) -> set[str]:
        """Return the function of a call, or all whose address it may use; none for printf."""
        target = call.operands[1] if call.operands[0].startswith("(") else call.operands[0]
        target = self.module.aliases.get(target, target)
        if target in self.module.functions:
            return {target} & {*self.bodies}
        return {n for n, f in self.bodies.items() if not f.is_entry}

    def closure(self, name: str) -> set[str]:
        """Return a function with all that it may call."""
        found, todo = set(), [name]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += self.calls[at]
        return found

    def _loops(self, function: Function) -> set[int]:
        """Return the branches back whose loop may wait for other threads, by their id()."""
        body = function.body or []
        known = self.waiting[function.name]
        at = {i.label: n for n, i in enumerate(body) if i.label}
        found = set()
        for n, i in enumerate(body):
            if i.name != "bra":
                continue
            loop = body[at.get(function.label(i.scope, i.operands[0]), n) : n]
            called = [name for j in loop if j.name == "call" for name in self._targets(j)]
            parts = {part for name in called for part in self.closure(name)}
            waits = any(id(j) in known for j in loop) or any(self.waiting[part] for part in parts)
            if watches(loop) or waits:
                found.add(id(i))
        return found

    def waits(self, name: str) -> bool:
        """Tell whether a thread of a kernel may have to be set aside."""
        for part in self.closure(name):
            if self.spinning[part]:
                return True
            for i in self.bodies[part].body or ():
                if i.name in _MEETING:
                    return True
                if i.name == "st" and {"volatile", "shared"} <= {*i.modifiers}:
                    return True
        return False

    # ---- memory ----------------------------------------------------------------------------------

    def variables(self) -> list[str]:
        """Declare the module's variables."""
        found = []
        for number, v in enumerate(self.memory):
            if v.kind.endswith("ref"):
                raise Unsupported(f"hostcuda: the texture reference {v.name} is not supported")
            if v.is_extern:
                raise Unsupported(f"hostcuda: the variable {v.name} is not defined")
            v.code = f"g{number}"
            self.common.codes[v.name] = v.code
            count = (1 if v.count is None else v.count) * v.lanes
            name = "" if "$" in v.name else f'__asm__("{v.name}")'  # the assembler's numbers have $
            found.append(
                f'extern "C" {{ __attribute__((visibility("default"), aligned({max(v.align, 1)}))) '
                f"extern {Writer.c(v.kind)} {v.code}[{max(count, 1)}] {name}; }}"
            )
        return found

    def values(self) -> list[str]:
        """Define the module's variables, with what they hold at first."""
        found = []
        for v in self.memory:
            count = max((1 if v.count is None else v.count) * v.lanes, 1)
            values = ", ".join(self._value(v, text) for text in v.values)
            found.append(f"{Writer.c(v.kind)} {v.code}[{count}] = {{{values}}};")
        return found

    def _value(self, variable: Variable, text: str) -> str:
        kind = Writer.c(variable.kind)
        if text[:2] in ("0f", "0F", "0d", "0D"):
            wide = text[1] in "dD"
            return f"bits<{'f64' if wide else 'f32'}>({'u64' if wide else 'u32'}(0x{text[2:]}))"
        value = integer(text)
        if kind in FLOATS and (value is not None or DECIMAL.match(text)):
            return f"{kind}({text})"
        if value is not None:
            return f"{kind}({value & (1 << 8 * size_of(variable.kind)) - 1}ull)"
        found = re.match(r"(?:generic\()?\s*([\w$]+)\s*\)?\s*(?:\+\s*(-?\d+))?$", text)
        name = self.module.aliases.get(found[1], found[1]) if found else ""
        if not found or name not in self.common.codes:
            raise Unsupported(f"hostcuda: the value {text} of {variable.name} is not supported")
        return f"{kind}({self.common.codes[name]}) + {found[2] or 0}"

    # ---- functions -------------------------------------------------------------------------------

    def function(self, function: Function, shared: dict[int, int], dynamic: int) -> str:
        """Return the C++ of a function."""
        w = Writer(self.common, function, self.flushes)
        w.spinning = self.spinning[function.name]
        body = function.body or []
        used = counted(body)
        w.offsets.update(shared)
        end = _lay_out((v for v in function.variables if v.space == "local"), 0, w.offsets)
        w.local_bytes = self.local_bytes[function.name] = end
        w.offsets.update((id(v), dynamic) for v in self.externs)
        infer(function, body)
        w.computed = arithmetic_floats(body)
        fused, dropped = contractions(body)
        lines = []
        for i in body:
            if i.label:
                lines.append(f"{i.label}:;")
                continue
            w.scope = i.scope
            code = ""
            if id(i) not in dropped:
                code = fused_sum(w, i, fused[id(i)]) if id(i) in fused else _translated(w, i)
            if self.common.checks:
                before, after = unwritten(w, i, code)
                code = before + code + after
            if self.source and (line := i.own_line):
                self.lines.add(line)
                note = f'hc_cover(hc_source, "DA:{line},1")'
                code = f"if (!hc_ran[{line}]) {{ hc_ran[{line}] = true; {note}; }} {code}"
            if i.guard:
                code = f"if ({w.use(i.guard, 'pred')}) {{ {code} }}"
            lines.append(f"  {code}")
            self.made.setdefault(lines[-1], i)
        registers = [v for v in function.variables if v.space == "reg" and v.name in used]
        declared = [f"  {w.c(v.kind)} {v.code};" for v in registers]
        if self.common.checks:
            declared += [f"  bool {v.code}_u = false;" for v in registers]
        declared += [
            f"  alignas(16) char {v.code}[{max(v.bytes, 1)}];"
            for v in function.variables
            if v.space == "param"
        ]
        if function.is_entry:
            declared.append("  char *const par = t->block->parameters;")
        if any("carry" in line for line in lines):
            declared.append("  u32 carry = 0, no_carry;")
        if "fuel" in w.uses:
            declared.append("  u32 fuel = 200;")
        if "shared" in w.uses:
            declared.append("  char *const shared = t->block->shared;")
            declared.append("  const u64 shared_bytes = t->block->shared_bytes;")
        if w.local_bytes:
            declared.append(
                "  char *const before = t->local, *const local = before + (-u64(before) & 127); "
                f"t->local = local + {end};"
            )
        elif "local" in w.uses:
            declared.append("  char *const local = t->local;")
        if w.local_bytes or self.calls[function.name]:
            declared.append(
                "  if (HC_RARE(t->local > t->local_end || "
                "(char *)__builtin_frame_address(0) < t->stack_end)) "
                f"hc_local_full(t, {body[0].own_line if body else 0});"
            )
        if w.local_bytes and not function.is_entry:
            lines.append("  t->local = before;")
        return "\n".join([f"{self._head(function)} {{", *declared, *lines, "}"])

    def _head(self, function: Function) -> str:
        names = [f"char *{v.code}" for v in (*function.results, *function.parameters)]
        parameters = ", ".join(["hc_thread *t", *([] if function.is_entry else names)])
        return f"static void {self.common.codes[function.name]}({parameters})"

    def text(self) -> str:
        """Return the whole module."""
        declarations = self.variables()
        entries = []
        for number, f in enumerate(self.bodies.values()):
            self.common.codes[f.name] = f"{'k' if f.is_entry else 'function'}{number}"
            at: dict[int, int] = {}
            _lay_out(f.parameters, 0, at)
            for n, v in enumerate(f.parameters):
                v.code = f"(par + {at[id(v)]})" if f.is_entry else f"p{n}"
            for n, v in enumerate(f.results):
                v.code = f"r{n}"
            declarations.append(f"{self._head(f)};")
        functions = []
        offsets: dict[int, int] = {}
        common = _lay_out(self.shared, 0, offsets)
        for f in self.bodies.values():  # functions have shared memory of their own
            if not f.is_entry:
                common = _lay_out(f.shared, common, offsets)
        most = max([16, *(v.align for v in self.externs)])
        # Functions find dynamic shared memory at one place, whichever kernel calls them.
        called = any(
            v.name in text
            for f in self.bodies.values()
            if not f.is_entry
            for i in f.body or ()
            for text in i.operands
            for v in self.externs
        )
        ends = {}
        for name, f in self.bodies.items():
            end = _lay_out(f.shared, common, offsets) if f.is_entry else common
            ends[name] = _aligned(end, most) if self.externs else end
        if called:
            ends = dict.fromkeys(ends, max(ends.values()))
        for name, f in self.bodies.items():
            functions.append(self.function(f, offsets, ends[name]))
            if f.is_entry:
                entries.append(self._entry(f, ends[name]))
        return "\n".join(self._file(declarations, functions, entries))

    def _entry(self, f: Function, shared: int) -> tuple[str, str]:
        sizes = [v.bytes for v in f.parameters]
        at: dict[int, int] = {}
        end = _lay_out(f.parameters, 0, at)
        code = self.common.codes[f.name]
        constant = sum(v.bytes for v in self.module.variables.values() if v.space == "const")
        known = 32, shared, _aligned(self.local_bytes[f.name], 16), constant, f.threads
        limits = ", ".join(map(str, self.limits.get(f.name, known)))
        waits, flushes = str(self.waits(f.name)).lower(), str(self.flushes).lower()
        tables = (
            f"static const size_t {code}_sizes[] = {{{', '.join(map(str, [*sizes, 0]))}}};\n"
            f"static const size_t {code}_offsets[] = {{{', '.join(map(str, [*at.values(), 0]))}}};"
        )
        kinds = "".join(v.kind[0] if v.count is None else "b" for v in f.parameters)
        row = (
            f'{{"{f.name}", {code}, &hostcuda_module, {len(sizes)}, {code}_sizes, '
            f'{code}_offsets, "{kinds}", {end}, {shared}, {waits}, {flushes}, {{{limits}}}}}'
        )
        return tables, row

    def _file(
        self, declarations: list[str], functions: list[str], entries: list[tuple[str, str]]
    ) -> Iterable[str]:
        count = len(self.common.sites)
        yield f'#include "{FOLDER}/arithmetic.h"'
        yield f"static hc_site hc_sites[{count + 1}] = {{{', '.join(self.common.sites)}}};"
        if self.lines:
            listed = "\\n".join(f"DA:{line},0" for line in sorted(self.lines))
            yield f"static bool hc_ran[{max(self.lines) + 1}];"
            yield f'static const char hc_source[] = "{self.source}";'
            yield "__attribute__((constructor)) static void hc_list() {"
            yield f'  hc_cover(hc_source, "{listed}"); }}'
        yield from declarations
        names = [self.common.codes[n] for n, f in self.bodies.items() if not f.is_entry]
        addresses = "".join(f"u64(&{n}), " for n in names)
        yield f"static const u64 hc_functions[] = {{{addresses}0}};"
        yield f"static const u32 hc_function_count = {len(names)};"
        yield from self.values()
        yield from functions
        files = {n: name.rpartition("/")[2] for n, name in self.module.files.items()}
        listed = ", ".join(
            f'"{files.get(n, "")}"' for n in range(max(self.module.files, default=0) + 1)
        )
        yield f"static const char *const hc_files[] = {{{listed}}};"
        own = [f"{{{v.code}, {v.bytes}}}, " for v in self.memory]
        yield f"static const hc_variable hc_variables[] = {{{''.join(own)}{{}}}};"
        yield (
            'extern "C" { extern __attribute__((visibility("default"))) const hc_module '
            f"hostcuda_module = {{hc_sites, {count}, hc_files, hc_variables, {len(own)}}}; }}"
        )
        yield from (tables for tables, _ in entries)
        rows = "".join(f"{row}, " for _, row in entries)
        yield (
            'extern "C" { __attribute__((visibility("default"))) '
            f"hc_kernel hostcuda_kernels[] = {{{rows}{{}}}}; }}"
        )
        # The names that a cubin's sections have: programs look for kernels and variables there.
        kernels = [name for name, f in self.bodies.items() if f.is_entry]
        sections = "".join(rf".nv.constant0.{name}\0" for name in kernels)
        yield f'__attribute__((used)) static const char hostcuda_sections[] = "{sections}";'
        hidden = re.compile(r"\$|__unnamed_|__cudart|_ZTV|_ZN\d+__nv_|_ZN?4?cuda|_ZN.*(3std|cuda)")
        if not all(hidden.match(v.name) for v in self.memory):
            section = (
                r".pushsection .nv.global,\"a\"\nhostcuda.variables:\n"
                r".type hostcuda.variables,@object\n.popsection"
            )
            yield f'__asm__("{section}");'


def _aligned(at: int, by: int) -> int:
    return -(-at // max(by, 1)) * max(by, 1)


def _translated(w: Writer, i: Instruction) -> str:
    handler = HANDLERS.get(i.name)
    if handler is None:
        w.refuse(i, i.opcode)
    modifiers = Modifiers(w, i)
    code = handler(w, i, modifiers)
    modifiers.done()
    return code


def translate(
    text: str, limits: Mapping[str, tuple[int, ...]], checks: bool = False, source: str = ""
) -> tuple[str, dict[str, Instruction]]:
    """Return C++ for PTX, and which of its lines are which instruction.

    `limits` are those of `_nvrtc.Limits`, by the kernels' names.  With `checks`, the driver looks
    at each access (``checks.cpp``).  With `source`, a path, it notes which lines run (`hc_cover`).

    Raises
    ------
    Unsupported
        For what the host cannot run, by name.
    """
    module = parse(text)
    try:
        translator = _Translator(module, limits, checks, source)
        return translator.text(), translator.made
    except Unsupported:
        raise
    except Exception as error:
        raise unknown(_culprit(error)) from None


def _culprit(error: Exception) -> str:
    """Return the instruction at which the translation stopped."""
    texts = [""]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        i = frame.f_locals.get("i")
        if isinstance(i, Instruction):
            texts.append(i.text)
    return texts[-1]

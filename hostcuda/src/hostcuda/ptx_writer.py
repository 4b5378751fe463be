"""What the translation of each PTX instruction needs: operands as typed C, and modifiers."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NoReturn, TypeVar

from .ptx_parser import Function, Instruction, Module, Scope, Unsupported, Variable, size_of, split

FLOATS = "f32", "f64"
HALVES = "f16", "bf16", "f16x2", "bf16x2"
INTEGERS = tuple(f"{letter}{bits}" for letter in "usb" for bits in (8, 16, 32, 64))
TYPES = {*FLOATS, *HALVES, *INTEGERS, "pred", "b128", "s16x2", "u16x2"}
C_TYPES = {"pred": "bool", "f16": "u16", "bf16": "u16", "b128": "unsigned __int128"}
C_TYPES |= dict.fromkeys(("f16x2", "bf16x2", "s16x2", "u16x2"), "u32")
C_TYPES |= {f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64)}

_SPECIAL = {
    "%laneid": "t->number % 32",
    "%warpid": "t->number / 32",
    "%nwarpid": "(t->block->ntid[0] * t->block->ntid[1] * t->block->ntid[2] + 31) / 32",
    "%smid": "0u",
    "%nsmid": "2u",
    "%gridid": "t->block->grid_id",
    "%lanemask_eq": "1u << t->number % 32",
    "%lanemask_lt": "(1u << t->number % 32) - 1",
    "%lanemask_le": "(2u << t->number % 32) - 1",
    "%lanemask_gt": "~((2u << t->number % 32) - 1)",
    "%lanemask_ge": "~((1u << t->number % 32) - 1)",
    "%dynamic_smem_size": "u32(t->block->dynamic_bytes)",
    "%total_smem_size": "u32(t->block->shared_bytes)",
    "%clock": "u32(hc_clock())",
    "%clock_hi": "u32(hc_clock() >> 32)",
    "%clock64": "hc_clock()",
    "%globaltimer": "hc_nanoseconds()",
    "%globaltimer_lo": "u32(hc_nanoseconds())",
    "%globaltimer_hi": "u32(hc_nanoseconds() >> 32)",
    # Where a cooperative launch keeps its barrier.
    "%envreg1": "u32(t->block->workspace >> 32)",
    "%envreg2": "u32(t->block->workspace)",
    # A cluster of one block.
    "%is_explicit_cluster": "false",
    "%cluster_ctarank": "0u",
    "%cluster_nctarank": "1u",
    "WARP_SZ": "32u",
}
for _axis, _number in (("x", 0), ("y", 1), ("z", 2)):
    _SPECIAL[f"%tid.{_axis}"] = f"t->tid[{_number}]"
    for _name, _field in (("ntid", "ntid"), ("ctaid", "ctaid"), ("nctaid", "nctaid")):
        _SPECIAL[f"%{_name}.{_axis}"] = f"t->block->{_field}[{_number}]"
    _SPECIAL[f"%cluster_ctaid.{_axis}"] = "0u"
    _SPECIAL[f"%cluster_nctaid.{_axis}"] = "1u"
    _SPECIAL[f"%clusterid.{_axis}"] = f"t->block->ctaid[{_number}]"
    _SPECIAL[f"%nclusterid.{_axis}"] = f"t->block->nctaid[{_number}]"

CLOCKS = re.compile("%clock|%globaltimer")
_NUMBER = re.compile(r"-?(?:0[xX][\da-fA-F]+|0[bB][01]+|\d+)U?$")
DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?$")
_SYMBOL = re.compile(r"([\w$%]+)\s*\+\s*(-?\d+)$")
_ADDRESS = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\w+))?\s*\]$")


def integer(text: str) -> int | None:
    """Return the value of PTX's integers; None for another text."""
    if not _NUMBER.match(text):
        return None
    return int(re.sub(r"^(-?)0(\d)", r"\g<1>0o0\2", text.rstrip("U")), 0)


Handler = Callable[["Writer", Instruction, "Modifiers"], str]
_H = TypeVar("_H", bound=Handler)
HANDLERS: dict[str, Handler] = {}


def instruction(*names: str) -> Callable[[_H], _H]:
    """Register the translation of instructions."""

    def register(handler: _H) -> _H:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class Modifiers:
    """The modifiers of an instruction. Each must be taken: one that is left is not known."""

    def __init__(self, writer: Writer, made: Instruction) -> None:
        self.left = list(made.modifiers)
        self._writer, self._made = writer, made

    def take(self, name: str) -> bool:
        """Tell whether it is there."""
        if name not in self.left:
            return False
        self.left.remove(name)
        return True

    def choose(self, *names: str) -> str:
        """Return the one of these that is there; "" if none is."""
        found = next((name for name in self.left if name in names), "")
        if found:
            self.left.remove(found)
        return found

    def type(self) -> str:
        """Return the last type."""
        for at in range(len(self.left) - 1, -1, -1):
            if self.left[at] in TYPES:
                return self.left.pop(at)
        self.unknown(self._made.opcode)

    def done(self) -> None:
        """Refuse what was not taken."""
        if self.left:
            self.unknown(f".{self.left[0]} of {self._made.opcode}")

    def unknown(self, what: str) -> NoReturn:
        """Refuse the instruction."""
        opcode = self._made.opcode
        whole = opcode in what or " of " in what
        self._writer.refuse(self._made, what if whole else f"{what} of {opcode}")


class Shared:
    """What the functions of a module have in common while they are written."""

    def __init__(self, module: Module, checks: bool) -> None:
        self.module = module
        self.checks = checks  # each access calls the driver
        self.codes: dict[str, str] = {}  # of variables and functions
        self.sites: list[str] = []
        self.counts_changes = False
        self.places = 0  # of meetings

    def site(self, i: Instruction, size: int, space: str, kind: str, is_volatile: bool) -> str:
        """Add a place that uses memory."""
        fields = f"{i.line}, {i.file}, {size}, hc_{space}, hc_{kind}, {str(is_volatile).lower()}"
        self.sites.append(f"{{0, 0, {fields}}}")
        return f"&hc_sites[{len(self.sites) - 1}]"


class Writer:
    """Writes one function."""

    def __init__(self, common: Shared, function: Function, flushes: bool) -> None:
        self.common, self.function = common, function
        self.flushes = flushes  # the processor flushes subnormal numbers by itself
        self.offsets: dict[int, int] = {}  # of local and shared variables, by their id()
        self.local_bytes = 0
        self.uses: set[str] = set()  # of what the function's beginning prepares
        self.spinning: set[int] = set()  # branches back of loops that may wait, by their id()
        self.computed: set[str] = set()  # floats whose NaN is that of a GPU's arithmetic
        self.scope = Scope()

    def refuse(self, i: Instruction, what: str) -> NoReturn:
        """Say that an instruction is not known."""
        line = f", line {i.own_line}" if i.own_line else ""
        raise Unsupported(f"hostcuda: {what} is not supported (in {self.function.name}{line})")

    @staticmethod
    def c(kind: str) -> str:
        """Return a type in C."""
        return C_TYPES.get(kind, kind)

    def flush(self, code: str, always: bool = False, scaled: str = "") -> str:
        """Make a subnormal float zero; `always`: no arithmetic of the processor follows.

        `scaled` gives 2^64 times the value, which may seem normal since it was rounded.
        """
        if self.flushes and not always:
            return code
        return f"flush({code}, [&] {{ return {scaled}; }})" if scaled else f"flush({code})"

    def find(self, name: str) -> Variable | None:
        """Find a variable of the function or the module."""
        return self.scope.find(name) or self.common.module.variables.get(name)

    def use(self, text: str, kind: str, stored: bool = False) -> str:
        """Return an operand as C of a type; `stored`: its bits are seen."""
        want = self.c(kind)
        if text in _SPECIAL:
            return f"{want}({_SPECIAL[text]})"
        if text[0].isdigit() or text[0] == "-":
            return self._literal(text, kind)
        if text[0] == "!":
            return f"!{self.use(text[1:], 'pred')}"
        if text[0] == "{":
            return self._gather(text, kind)
        variable = self.scope.find(text)
        if variable is not None and variable.space == "reg":
            code = variable.code
            if variable.kind == "f32" and text in self.computed and (want != "f32" or stored):
                code = f"canonical({code})"
            return _convert(code, self.c(variable.kind), want)
        return f"{want}({self.symbol(text)})"

    def _gather(self, text: str, kind: str) -> str:
        parts = self.parts(text)
        bits = size_of(kind) * 8 // len(parts)
        whole = f"u{size_of(kind) * 8}"
        terms = [f"{whole}({self.use(p, f'u{bits}')}) << {n * bits}" for n, p in enumerate(parts)]
        return f"({' | '.join(terms)})"

    def _literal(self, text: str, kind: str) -> str:
        want = self.c(kind)
        if text[:2] in ("0f", "0F"):
            bits = int(text[2:], 16)
            return f"bits<f32>({bits:#x}u)" if kind == "f32" else f"{want}({bits:#x}u)"
        if text[:2] in ("0d", "0D"):
            bits = int(text[2:], 16)
            if kind == "f32":  # a literal of either width may stand for a float
                (bits,) = struct.unpack(
                    "<I", struct.pack("<f", *struct.unpack("<d", struct.pack("<Q", bits)))
                )
                return f"bits<f32>({bits:#x}u)"
            return f"bits<f64>({bits:#x}ull)" if kind == "f64" else f"{want}({bits:#x}ull)"
        value = integer(text)
        if value is not None:
            if kind in FLOATS:
                return f"{want}({value})"
            if kind == "pred":
                return "true" if value else "false"
            bits = size_of(kind) * 8
            return f"{want}({value & (1 << bits) - 1}{'ull' if bits > 32 else 'u'})"
        if DECIMAL.match(text) and kind in FLOATS:
            return f"{want}({text})"
        raise Unsupported(f"hostcuda: PTX's number {text!r} is not known (in {self.function.name})")

    def symbol(self, text: str) -> str:
        """Return the address that a name stands for, as a u64."""
        found = _SYMBOL.match(text)
        name, offset = (found[1], f" + u64({found[2]}ll)") if found else (text, "")
        name = self.common.module.aliases.get(name, name)
        variable = self.find(name)
        if variable is None:
            if name not in self.common.codes:
                raise Unsupported(f"hostcuda: {name} is not defined (in {self.function.name})")
            return f"u64(&{self.common.codes[name]}){offset}"
        return f"(u64({self.start(variable)}){offset})"

    def start(self, variable: Variable) -> str:
        """Return where a variable lies: an address, or an offset in shared memory."""
        if variable.space == "shared":
            return str(self.offsets[id(variable)])
        if variable.space == "local":
            self.uses.add("local")
            return f"(local + {self.offsets[id(variable)]})"
        return variable.code

    def put(self, to: str, kind: str, code: str) -> str:
        """Return the statement that gives a register a value of a type."""
        have = self.c(kind)
        if to == "_":
            return f"(void)({code});"
        variable = self.scope.find(to)
        if variable is None or variable.space != "reg":
            raise Unsupported(f"hostcuda: {to} is no register (in {self.function.name})")
        want = self.c(variable.kind)
        return f"{variable.code} = {_convert(f'{have}({code})', have, want)};"

    def parts(self, text: str) -> list[str]:
        """Return the elements of a vector."""
        return split(text.strip()[1:-1]) if text.startswith("{") else [text]

    @staticmethod
    def pair(text: str) -> list[str]:
        """Return one or two results: `a|b`."""
        return [part.strip() for part in text.split("|")]

    def address(self, text: str) -> tuple[Variable | None, str, int]:
        """Return a variable, or else a register's value, and an offset."""
        found = _ADDRESS.match(text)
        if not found:
            raise Unsupported(
                f"hostcuda: PTX's address {text} is not known (in {self.function.name})"
            )
        name, offset = found[1], int(found[2] or "0", 0)
        if name[0].isdigit():
            return None, f"{int(name, 0)}ull", offset
        variable = self.find(name)
        if variable is not None and variable.space != "reg":
            return variable, "", offset
        return None, self.use(name, "u64"), offset


def _convert(code: str, have: str, want: str) -> str:
    """Convert C of one type to another, bits as they are."""
    if have == want:
        return code
    if want in FLOATS:
        return f"bits<{want}>(u{want[1:]}({code}))" if have not in FLOATS else f"{want}({code})"
    if have in FLOATS:
        return f"{want}(bits<u{have[1:]}>({code}))"
    return f"{want}({code})"

"""Translate PTX's comparisons, selections, moves and conversions.

Source: PTX ISA, "Comparison and Selection Instructions" and ``cvt``.
"""

from __future__ import annotations

from .ptx_arithmetic import PACKED, ROUNDINGS
from .ptx_parser import Instruction, size_of
from .ptx_writer import FLOATS, HALVES, INTEGERS, Modifiers, Writer, instruction

WIDEN = {"f16": "from_half", "bf16": "from_bf16"}
NARROW = {"f16": "to_half", "bf16": "to_bf16"}
RELU = {"f16": "relu", "bf16": "relu_bf16"}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMPARISONS = (*SIGNS, *UNSIGNED, *(f"{name}u" for name in SIGNS), "num", "nan")


def _compare(name: str, kind: str, a: str, b: str) -> str:
    """Return a comparison; those of floats are false where a NaN is, but for the unordered ones."""
    name = UNSIGNED.get(name, name)
    if kind not in FLOATS:
        return f"{a} {SIGNS[name]} {b}"
    nan = f"(is_nan({a}) || is_nan({b}))"
    if name in ("num", "nan"):
        return f"!{nan}" if name == "num" else nan
    if name == "ne":
        return f"({a} < {b} || {a} > {b})"
    if name == "neu":
        return f"{a} != {b}"
    if name == "equ":
        return f"!({a} < {b} || {a} > {b})"
    if name.endswith("u"):  # not the opposite
        opposite = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<"}[name[:-1]]
        return f"!({a} {opposite} {b})"
    return f"{a} {SIGNS[name]} {b}"


def _compared(w: Writer, i: Instruction, m: Modifiers, kind: str) -> list[str]:
    """Return the comparison, two of a packed type, without another predicate."""
    if kind[0] == "b" and kind in INTEGERS:
        kind = "u" + kind[1:]
    name = m.choose(*COMPARISONS)
    if not name:
        m.unknown(i.opcode)
    a, b = w.use(i.operands[1], kind), w.use(i.operands[2], kind)
    ftz = m.take("ftz")
    if kind not in HALVES:
        return [_compare(name, kind, *map(w.flush, (a, b)) if ftz else (a, b))]
    widen = WIDEN[PACKED.get(kind, kind)]
    widen += "(flush_half({}))" if ftz else "({})"
    if kind not in PACKED:
        return [_compare(name, "f32", widen.format(a), widen.format(b))]
    parts = ([widen.format(f"u16({text}{s})") for text in (a, b)] for s in ("", " >> 16"))
    return [_compare(name, "f32", *both) for both in parts]


def _joined(w: Writer, i: Instruction, m: Modifiers) -> str:
    """Return the end of an expression that joins what was compared with another predicate."""
    sign = {"and": "&", "or": "|", "xor": "^", "": ""}[m.choose("and", "or", "xor")]
    return sign and f" {sign} {w.use(i.operands[3], 'pred')}"


@instruction("setp")
def _setp(w: Writer, i: Instruction, m: Modifiers) -> str:
    found = _compared(w, i, m, m.type())
    end = _joined(w, i, m)
    to = w.pair(i.operands[0])
    if len(to) == 1:
        return w.put(to[0], "pred", f"({found[0]}){end}")
    found = [*found, "!holds0"][:2]
    lines = [f"const bool holds{n} = {text};" for n, text in enumerate(found)]
    lines += [f"const bool value{n} = holds{n}{end};" for n in range(2)]
    lines += [w.put(p, "pred", f"value{n}") for n, p in enumerate(to)]
    return f"{{ {' '.join(lines)} }}"


@instruction("set")
def _set(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, result = m.type(), m.type()
    found = _compared(w, i, m, kind)
    end = _joined(w, i, m)
    one = {"f32": "1.0f", "f16": "0x3c00", "bf16": "0x3f80", "f16x2": "0x3c00", "bf16x2": "0x3f80"}
    value = one.get(result, "-1" if len(found) == 1 else "0xffff")
    found = [f"(({text}){end}) ? {value} : 0" for text in found]
    packed = f"pair({', '.join(found)})"
    return w.put(i.operands[0], result, found[0] if len(found) == 1 else packed)


@instruction("mov")
def _mov(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    to, source = i.operands
    if to.startswith("{"):
        parts = w.parts(to)
        bits = size_of(kind) * 8 // len(parts)
        word = w.use(source, f"u{size_of(kind) * 8}")
        puts = [w.put(p, f"u{bits}", f"word >> {n * bits}") for n, p in enumerate(parts)]
        return f"{{ const {w.c(kind)} word = {word}; {' '.join(puts)} }}"
    return w.put(to, kind, w.use(source, kind))


@instruction("slct")
def _slct(w: Writer, i: Instruction, m: Modifiers) -> str:
    by, kind = m.type(), m.type()
    c = w.use(i.operands[3], by)
    if m.take("ftz"):
        c = w.flush(c)
    a, b = w.use(i.operands[1], kind), w.use(i.operands[2], kind)
    return w.put(i.operands[0], kind, f"{c} >= 0 ? {a} : {b}")


INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


@instruction("cvt")
def _cvt(w: Writer, i: Instruction, m: Modifiers) -> str:
    if m.take("pack"):
        return _pack(w, i, m)
    source, to = m.type(), m.type()
    how = m.choose(*ROUNDINGS, *INTEGRAL)
    ftz, sat, is_relu = m.take("ftz"), m.take("sat"), m.take("relu")
    if to in ("f16x2", "bf16x2"):
        return _narrow_pair(w, i, m, to, source, how, is_relu)
    a = w.use(i.operands[1], source)
    if source in HALVES:
        a, ftz = f"{WIDEN[source]}({a})", False  # a subnormal one stays
    if ftz and source == "f32":
        a = w.flush(a, always=True)
    if source in FLOATS or source in HALVES:
        found = _from_float(to, source, how, a, is_relu)
    else:
        found = _from_integer(to, source, how, a, sat)
    if sat and to in FLOATS:
        found = f"sat({found})"
    elif sat and to in HALVES:
        found = f"{to}_sat({found})"
    if ftz and to == "f32":
        scaled = _from_float(to, source, how, f"{a} * 0x1p64", False) if source == "f64" else ""
        found = w.flush(found, always=True, scaled=scaled)
    return w.put(i.operands[0], to, found)


def _from_float(to: str, source: str, how: str, a: str, is_relu: bool) -> str:
    if to in INTEGERS:
        return f"to_integer<{to}>(hc_{INTEGRAL.get(how, 'rz')}, {a})"
    if how in INTEGRAL:
        a, how = f"integral(hc_{INTEGRAL[how]}, {a})", ""
    if to in HALVES:
        found = f"{NARROW[to]}(hc_{how or 'rn'}, {a})"
        return f"{RELU[to]}({found})" if is_relu else found
    if to == "f32" and source == "f64":
        return f"f32({a})" if how in ("", "rn") else f"hc_narrow(hc_{how}, {a})"
    return f"{to}({a})"


def _from_integer(to: str, source: str, how: str, a: str, sat: bool) -> str:
    if to in INTEGERS:
        return f"clamp<{to}>({a})" if sat else f"{to}({a})"
    wide = "s64" if source[0] == "s" else "u64"
    if to in HALVES:
        return f"{NARROW[to]}(hc_{how or 'rn'}, odd({wide}({a})))"
    if how in ("", "rn"):
        return f"{to}({a})"
    return f"hc_{'float' if to == 'f32' else 'double'}_{wide}(hc_{how}, {wide}({a}))"


def _narrow_pair(
    w: Writer, i: Instruction, m: Modifiers, to: str, source: str, how: str, is_relu: bool
) -> str:
    """Convert two numbers; the first is the upper half."""
    if source != "f32":
        m.unknown(source)
    one = PACKED[to]
    high, low = (w.use(text, "f32") for text in i.operands[1:])
    halves = [f"{NARROW[one]}(hc_{how}, {x})" for x in (low, high)]
    if is_relu:
        halves = [f"{RELU[one]}({h})" for h in halves]
    return w.put(i.operands[0], "u32", f"pair({', '.join(halves)})")


def _pack(w: Writer, i: Instruction, m: Modifiers) -> str:
    """Convert two integers with saturation, and put them below what the third operand holds."""
    kinds = [x for x in m.left if x in INTEGERS]
    m.left = [x for x in m.left if x not in kinds and x != "sat"]
    to, source = kinds[:2]
    bits = size_of(to) * 8
    a, b = (f"u32(u{bits}(clamp<{to}>({w.use(x, source)})))" for x in i.operands[1:3])
    found = f"{a} << {bits} | {b}"
    if len(i.operands) > 3:
        found = f"{w.use(i.operands[3], 'u32')} << {2 * bits} | {found}"
    return w.put(i.operands[0], "u32", found)

"""Translate PTX's arithmetic to the functions of ``arithmetic.h``.

Source: PTX ISA, "Integer Arithmetic" to "Data Movement and Conversion Instructions".
"""

from __future__ import annotations

from .ptx_parser import Instruction
from .ptx_writer import FLOATS, HALVES, INTEGERS, Modifiers, Writer, instruction

ROUNDINGS = "rn", "rz", "rm", "rp"
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "s16x2": "s16", "u16x2": "u16"}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_SCALED = {"mul": (0,), "div": (0,), "fma": (0, 2)}  # factors of the result; sums are exact
_NEUTRAL = "0f3F800000", "0fBF800000", "0f00000000", "0f80000000"
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def lanes(kind: str, terms: list[str], apply: object) -> str:
    """Apply a function to both halves of packed operands."""
    c = {"s16": "s16", "u16": "u16"}.get(PACKED[kind], "u16")
    low = apply([f"{c}({t})" for t in terms])  # type: ignore[operator]
    high = apply([f"{c}({t} >> 16)" for t in terms])  # type: ignore[operator]
    return f"pair(u16({low}), u16({high}))"


def rounded(
    w: Writer,
    kind: str,
    op: str,
    terms: list[str],
    ftz: bool,
    sat: bool,
    rounding: str = "rn",
    always: bool = False,
) -> str:
    """Return an operation on floats; `op` is a name of hc_rounded_op, or "sub" to the nearest.

    `always`: flush the result, although the processor flushes that of arithmetic.
    """

    def apply(terms: list[str]) -> str:
        if rounding != "rn":
            rest = ["0"] * (3 - len(terms))
            return f"hc_rounded_{kind}(hc_{op}, hc_{rounding}, {', '.join(terms + rest)})"
        if op in ("sqrt", "fma"):
            return f"{'root' if op == 'sqrt' else op}({', '.join(terms)})"
        return f" {_OPERATORS[op]} ".join(terms)

    if ftz:
        terms = [w.flush(term) for term in terms]
    found = apply(terms)
    if ftz:
        large = _SCALED.get(op, ())
        scaled = [f"{term} * 0x1p64f" if n in large else term for n, term in enumerate(terms)]
        found = w.flush(found, always, apply(scaled) if large else "")
    return f"sat({found})" if sat else found


def half(one: str, op: str, terms: list[str], ftz: bool, sat: bool) -> str:
    """Return an operation on halves; `op` ends a name of HC_HALVES."""
    if ftz:
        terms = [f"flush_half({term})" for term in terms]
    found = f"{one}{'_ftz' * ftz}_{op}({', '.join(terms)})"
    return f"{one}_sat({found})" if sat else found


def _float(w: Writer, i: Instruction, m: Modifiers, kind: str, op: str, arity: int) -> str:
    """Return an instruction on floats."""
    rounding = m.choose(*ROUNDINGS) or "rn"
    ftz, sat = m.take("ftz"), m.take("sat")
    terms = [w.use(i.operands[n], kind) for n in range(1, 1 + arity)]
    if op == "sub" and rounding != "rn":
        op, terms = "add", [terms[0], f"negate({terms[1]})"]
    if op == "rcp":
        op, terms = "div", [f"{kind}(1)", *terms]
    # g++ leaves out what does nothing but flush, such as a product with one.
    is_neutral = any(text in _NEUTRAL for text in i.operands[1:])
    return rounded(w, kind, op, terms, ftz, sat, rounding, is_neutral)


def _half(w: Writer, i: Instruction, m: Modifiers, kind: str, op: str, arity: int) -> str:
    """Return an operation on half precision, in one or both halves of a word."""
    one = PACKED.get(kind, kind)
    m.choose("rn")
    ftz, sat, is_relu = m.take("ftz"), m.take("sat"), m.take("relu")
    suffix = "_nan" if m.take("NaN") else ""

    def apply(terms: list[str]) -> str:
        found = half(one, op + suffix, terms, ftz, sat)
        return f"{'relu' if one == 'f16' else 'relu_bf16'}({found})" if is_relu else found

    terms = [w.use(text, kind) for text in i.operands[1 : 1 + arity]]
    return lanes(kind, terms, apply) if kind in PACKED else apply(terms)


# An expression of operands, whose types follow: "" is the instruction's, "bits" it without a sign.
# The result has the first type.
SIMPLE = {
    "rem": ("rem<{kind}>({0}, {1})", "", ""),
    "copysign": ("copy_sign({0}, {1})", "", ""),
    "sad": ("sad<{kind}>({0}, {1}, {2})", "", "", ""),
    "and": ("{0} & {1}", "", ""),
    "or": ("{0} | {1}", "", ""),
    "xor": ("{0} ^ {1}", "", ""),
    "shl": ("shl<{c}>({0}, {1})", "", "u32"),
    "shr": ("shr<{c}>({0}, {1})", "", "u32"),
    "bfe": ("bfe<{kind}>({0}, {1}, {2})", "", "u32", "u32"),
    "bfi": ("bfi<{bits}>({0}, {1}, {2}, {3})", "bits", "bits", "u32", "u32"),
    "brev": ("brev({0})", "bits"),
    "fns": ("fns({0}, {1}, {2})", "u32", "u32", "s32"),
    "selp": ("{2} ? {0} : {1}", "", "", "pred"),
}


@instruction(*SIMPLE)
def _simple(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    code, *names = SIMPLE[i.name]
    kinds = [{"": kind, "bits": f"u{kind[1:]}"}.get(name, name) for name in names]
    terms = [w.use(text, of) for text, of in zip(i.operands[1:], kinds, strict=True)]
    return w.put(
        i.operands[0], kinds[0], code.format(*terms, kind=kind, c=w.c(kind), bits=f"u{kind[1:]}")
    )


@instruction("add", "sub")
def _add(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in FLOATS:
        return w.put(i.operands[0], kind, _float(w, i, m, kind, i.name, 2))
    if kind in HALVES:
        return w.put(i.operands[0], kind, _half(w, i, m, kind, i.name, 2))
    a, b = (w.use(text, kind) for text in i.operands[1:3])
    sign = "+" if i.name == "add" else "-"
    if kind in PACKED:
        return w.put(i.operands[0], kind, lanes(kind, [a, b], lambda t: f"{t[0]} {sign} {t[1]}"))
    if m.take("sat"):
        return w.put(i.operands[0], kind, f"sat_s32(s64({a}) {sign} s64({b}))")
    if m.take("cc"):
        bare = w.use(i.operands[1], "u" + kind[1:]), w.use(i.operands[2], "u" + kind[1:])
        word = "add_carry" if i.name == "add" else "sub_carry"
        start = int(i.name == "sub")
        return w.put(i.operands[0], kind, f"{word}({bare[0]}, {bare[1]}, {start}, carry)")
    return w.put(i.operands[0], kind, f"{a} {sign} {b}")


@instruction("addc", "subc")
def _addc(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = "u" + m.type()[1:]
    out = "carry" if m.take("cc") else "no_carry"
    a, b = (w.use(text, kind) for text in i.operands[1:3])
    word = "add_carry" if i.name == "addc" else "sub_carry"
    return w.put(i.operands[0], kind, f"{word}({a}, {b}, carry, {out})")


@instruction("mul")
def _mul(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in FLOATS:
        return w.put(i.operands[0], kind, _float(w, i, m, kind, "mul", 2))
    if kind in HALVES:
        return w.put(i.operands[0], kind, _half(w, i, m, kind, "mul", 2))
    part = m.choose("lo", "hi", "wide") or "lo"
    a, b = (w.use(text, kind) for text in i.operands[1:3])
    if part == "wide":
        wide = WIDER[kind]
        return w.put(i.operands[0], wide, f"{wide}({a}) * {wide}({b})")
    return w.put(i.operands[0], kind, _product(kind, part, a, b))


def _product(kind: str, part: str, a: str, b: str) -> str:
    if part == "hi":
        return f"mul_hi({a}, {b})"
    wide = {"u16": "u32", "s16": "u32"}.get(kind, "u" + kind[1:])
    return f"{kind}({wide}({a}) * {wide}({b}))"


@instruction("mad", "madc")
def _mad(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in FLOATS:
        return w.put(i.operands[0], kind, _float(w, i, m, kind, "fma", 3))
    part = m.choose("lo", "hi", "wide") or "lo"
    if part == "wide":
        wide = WIDER[kind]
        a, b, c = w.use(i.operands[1], kind), w.use(i.operands[2], kind), w.use(i.operands[3], wide)
        return w.put(i.operands[0], wide, f"{wide}({a}) * {wide}({b}) + {c}")
    a, b, c = (w.use(text, kind) for text in i.operands[1:4])
    product = _product(kind, part, a, b)
    if m.take("sat"):
        return w.put(i.operands[0], kind, f"sat_s32(s64({product}) + s64({c}))")
    cc = m.take("cc")
    if cc or i.name == "madc":
        bare = "u" + kind[1:]
        given, out = "carry" if i.name == "madc" else "0", "carry" if cc else "no_carry"
        return w.put(
            i.operands[0], bare, f"add_carry({bare}({product}), {bare}({c}), {given}, {out})"
        )
    return w.put(i.operands[0], kind, f"{product} + {c}")


@instruction("fma")
def _fma(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    make = _half if kind in HALVES else _float
    return w.put(i.operands[0], kind, make(w, i, m, kind, "fma", 3))


@instruction("mul24", "mad24")
def _mul24(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, part = m.type(), m.choose("lo", "hi") or "lo"
    terms = [w.use(text, kind) for text in i.operands[1:]]
    found = f"mul24_{part}({terms[0]}, {terms[1]})"
    if i.name == "mad24":
        found += f" + {terms[2]}"
        if m.take("sat"):
            found = f"sat_s32(s64(mul24_{part}({terms[0]}, {terms[1]})) + s64({terms[2]}))"
    return w.put(i.operands[0], kind, found)


@instruction("div")
def _div(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in INTEGERS:
        a, b = (w.use(text, kind) for text in i.operands[1:3])
        return w.put(i.operands[0], kind, f"div<{kind}>({a}, {b})")
    if m.choose("approx", "full"):
        ftz = m.take("ftz")
        a, b = (w.use(text, kind) for text in i.operands[1:3])
        if ftz:
            a, b = w.flush(a), w.flush(b)
        found = f"div_approx({a}, {b})"
        return w.put(i.operands[0], kind, w.flush(found) if ftz else found)
    return w.put(i.operands[0], kind, _float(w, i, m, kind, "div", 2))


@instruction("rcp", "sqrt")
def _rcp(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if m.take("approx") and kind == "f64":
        m.take("ftz")
        return w.put(i.operands[0], kind, f"rcp_approx({w.use(i.operands[1], kind)})")
    return w.put(i.operands[0], kind, _float(w, i, m, kind, i.name, 1))


APPROXIMATE = {
    "rsqrt": "rsqrt_approx",
    "ex2": "__builtin_exp2f",
    "lg2": "__builtin_log2f",
    "sin": "__builtin_sinf",
    "cos": "__builtin_cosf",
    "tanh": "__builtin_tanhf",
}


@instruction(*APPROXIMATE)
def _approximate(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    m.take("approx")
    if kind in HALVES:
        return w.put(i.operands[0], kind, _half(w, i, m, kind, i.name, 1))
    ftz = m.take("ftz")
    a = w.use(i.operands[1], kind)
    name = "rsqrt_start" if ftz and kind == "f64" else APPROXIMATE[i.name]
    found = f"{name}({w.flush(a) if ftz and kind == 'f32' else a})"
    return w.put(i.operands[0], kind, w.flush(found) if ftz and kind == "f32" else found)


@instruction("min", "max")
def _min(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in HALVES:
        return w.put(i.operands[0], kind, _half(w, i, m, kind, i.name, 2))
    terms = [w.use(text, kind) for text in i.operands[1:]]
    if kind in FLOATS:
        if m.take("ftz"):
            terms = [w.flush(term, always=True) for term in terms]
        name = f"f{i.name}" + ("_nan" if m.take("NaN") else "")
        if m.take("xorsign") and m.take("abs"):
            size = f"{name}(absolute({terms[0]}), absolute({terms[1]}))"
            return w.put(i.operands[0], kind, f"with_signs({size}, {terms[0]}, {terms[1]})")
        found = f"{name}({terms[0]}, {terms[1]})"
        for term in terms[2:]:
            found = f"{name}({found}, {term})"
        return w.put(i.operands[0], kind, found)
    sign = "<" if i.name == "min" else ">"

    def pick(t: list[str]) -> str:
        return f"({t[0]} {sign} {t[1]} ? {t[0]} : {t[1]})"

    is_relu = m.take("relu")
    found = lanes(kind, terms, pick) if kind in PACKED else pick(terms)
    if is_relu and kind not in PACKED:
        found = f"({found} > 0 ? {found} : 0)"
    elif is_relu:
        m.unknown("relu")
    return w.put(i.operands[0], kind, found)


@instruction("abs", "neg")
def _abs(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if kind in HALVES:
        return w.put(i.operands[0], kind, _half(w, i, m, kind, i.name, 1))
    a = w.use(i.operands[1], kind)
    if kind in FLOATS:
        name = "absolute" if i.name == "abs" else "negate"
        if m.take("ftz"):
            a = w.flush(a, always=True)
        return w.put(i.operands[0], kind, f"{name}({a})")
    return w.put(
        i.operands[0], kind, f"0 - {a}" if i.name == "neg" else f"({a} < 0 ? 0 - {a} : {a})"
    )


@instruction("not", "cnot")
def _not(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    sign = "!" if kind == "pred" or i.name == "cnot" else "~"
    return w.put(i.operands[0], kind, f"{sign}{w.use(i.operands[1], kind)}")


@instruction("shf")
def _shf(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.type()
    way, how = m.choose("l", "r"), m.choose("wrap", "clamp")
    a, b, by = (w.use(text, "u32") for text in i.operands[1:4])
    by = f"({by} & 31)" if how == "wrap" else f"least({by}, 32)"
    return w.put(i.operands[0], "u32", f"shf_{way}({a}, {b}, {by})")


@instruction("lop3")
def _lop3(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.type()
    a, b, c = (w.use(text, "u32") for text in i.operands[1:4])
    table = int(i.operands[4].rstrip("U"), 0)
    terms = [
        f"({'' if n & 4 else '~'}{a} & {'' if n & 2 else '~'}{b} & {'' if n & 1 else '~'}{c})"
        for n in range(8)
        if table >> n & 1
    ]
    return w.put(i.operands[0], "u32", " | ".join(terms) or "0")


@instruction("popc", "clz", "bfind")
def _bits(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    kind = kind if i.name == "bfind" else "u" + kind[1:]
    name = "bfind_shift" if i.name == "bfind" and m.take("shiftamt") else i.name
    return w.put(i.operands[0], "u32", f"{name}({w.use(i.operands[1], kind)})")


@instruction("bmsk", "szext")
def _bmsk(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, how = m.type(), m.choose("clamp", "wrap")
    a, b = w.use(i.operands[1], kind), w.use(i.operands[2], "u32")
    b = f"({b} & 31)" if how == "wrap" else f"least({b}, 32)"
    if i.name == "bmsk":
        a = f"({a} & 31)" if how == "wrap" else f"least({a}, 32)"
        return w.put(i.operands[0], kind, f"shl<u32>(shl<u32>(1, {b}) - 1, {a})")
    return w.put(i.operands[0], kind, f"bfe<{kind}>({a}, 0, {b})")


@instruction("prmt")
def _prmt(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.type()
    terms = ", ".join(w.use(text, "u32") for text in i.operands[1:4])
    return w.put(i.operands[0], "u32", f"prmt({terms})")


@instruction("dp4a", "dp2a")
def _dp4a(w: Writer, i: Instruction, m: Modifiers) -> str:
    b_kind, a_kind = m.type(), m.type()
    half = m.choose("lo", "hi")
    result = "s32" if "s32" in (a_kind, b_kind) else "u32"
    a_bits = 8 if i.name == "dp4a" else 16
    a, b, c = w.use(i.operands[1], "u32"), w.use(i.operands[2], "u32"), w.use(i.operands[3], result)
    kinds = f"{a_kind[0]}{a_bits}, {b_kind[0]}8"
    high = f", {int(half == 'hi')}" if half else ""
    return w.put(i.operands[0], result, f"{i.name}<{kinds}>({a}, {b}, {c}{high})")


@instruction("vabsdiff4", "vabsdiff2")
def _vabsdiff(w: Writer, i: Instruction, m: Modifiers) -> str:
    b_kind, a_kind, _ = m.type(), m.type(), m.type()
    if m.take("sat") or a_kind != b_kind or "." in i.operands[1] + i.operands[2]:
        m.unknown(i.opcode)
    bits = 32 // int(i.name[-1])
    a, b, c = (w.use(text, "u32") for text in i.operands[1:4])
    add = str(m.take("add")).lower()
    return w.put(
        i.operands[0], "u32", f"absolute_differences<{a_kind[0]}{bits}>({a}, {b}, {c}, {add})"
    )

"""What is known of a function's registers before it is translated: types, and products to fuse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from .ptx_arithmetic import half, lanes, rounded
from .ptx_memory import WAITING
from .ptx_parser import Function, Instruction
from .ptx_writer import CLOCKS, FLOATS, HALVES, Writer

_NAME = re.compile(r"[\w$%]+")
_TERMINATORS = {"bra", "brx", "ret", "exit", "trap", "call", "bar", "barrier"}
_FUSED = (*FLOATS, *HALVES)
_STORES = {"st", "red", "sust", "bar", "barrier", "call"}
_ARITHMETIC = {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2"}
_ARITHMETIC |= {"sin", "cos", "tanh", "min", "max", "setp", "set", "cvt", "slct"}
_ARITHMETIC |= {"atom", "red"}
_WIDENED = "f32", "bf16"  # its bits are copied
_SHORT = "f16", "f16x2"  # subnormal floats are zeros there
_COPIES = {"copysign", "mov", "selp", "ld", "ldu", "shfl", "atom", "tex", "suld"}
_COPIES |= {"slct"}
_TWO_TYPES = {"cvt", "set", "slct"}


def counted(body: Iterable[Instruction]) -> Counter[str]:
    """Count how often each name occurs."""
    return Counter(
        name for i in body for text in (i.guard, *i.operands) for name in _NAME.findall(text)
    )


def counted_definitions(body: Iterable[Instruction]) -> Counter[str]:
    """Count how often each register gets a value."""
    return Counter(
        name
        for i in body
        if i.operands and i.name not in _STORES
        for name in _NAME.findall(i.operands[0])
    )


def _types(i: Instruction) -> tuple[str, str]:
    """Return the types of the result, and of the last operand."""
    last = i.modifiers[-1] if i.modifiers else ""
    return (i.modifiers[-2] if i.name in _TWO_TYPES and len(i.modifiers) > 1 else last), last


def waiting(body: list[Instruction]) -> set[int]:
    """Return the instructions, by their id(), with which a loop may wait for a thread or a time."""
    used = counted(body)
    return {id(i) for i in body if _may_wait(i, used)}


def _may_wait(i: Instruction, used: Counter[str]) -> bool:
    if i.name == "ld":
        return any(name in WAITING for name in i.modifiers)
    if i.name == "atom":
        return used[i.operands[0]] > 1
    return i.name in ("nanosleep", "membar", "fence") or any(map(CLOCKS.match, i.operands))


def watches(loop: list[Instruction]) -> bool:
    """Tell whether a loop looks at one place, and writes nothing.

    NVRTC moves ordinary loads out of such a loop.
    """
    changed: set[str] = set()
    for i in loop:
        if i.name in ("st", "atom", "red", "cp", "sust", "call"):
            return False
        changed.update(_NAME.findall(i.operands[0]) if i.operands else ())
    return any(
        i.name == "ld"
        and not {"param", "const", "local", "nc"} & {*i.modifiers}
        and not changed & {*_NAME.findall(i.operands[1])}
        for i in loop
    )


def arithmetic_floats(body: Iterable[Instruction]) -> set[str]:
    """Return the registers of floats that arithmetic alone gives values: their NaN is a GPU's."""
    computed: set[str] = set()
    copied: set[str] = set()
    for i in body:
        if not i.operands or i.name in _STORES:
            continue
        is_computed = i.name not in _COPIES and _types(i)[0] == "f32"
        (computed if is_computed else copied).update(_NAME.findall(i.operands[0]))
    return computed - copied


def keeps_subnormals(i: Instruction) -> bool:
    """Tell whether an instruction must not run while the processor flushes subnormal floats."""
    kinds = {"f32", "f64", "bf16", "bf16x2"} & {*i.modifiers}
    if not kinds or i.name not in _ARITHMETIC:
        return False
    if "f64" in kinds:
        return True
    if i.name in ("atom", "red"):  # floats outside of shared memory are flushed
        return kinds != {"f32"} or any(m.startswith("shared") for m in i.modifiers)
    if "ftz" in i.modifiers or i.name != "cvt":
        return "ftz" not in i.modifiers
    to, source = i.modifiers[-2:]
    if source not in ("f32", "bf16") or (to, source) == _WIDENED:
        return False
    is_zero = to in _SHORT or bool({"rni", "rzi"} & {*i.modifiers})
    return not is_zero or bool({"rm", "rp", "rmi", "rpi"} & {*i.modifiers})


def infer(function: Function, body: list[Instruction]) -> None:
    """Let registers declared as bits be floats, where most of their uses are."""
    votes: Counter[str] = Counter()
    for i in body:
        if not i.modifiers or i.name in ("cvt", "mov", "ld", "st", "selp"):
            continue
        result, last = _types(i)
        for n, text in enumerate(i.operands):
            kind = result if n == 0 or (i.name == "slct" and n < 3) else last
            if text[0] == "%" and kind[0] in "fusb" and kind[1:].isdigit():
                votes[text] += 1 if kind in FLOATS else -1
    for v in function.variables:
        if v.space == "reg" and v.kind in ("b32", "b64") and votes[v.name] > 0:
            v.kind = "f" + v.kind[1:]


@dataclass
class Product:
    """A product that may be fused with sums."""

    made: Instruction
    at: int
    block: int
    is_negated: bool = False
    dropped: tuple[int, ...] = ()  # the id() of what is not computed then


class Fused(NamedTuple):
    """The product of a sum, and which operand it is."""

    product: Product
    operand: int


def _is_plain(i: Instruction) -> bool:
    kind = i.modifiers[-1] if i.modifiers else ""
    return not i.guard and kind in _FUSED and not {"rn", "rz", "rm", "rp"} & {*i.modifiers}


def contractions(body: list[Instruction]) -> tuple[dict[int, Fused], set[int]]:
    """Find products that ptxas fuses with sums.

    A product is fused if all its uses are sums without a rounding mode, perhaps of its negative;
    where both operands of a sum are such products, it is the first.  An H200 rounds so (CUDA 13).
    """
    used, defined = counted(body), counted_definitions(body)
    products: dict[str, Product] = {}
    changes: dict[str, list[int]] = {}
    sums: list[tuple[int, int]] = []
    block = 0
    for at, i in enumerate(body):
        block += bool(i.label) or i.name in _TERMINATORS
        to = i.operands[0] if i.operands else ""
        if i.name not in _STORES:
            for name in _NAME.findall(to):
                changes.setdefault(name, []).append(at)
        if not _is_plain(i):
            continue
        if i.name == "mul" and "sat" not in i.modifiers and defined[to] == 1:
            products[to] = Product(i, at, block, False, (id(i),))
        elif i.name == "neg" and i.operands[1] in products and defined[to] == 1:
            product = products[i.operands[1]]
            if used[i.operands[1]] == 2 and i.modifiers == product.made.modifiers:
                dropped = (*product.dropped, id(i))
                products[to] = replace(product, is_negated=not product.is_negated, dropped=dropped)
        elif i.name in ("add", "sub") and i.operands[1] != i.operands[2]:
            sums.append((at, block))

    def fits(name: str, at: int, block: int) -> bool:
        product, i = products[name], body[at]
        if [x for x in i.modifiers if x != "sat"] != product.made.modifiers:
            return False
        return all(
            defined[x] < 2
            or (block == product.block and not any(product.at < n < at for n in changes[x]))
            for x in product.made.operands[1:3]
        )

    uses = Counter(
        name
        for at, block in sums
        for name in body[at].operands[1:3]
        if name in products and fits(name, at, block)
    )
    left = {name for name in products if uses[name] == used[name] - 1}
    while True:
        chosen = {
            at: next((n for n in (1, 2) if body[at].operands[n] in left), 0) for at, _ in sums
        }
        lost = {
            name
            for at, n in chosen.items()
            for name in body[at].operands[1:3]
            if name in left and name != body[at].operands[n]
        }
        if not lost:
            break
        left -= lost
    fused = {
        id(body[at]): Fused(products[body[at].operands[n]], n) for at, n in chosen.items() if n
    }
    return fused, {one for name in left for one in products[name].dropped if uses[name]}


def fused_sum(w: Writer, i: Instruction, fused: Fused) -> str:
    """Write a sum and the product that is fused with it."""
    kind, product, n = i.modifiers[-1], fused.product.made, fused.operand
    scope, w.scope = w.scope, product.scope
    terms = [w.use(text, kind) for text in product.operands[1:3]]
    w.scope = scope
    other = w.use(i.operands[3 - n], kind)
    ftz, sat = "ftz" in i.modifiers, "sat" in i.modifiers
    is_negative = fused.product.is_negated != (i.name == "sub" and n == 2)
    if kind in HALVES:
        one = kind.removesuffix("x2")
        negative = "0x80008000u" if kind.endswith("x2") else "0x8000"
        if i.name == "sub" and n == 1:
            other = f"({other} ^ {negative})"
        if is_negative:
            terms[0] = f"({terms[0]} ^ {negative})"

        def apply(t: list[str]) -> str:
            return half(one, "fma", t, ftz, sat)

        if kind.endswith("x2"):
            return w.put(i.operands[0], kind, lanes(kind, [*terms, other], apply))
        return w.put(i.operands[0], kind, apply([f"u16({x})" for x in (*terms, other)]))
    if i.name == "sub" and n == 1:
        other = f"negate({other})"
    if is_negative:
        terms[0] = f"negate({terms[0]})"
    return w.put(i.operands[0], kind, rounded(w, kind, "fma", [*terms, other], ftz, sat))


_FOREIGN = {"vote", "match", "redux", "elect", "activemask", "atom", "call", "tex", "tld4"}


def unwritten(w: Writer, i: Instruction, code: str) -> tuple[str, str]:
    """Return what follows values that nothing has written: before an instruction, and after it.

    Each register has a flag.  A value that another thread gives is let pass.
    """

    def flags(texts: Iterable[str]) -> list[str]:
        found = (w.scope.find(name) for text in texts for name in _NAME.findall(text))
        return [f"{v.code}_u" for v in found if v and v.space == "reg"]

    def either(texts: Iterable[str]) -> str:
        return " | ".join(flags(texts)) or "false"

    def told(texts: Iterable[str], how: str) -> str:
        found = either(texts)
        call = f'if ({found}) hc_used(t, "{how}", {i.line}, {i.file}); '
        return call if found != "false" else ""

    before, source = "", either(i.operands[1:])
    if i.name in ("bra", "brx"):
        return told([i.guard, *i.operands[1:-1]], "branches by it"), ""
    if i.name in ("ld", "ldu", "st", "red", "atom"):
        address = i.operands[i.name in ("ld", "ldu", "atom")]
        before = told([address], "uses it as an address")
    if i.name in ("st", "red", "atom", "sust", "cp"):
        given = i.operands[2 if i.name == "atom" else 1 :]
        before += f"t->unwritten = {'false' if i.name == 'cp' else either(given)}; "
    if i.name in (_STORES - {"call"}) or i.name == "cp":
        return before, ""
    if i.name in ("ld", "ldu"):
        source = "t->unwritten" if "hc_seen" in code else "false"
    elif i.name == "shfl":  # or of a lane that takes no part
        (to,) = flags([w.pair(i.operands[0])[0]])
        return f"t->unwritten = {either([i.operands[1]])}; ", f" {to} = t->unwritten;"
    elif i.name == "selp":
        a, b, by = i.operands[1:]
        source = f"{either([by])} | ({w.use(by, 'pred')} ? {either([a])} : {either([b])})"
    elif i.name in ("and", "or") and "pred" in i.modifiers:  # the other one may decide it
        a, b = i.operands[1:]
        not_ = "!" * (i.name == "or")
        terms = (f"({either([x])} | {not_}({w.use(x, 'pred')}))" for x in (a, b))
        source = " & ".join([f"({source})", *terms])
    elif i.name in _FOREIGN:
        source = "false"
    return before, "".join(f" {to} = {source};" for to in flags(i.operands[:1]))

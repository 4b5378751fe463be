"""What is known of a function's registers before it is translated: types, and products to fuse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from .ptx_arithmetic import lanes
from .ptx_parser import Function, Instruction
from .ptx_writer import FLOATS, HALVES, Writer

_NAME = re.compile(r"[\w$%]+")
_TERMINATORS = {"bra", "brx", "ret", "exit", "trap", "call", "bar", "barrier"}
_FUSED = (*FLOATS, *HALVES)
_STORES = {"st", "red", "sust", "bar", "barrier", "call"}
_COPIES = {"copysign", "mov", "selp", "ld", "ldu", "shfl", "atom", "neg", "abs", "tex", "suld"}


def counted(body: Iterable[Instruction]) -> Counter[str]:
    """Count how often each name occurs."""
    return Counter(
        name for i in body for text in (i.guard, *i.operands) for name in _NAME.findall(text)
    )


def arithmetic_floats(body: Iterable[Instruction]) -> set[str]:
    """Return the registers of floats that arithmetic alone gives values: their NaN is a GPU's."""
    computed: set[str] = set()
    copied: set[str] = set()
    for i in body:
        if not i.operands or i.name in _STORES:
            continue
        is_computed = i.name not in _COPIES and "f32" in i.modifiers
        (computed if is_computed else copied).update(_NAME.findall(i.operands[0]))
    return computed - copied


def infer(function: Function, body: list[Instruction]) -> None:
    """Let registers declared as bits be floats, where most of their uses are."""
    votes: Counter[str] = Counter()
    for i in body:
        if not i.modifiers or i.name in ("cvt", "mov", "ld", "st", "selp"):
            continue
        kind = i.modifiers[-1]
        if kind[0] not in "fusb" or not kind[1:].isdigit():
            continue
        for text in i.operands:
            if text[0] == "%":
                votes[text] += 1 if kind in FLOATS else -1
    for v in function.variables:
        if v.space == "reg" and v.kind in ("b32", "b64") and votes[v.name] > 0:
            v.kind = "f" + v.kind[1:]


def contractions(
    body: list[Instruction],
) -> tuple[dict[int, tuple[Instruction, int]], set[int]]:
    """Find products that ptxas fuses with a sum.

    A product with one use, in a sum of the same block without a rounding mode. The first operand
    comes first. (ptxas does more; this is what its code for sm_90 shows.)
    """
    used = counted(body)
    fused: dict[int, tuple[Instruction, int]] = {}
    dropped: set[int] = set()
    products: dict[str, Instruction] = {}
    for i in body:
        if i.label or i.name in _TERMINATORS:
            products.clear()
            continue
        kind = i.modifiers[-1] if i.modifiers else ""
        is_plain = not i.guard and kind in _FUSED and not {"rn", "rz", "rm", "rp"} & {*i.modifiers}
        if i.name in ("add", "sub") and is_plain:
            for n in (1, 2):
                product = products.get(i.operands[n])
                if product and [x for x in i.modifiers if x != "sat"] == product.modifiers:
                    fused[id(i)] = product, n
                    dropped.add(id(product))
                    break
        to = i.operands[0] if i.operands else ""
        if i.name not in ("st", "red"):
            for name in _NAME.findall(to):
                products.pop(name, None)
                for key in [k for k, p in products.items() if name in p.operands[1:]]:
                    del products[key]
        if i.name == "mul" and is_plain and "sat" not in i.modifiers and used[to] == 2:
            products[to] = i
    return fused, dropped


def fused_sum(w: Writer, i: Instruction, product: Instruction, n: int) -> str:
    """Write a sum with the product that is its operand `n`."""
    kind = i.modifiers[-1]
    scope, w.scope = w.scope, product.scope
    terms = [w.use(text, kind) for text in product.operands[1:3]]
    w.scope = scope
    other = w.use(i.operands[3 - n], kind)
    ftz = "ftz" in i.modifiers
    if kind in HALVES:
        one = kind.removesuffix("x2")
        negative = "0x80008000u" if kind.endswith("x2") else "0x8000"
        if i.name == "sub" and n == 1:
            other = f"({other} ^ {negative})"
        elif i.name == "sub":
            terms[0] = f"({terms[0]} ^ {negative})"

        def apply(t: list[str]) -> str:
            found = f"{one}_fma({', '.join(f'flush_half({x})' if ftz else x for x in t)})"
            found = f"flush_half({found})" if ftz else found
            return f"{one}_sat({found})" if "sat" in i.modifiers else found

        if kind.endswith("x2"):
            return w.put(i.operands[0], kind, lanes(kind, [*terms, other], apply))
        return w.put(i.operands[0], kind, apply([f"u16({x})" for x in (*terms, other)]))
    if i.name == "sub" and n == 1:
        other = f"negate({other})"
    elif i.name == "sub":
        terms[0] = f"negate({terms[0]})"
    if ftz:
        terms, other = [w.flush(x) for x in terms], w.flush(other)
    found = f"fma({terms[0]}, {terms[1]}, {other})"
    if ftz:
        found = w.flush(found)
    return w.put(i.operands[0], kind, f"sat({found})" if "sat" in i.modifiers else found)

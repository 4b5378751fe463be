"""Run random PTX programs on the host driver and on a GPU, and name the instructions that differ.

On a machine with a GPU, `python random_ptx.py --save FILE.npz` keeps what the GPU gives, and
`python -m hostcuda random_ptx.py --compare FILE.npz` prints a table of the instructions that
differ.  `--show NUMBER` prints one program with its values, on either.

A program has about 30 instructions, for 32 threads.  Each instruction writes a register of its own,
and all are stored, so that the first one that differs is known.  What PTX leaves open is not
compared: approximations (`div.approx`, `div.full`, `rcp.approx`, `sqrt.approx`, `rsqrt`, `ex2`,
`lg2`, `sin`, `cos`, `tanh`), integers divided by 0, NaN's bits after arithmetic, flags of `add` in
`subc` and of `sub` in `addc`.  Nor is `set` guarded: ptxas 13.0 converts the old value, too.

`--optimize 0` compiles with `ptxas -O0` of CUDA's toolkit on a GPU, and with `g++ -O0` here.  ptxas
has more faults above: see `DESIGN.md`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Opcode; operands; result; types for $ / types for @.  `{a,b}` is one of them, W the wider type.
# `=` wants a register whose NaN's bits are known, `odd` sets the last bit.
TEMPLATES = """
{add,sub}.$; $ $; $; INT
{add,sub,mul}<R><F>{,.sat}.f32; f32 f32; f32
{add,sub,mul}<R>.f64; f64 f64; f64
{add,sub,mul}{,.rn}<F>{,.sat}.$; $ $; $; f16 f16x2
{add,sub,mul}{,.rn}.$; $ $; $; bf16 bf16x2
{add,sub}.sat.s32; s32 s32; s32
add.$; $ $; $; u16x2 s16x2
add.cc.$ + addc.cc.$ + addc.$; $ $; $; u32 s32 u64 s64
sub.cc.$ + subc.cc.$ + subc.$; $ $; $; u32 s32 u64 s64
mad.{lo,hi}.cc.$ + madc.{lo,hi}.cc.$ + madc.{lo,hi}.$; $ $ $; $; u32 s32 u64 s64
mul.{lo,hi}.$; $ $; $; INT
mad.{lo,hi}.$; $ $ $; $; INT
mul.wide.$; $ $; W; u16 s16 u32 s32
mad.wide.$; $ $ W; W; u16 s16 u32 s32
mad.hi.sat.s32; s32 s32 s32; s32
mul24.{lo,hi}.$; $ $; $; u32 s32
mad24.{lo,hi}.$; $ $ $; $; u32 s32
mad24.hi.sat.s32; s32 s32 s32; s32
{fma,mad}.{rn,rz,rm,rp}<F>{,.sat}.f32; f32 f32 f32; f32
{fma,mad}.{rn,rz,rm,rp}.f64; f64 f64 f64; f64
fma.rn<F>{,.sat,.relu}.$; $ $ $; $; f16 f16x2
fma.rn{,.relu}.$; $ $ $; $; bf16 bf16x2
div.{rn,rz,rm,rp}<F>.f32; f32 f32; f32
div.{rn,rz,rm,rp}.f64; f64 f64; f64
{rcp,sqrt}.{rn,rz,rm,rp}<F>.f32; f32; f32
{rcp,sqrt}.{rn,rz,rm,rp}.f64; f64; f64
{div,rem}.$; $ odd:$; $; INT
{abs,neg}.$; $; $; s16 s32 s64
{abs,neg}<F>.$; $; $; f16 f16x2 f32
{abs,neg}.$; $; $; bf16 bf16x2 f64
{min,max}.$; $ $; $; INT u16x2 s16x2
{min,max}.relu.s32; s32 s32; s32
{min,max}<F>{,.NaN}.$; $ $; $; f16 f16x2 f32
{min,max}{,.NaN}.$; $ $; $; bf16 bf16x2
{min,max}.f64; f64 f64; f64
{min,max}<F>{,.NaN}.xorsign.abs.f32; =f32 =f32; f32
copysign.$; =$ $; $; f32 f64
sad.$; $ $ $; $; INT
{popc,clz}.$; $; u32; b32 b64
bfind{,.shiftamt}.$; $; u32; u32 s32 u64 s64
brev.$; $; $; b32 b64
fns.b32; b32 count:31 lane; b32
bfe.$; $ count:255 count:255; $; u32 s32 u64 s64
bfi.$; $ $ count:255 count:255; $; b32 b64
bmsk.{clamp,wrap}.b32; u32 count:63; u32
szext.{clamp,wrap}.$; $ count:63; $; u32 s32
dp4a.{u32,s32}.{u32,s32}; u32 u32 u32; u32
dp2a.{lo,hi}.{u32,s32}.{u32,s32}; u32 u32 u32; u32
vabsdiff{2,4}.{u32.u32.u32,s32.s32.s32}{,.add}; =u32 =u32 =u32; u32
{and,or,xor}.$; $ $; $; b16 b32 b64 pred
not.$; $; $; b16 b32 b64 pred
cnot.$; $; $; b16 b32 b64
shl.$; $ count:127; $; b16 b32 b64
shr.$; $ count:127; $; INT b16 b32 b64
shf.{l,r}.{wrap,clamp}.b32; b32 b32 count:63; b32
lop3.b32; b32 b32 b32 byte; b32
prmt.b32; b32 b32 b32; b32
setp.<CF>{,.and,.or,.xor}<F>.f32; f32 f32 bool; pred|
setp.<CF>{,.and,.or,.xor}.f64; f64 f64 bool; pred|
setp.<CF>{,.and,.or,.xor}<F>.f16; f16 f16 bool; pred
setp.<CF>{,.and,.or,.xor}.bf16; bf16 bf16 bool; pred
setp.<CF>{,.and,.or,.xor}.$; $ $ bool; pred|pred; f16x2 bf16x2
setp.<CS>{,.and,.or,.xor}.$; $ $ bool; pred|; s16 s32 s64
setp.<CU>{,.and,.or,.xor}.$; $ $ bool; pred|; u16 u32 u64
setp.{eq,ne}.$; $ $; pred|; b16 b32 b64
set.<CF><F>.@.f32; f32 f32; @; / u32 s32 f32
set.<CF>{,.and,.or,.xor}.@.f64; f64 f64 bool; @; / u32 s32 f32
set.<CF><F>.@.f16; f16 f16; @; / f16 u16 s16 u32 s32
set.<CF>.@.bf16; bf16 bf16; @; / bf16 u16 s16 u32 s32
set.<CF><F>.@.f16x2; f16x2 f16x2; @; / f16x2 u32 s32
set.<CF>.@.bf16x2; bf16x2 bf16x2; @; / bf16x2 u32 s32
set.<CS>{,.and,.or,.xor}.@.$; $ $ bool; @; s16 s32 s64 / u32 s32 f32
set.<CU>{,.and,.or,.xor}.@.$; $ $ bool; @; u16 u32 u64 / u32 s32 f32
selp.$; $ $ pred; $; INT b16 b32 b64 f32 f64
slct.$.s32; $ $ s32; $; INT b16 b32 b64 f32 f64
slct<F>.$.f32; $ $ f32; $; INT b16 b32 b64 f32 f64
mov.$; $; $; INT b16 b32 b64 f32 f64 pred
mov.u32; special; u32
mov.b32; {b16,b16}; b32
mov.b64; {b32,b32}; b64
mov.b64; {b16,b16,b16,b16}; b64
mov.b32; b32; {b16,b16}
mov.b64; b64; {b32,b32}
ld.global.$; [$]; $; INT u8 s8 b16 b32 b64 f32 f64
ld.global.v2.$; [b64]; {$,$}; u16 s16 u32 f32
shfl.sync.{up,down,bfly,idx}.b32; b32 b32 b32 all; b32|
vote.sync.{all,any,uni}.pred; !pred all; pred
vote.sync.ballot.b32; !pred all; b32
match.any.sync.$; $ all; b32; b32 b64
match.all.sync.$; $ all; b32|; b32 b64
redux.sync.{add,min,max}.$; $ all; $; u32 s32
redux.sync.{and,or,xor}.b32; u32 all; u32
cvt{,.sat}.@.$; $; @; INT u8 s8 / INT u8 s8
cvt.<I><F>{,.sat}.@.f32; f32; @; / INT u8 s8
cvt.<I>{,.sat}.@.$; $; @; f64 f16 / INT u8 s8
cvt.<I>.@.bf16; bf16; @; / INT
cvt.{rn,rz,rm,rp}{,.sat}.@.$; $; @; INT u8 s8 / f32 f64 f16
cvt.rn.bf16.$; $; bf16; INT
cvt{,<I>}<F>{,.sat}.f32.f32; f32; f32
cvt{,<I>}{,.sat}.f64.f64; f64; f64
cvt.<I>.f16.f16; f16; f16
cvt.{rn,rz,rm,rp}<F>{,.sat}.f32.f64; f64; f32
cvt<F>{,.sat}.f64.f32; f32; f64
cvt{,.sat}.@.f16; f16; @; / f32 f64
cvt.{rn,rz,rm,rp}{,.sat}.f16.$; $; f16; f32 f64
cvt.{rn,rz}{,.relu}.@.f32; f32; @; / f16 bf16
cvt.{rn,rz}{,.relu}.@.f32; f32 f32; @; / f16x2 bf16x2
cvt.@.bf16; bf16; @; / f32 f64
cvt.rn.@.$; $; @; f64 f16 / bf16
cvt.pack.sat.{u16,s16}.s32; s32 s32; b32
cvt.pack.sat.{u8,s8}.s32.b32; s32 s32 b32; b32
"""
CF = "eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan"
NAMED = {
    **{"<R>": "{,.rn,.rz,.rm,.rp}", "<F>": "{,.ftz}", "<I>": "{rni,rzi,rmi,rpi}"},
    **{"<CF>": f"{{{CF}}}", "<CS>": f"{{{CF[:17]}}}", "<CU>": f"{{{CF[:17]},lo,ls,hi,hs}}"},
    **{"{,<I>}": "{,.rni,.rzi,.rmi,.rpi}", "INT": "u16 s16 u32 s32 u64 s64"},
}
NANS = {"f16": (0x7C00, 16), "bf16": (0x7F80, 16), "f32": (0x7F800000, 32), "f64": (2047 << 52, 64)}
NANS |= {f"{kind}x2": NANS[kind] for kind in ("f16", "bf16")}
MOVES = "mov", "selp", "slct", "ld"
WARP = "shfl", "vote", "match", "redux"
INPUTS = [
    "f16",
    "f16",
    "bf16",
    "s16",
    "f32",
    "f32",
    "f32",
    "f64",
    "f64",
    "f64",
    "f16x2",
    "bf16x2",
    "s32",
    "s32",
    "s64",
    "s64",
]
TYPED = ["f16", "f16x2", "f32", "f64", "u16", "s16", "u32", "s32", "u64", "s64"]
LITERAL = [kind for kind in TYPED if "f16" not in kind] + ["b16", "b32", "b64"]
CONSTANTS = {
    **{"byte": [str(n) for n in range(256)], "lane": [str(n) for n in range(-8, 9)], "all": ["-1"]},
    "special": ["%tid.x", "%ntid.x", *(f"%lanemask_{x}" for x in ("eq", "lt", "le", "gt", "ge"))],
}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
PER_MODULE, LANES, SLOTS = 200, 32, 32
LEVEL = "RANDOM_PTX_LEVEL"
ENTRY = """.visible .entry NAME(.param .u64 from, .param .u64 to)
{
.reg .b64 %in, %out, %at; .reg .b32 %one;
ld.param.u64 %in, [from]; ld.param.u64 %out, [to];
mov.u32 %one, %tid.x; mul.wide.u32 %at, %one, 8; add.s64 %in, %in, %at; add.s64 %out, %out, %at;
"""
# Halves, floats, doubles and integers at which something changes.
EDGES = {
    "f16": "0 8000 1 8001 3ff 400 7bff fbff 7c00 fc00 7e00 fe00 7d01 3c00 bc00 3c01 3800 3e00 5800",
    "bf16": "0 8000 1 8001 7f 80 7f7f ff7f 7f80 ff80 7fc0 ffc0 7f81 3f80 bf80 3f81 3f00 3fc0 4300",
    "f32": """0 80000000 1 80000001 7fffff 800000 80800000 7f7fffff ff7fffff 7f800000 ff800000
        7fc00000 ffc00000 7f800001 3f800000 bf800000 3f7fffff 3f800001 3f000000 bf000000 3fc00000
        40200000 4b000000 4b800000 4f000000 cf000000 4f800000 5f000000 df000000 5f800000 477fe000
        477ff000 33800000 33000000 38800000 3f801000 3f808000 43e00000 43e80000 47600000""",
    "f64": """0 8000000000000000 1 8000000000000001 fffffffffffff 10000000000000 7fefffffffffffff
        7ff0000000000000 fff0000000000000 7ff8000000000000 fff8000000000000 7ff0000000000001
        3ff0000000000000 bff0000000000000 3fefffffffffffff 3ff0000000000001 3fe0000000000000
        3ff8000000000000 4004000000000000 41e0000000000000 c1e0000000000000 41f0000000000000
        43e0000000000000 c3e0000000000000 43f0000000000000 4330000000000000 4340000000000000
        36a0000000000000 3690000000000000 380fffffffffffff 47efffffe0000000 47effffff0000000
        40effc0000000000 40effe0000000000 3e60000000000000 3ff0000010000000 3ff0020000000000""",
    "s16": "0 1 2 ffff fffe 7fff 8000 8001 7f 80 ff 100 ff80 ff7f 1f 20",
    "s32": """0 1 2 1f 20 21 ffffffff fffffffe 7fffffff 80000000 80000001 7f 80 ff 100 ffffff80
        7fff 8000 ffff 10000 ffff8000 7fffff 800000 ffffff 1000000 1000001 ff7fffff""",
    "s64": """0 1 2 3f 40 41 ffffffffffffffff 7fffffffffffffff 8000000000000000 8000000000000001
        7fffffff 80000000 ffffffff 100000000 ffffffff80000000 20000000000000 20000000000001
        1000001 fffffffffffffc00 fffffffffffffbff 7ffffffffffffe00 ff80000000000000""",
}


class Register(NamedTuple):
    """A register: declared as bits or with its type, and whether NaN's bits are known."""

    name: str
    kind: str
    is_typed: bool
    is_exact: bool
    slot: int  # of the results; -1 for inputs


class Result(NamedTuple):
    """What an instruction writes into one slot."""

    opcode: str
    text: str
    kind: str  # with NaN of these
    sources: tuple[Register, ...]


@functools.cache
def size(kind: str) -> int:
    """Return the bits of a type; 1 of a predicate."""
    if kind == "pred":
        return 1
    return 32 if kind.endswith("x2") else int(re.sub(r"\D", "", kind))


def family(kind: str) -> str:
    """Return "int" for integers and bits, or else the type."""
    return kind if kind in NANS or kind == "pred" else "int"


@functools.cache
def templates() -> list[tuple[str, ...]]:
    """Return the fields of each line."""
    text = TEMPLATES
    for name in ("{,<I>}", *NAMED):
        text = text.replace(name, NAMED[name])
    rows = ([part.strip() for part in f"{line};;".split(";")] for line in text.split("\n") if line)
    return [tuple(row[:4]) for row in rows]


def legal(opcode: str) -> bool:
    """Tell whether `cvt` may saturate: not where each integer fits."""
    found = re.fullmatch(r"cvt\.sat\.([us])(\d+)\.([us])(\d+)", opcode)
    if not found:
        return True
    to, bits, source, given = found[1], int(found[2]), found[3], int(found[4])
    return bits < given if to == source else to == "u" or bits <= given


def keeps(opcode: str) -> bool:
    """Tell whether floats are computed without flushing subnormal ones to zero."""
    name, *words = opcode.split(".")
    if name in ("mov", "selp", "ld", "copysign"):
        return False
    return bool({"f64", "bf16", "bf16x2"} & {*words}) or ("f32" in words and "ftz" not in words)


def near(kind: str, draw: random.Random) -> int:
    """Return the bits of a number near one, or of a small integer."""
    bits = size(kind)
    if kind.endswith("x2"):
        return near(kind[:-2], draw) << 16 | near(kind[:-2], draw)
    if kind not in NANS:
        return draw.randint(-64, 64) % (1 << bits)
    infinity, _ = NANS[kind]
    one = infinity & -infinity  # of the exponent
    exponent = infinity // one // 2 + draw.randint(-9, 9)
    return draw.getrandbits(1) << (bits - 1) | exponent * one | draw.randrange(one)


def edge(kind: str, draw: random.Random) -> int:
    """Return the bits of a number at which something changes."""
    if kind.endswith("x2"):
        return edge(kind[:-2], draw) << 16 | edge(kind[:-2], draw)
    return int(draw.choice(EDGES[kind].split()), 16)


class Program:
    """A kernel of random instructions; the same for the same seed and number."""

    def __init__(self, seed: int, number: int) -> None:
        self.draw = random.Random(f"{seed}:{number}")
        self.flushes = number // PER_MODULE % 4 == 3
        self.lines: list[str] = []
        self.results: list[Result] = []
        self.registers: list[Register] = []
        for n, kind in enumerate(INPUTS):
            typed = self.may_type(kind)
            self.registers.append(Register(f"%i{n}", kind, typed, True, -1))
            self.lines.append(f".reg .{kind if typed else f'b{size(kind)}'} %i{n};")
            self.lines.append(f"ld.global.b{size(kind)} %i{n}, [%in+{256 * n}];")
        for n in range(3):
            self.registers.append(Register(f"%p{n}", "pred", True, True, -1))
            self.lines.append(f".reg .pred %p{n}; .reg .b32 %q{n}; and.b32 %q{n}, %i12, {1 << n};")
            self.lines.append(f"setp.ne.b32 %p{n}, %q{n}, 0;")
        while len(self.results) < SLOTS - 3:
            self.add()

    def inputs(self) -> list[list[int]]:
        """Return the inputs by slot and lane."""
        ways = (edge, edge, near, lambda kind, draw: draw.getrandbits(size(kind)))
        return [[self.draw.choice(ways)(k, self.draw) for _ in range(LANES)] for k in INPUTS]

    def may_type(self, kind: str) -> bool:
        """Draw whether a register is declared with its type; some types have none."""
        return kind == "pred" or (kind in TYPED and self.draw.random() < 0.4)

    def pick(self, want: str, exact: bool = False, untyped: bool = False) -> Register:
        """Return a register that an operand of a type may be."""
        is_int = family(want) == "int"

        def fits(r: Register) -> bool:
            if size(want) == 8:
                if size(r.kind) not in (16, 32) or family(r.kind) != "int":
                    return False
            elif size(r.kind) != size(want):
                return False
            if (untyped and r.is_typed) or (not r.is_exact and (exact or r.kind != want)):
                return False
            return (
                not r.is_typed
                or want[:2] in ("b1", "b3", "b6")
                or r.kind == want
                or (is_int and family(r.kind) == "int" and want[-2:] != "x2")
            )

        found = [r for r in self.registers if fits(r)]
        alike = [r for r in found if family(r.kind) == family(want)]
        if alike and self.draw.random() < 0.8:
            found = alike
        return self.draw.choice(found[-6:] if self.draw.random() < 0.5 else found)

    def literal(self, kind: str) -> str:
        """Return a number as PTX writes it."""
        bits = size(kind)
        like = kind if kind in NANS else f"s{bits}"
        value = self.draw.choice((edge, near))(like, self.draw)
        if kind in NANS:
            return f"0{'f' if bits == 32 else 'd'}{value:0{bits // 4}X}"
        return str(value - (1 << bits) * (kind[0] == "s" and value >> (bits - 1)))

    def expand(self, text: str) -> str:
        """Draw one of each {a,b}."""
        return re.sub(r"\{([^}]*)\}", lambda m: self.draw.choice(m[1].split(",")), text)

    def add(self) -> None:
        """Append an instruction, or a chain of them with a flag."""
        while True:
            opcode, operands, result, types = self.draw.choice(templates())
            first, _, second = types.partition("/")
            a, b = (self.draw.choice(names.split() or [""]) for names in (first, second))
            put = {"$": a, "@": b, "W": WIDER.get(a, "")}
            opcode, operands, result = (
                re.sub(r"[$@W]", lambda m, put=put: put[m[0]], x)
                for x in (opcode, operands, result)
            )
            opcodes = self.expand(opcode).split(" + ")
            if all(map(legal, opcodes)) and not (self.flushes and any(map(keeps, opcodes))):
                break
        chain: tuple[Register, ...] = ()
        for one in opcodes:
            sources: list[Register] = []
            texts = [t for kind in operands.split() if (t := self.operand(kind, one, sources))]
            guard = len(opcodes) == 1 and not one.startswith((*WARP, "set."))
            self.emit(one, texts, result, (*sources, *chain), guard)
            chain = (self.registers[-1],)

    def operand(self, kind: str, opcode: str, sources: list[Register]) -> str:
        """Return an operand, and note its registers."""
        draw = self.draw
        if kind in CONSTANTS:
            return draw.choice(CONSTANTS[kind])
        if kind == "bool" and not re.search(r"\.(and|or|xor)\b", opcode):
            return ""
        if kind[0] == "[":
            at, step = draw.randrange(len(INPUTS)), size(kind[1:-1]) // 8
            return f"[%in+{256 * at + step * draw.randrange(8 // step)}]"
        if kind[0] == "{":
            parts = (self.operand(f"={x}=", "", sources) for x in kind[1:-1].split(","))
            return f"{{{', '.join(parts)}}}"
        before = ""
        head, _, rest = kind.partition(":")
        if head == "count":
            if draw.random() < 0.3:
                return str(draw.randint(0, int(rest)))
            found = self.pick("u32")
            if rest in ("31", "255") or draw.random() < 0.6:  # PTX takes no larger ones
                found = self.emit("and.b32", [found.name, rest], "u32", (found,))
        elif head == "odd":
            found = self.pick(rest)
            found = self.emit(f"or.b{size(rest)}", [found.name, "1"], rest, (found,))
        elif head in ("!pred", "bool"):
            found, before = self.pick("pred"), draw.choice(("", "!"))
        elif sources and opcode and head in LITERAL and draw.random() < 0.12:
            return self.literal(kind)
        else:
            found = self.pick(kind.strip("="), kind[0] == "=", kind[-1] == "=")
        sources.append(found)
        return before + found.name

    def emit(
        self,
        opcode: str,
        operands: list[str],
        result: str,
        sources: tuple[Register, ...],
        guard: bool = False,
    ) -> Register:
        """Append an instruction; return the register that it writes."""
        draw, name = self.draw, opcode.partition(".")[0]
        kinds = result.strip("{}").replace("|", ",").split(",")
        if not kinds[-1]:  # a predicate that may be asked for
            kinds[-1:] = ["pred"] * (draw.random() < 0.3)
        if (
            name in ("cvt", "ld")
            and not re.search("bf16|pack", opcode)
            and len(kinds) == 1
            and family(kinds[0]) == "int"
            and draw.random() < 0.3
        ):
            kinds = [f"{kinds[0][0]}{max(size(kinds[0]), draw.choice((16, 32, 64)))}"]
        kinds = [kind.replace("8", "16") if size(kind) == 8 else kind for kind in kinds]
        is_move = name in MOVES and all(r.is_exact for r in sources[:2])
        made = []
        for kind in kinds:
            slot = len(self.results) + len(made)
            typed, exact = self.may_type(kind), kind not in NANS or is_move
            made.append(Register(f"%v{slot}", kind, typed, exact, slot))
            self.lines.append(f".reg .{kind if typed else f'b{size(kind)}'} %v{slot};")
        joined = ("|" if "|" in result else ", ").join(r.name for r in made)
        written = f"{{{joined}}}" if result[0] == "{" else joined
        text = f"{opcode} {', '.join([written, *operands])};"
        if guard and len(made) == 1 and draw.random() < 0.12:
            bits = "pred" if kinds[0] == "pred" else f"b{size(kinds[0])}"
            old, by = self.pick(bits), self.pick("pred")
            self.lines.append(f"mov.{bits} {joined}, {old.name};")
            text, sources = f"@{draw.choice(('', '!'))}{by.name} {text}", (*sources, old, by)
        self.lines.append(text)
        for r in made:
            self.results.append(Result(opcode, text, "" if r.is_exact else r.kind, sources))
        self.registers += made
        return made[-1]

    def entry(self, name: str) -> str:
        """Return the kernel's PTX."""
        stores = []
        for r in self.registers:
            to, bits = f"[%out+{256 * r.slot}]", size(r.kind)
            if r.slot >= 0 and bits == 1:
                stores.append(f"selp.u32 %one, 1, 0, {r.name}; st.global.u32 {to}, %one;")
            elif r.slot >= 0:
                kind = r.kind if r.is_typed and r.kind[:3] != "f16" else f"b{bits}"
                stores.append(f"st.global.{kind} {to}, {r.name};")
        return "\n".join([ENTRY.replace("NAME", name), *self.lines, *stores, "ret; }"])


def module(seed: int, first: int, count: int) -> tuple[list[Program], str, Any]:
    """Return programs, their PTX and their inputs."""
    programs = [Program(seed, n) for n in range(first, first + count)]
    inputs = np.array([p.inputs() for p in programs], dtype=np.uint64)
    header = ".version 8.3\n.target sm_90\n.address_size 64\n"
    return programs, header + "\n".join(p.entry(f"p{n}") for n, p in enumerate(programs)), inputs


def image(text: str) -> bytes:
    """Return the PTX, or what ptxas makes of it."""
    if LEVEL not in os.environ or "hostcuda" in sys.modules:
        return text.encode()
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/programs.ptx", f"{folder}/programs.cubin"
        Path(source).write_text(text)
        flags = [f"-O{os.environ[LEVEL]}", "-arch=sm_90"]
        subprocess.run(["ptxas", *flags, source, "-o", target], check=True)
        return Path(target).read_bytes()


def run(seed: int, first: int, count: int) -> tuple[list[Program], Any, Any, int]:
    """Run programs; return them, inputs, results by slot and lane, and the text's digest."""
    import cupy

    programs, text, inputs = module(seed, first, count)
    kernels = cupy.cuda.function.Module()
    kernels.load(image(text))
    given, out = cupy.asarray(inputs), cupy.zeros((count, SLOTS, LANES), np.uint64)
    for n in range(count):
        kernels.get_function(f"p{n}")((1,), (LANES,), (given[n], out[n]))
    found = out.get()
    for n, program in enumerate(programs):
        for slot, result in enumerate(program.results):
            if result.kind:
                found[n, slot] = canonical(found[n, slot], result.kind)
    return programs, inputs, found, zlib.crc32(text.encode() + inputs.tobytes())


def canonical(values: Any, kind: str) -> Any:
    """Set all bits of each NaN."""
    infinity, bits = NANS[kind]
    for shift in range(0, size(kind), bits):
        is_nan = (values >> np.uint64(shift) & np.uint64((1 << bits - 1) - 1)) > np.uint64(infinity)
        values = np.where(is_nan, values | np.uint64((1 << bits) - 1 << shift), values)
    return values


def digests(task: tuple[int, int, int]) -> tuple[int, Any, int]:
    """Run one module; return a number for each program and slot."""
    _, _, found, text = run(*task)
    weights = np.random.default_rng(1).integers(1 << 63, size=LANES, dtype=np.uint64) * 2 + 1
    return task[1], ((found * weights).sum(-1, dtype=np.uint64) >> np.uint64(32)).astype("u4"), text


def show(seed: int, number: int) -> None:
    """Print a program and its values, of all lanes."""
    (program,), inputs, found, _ = run(seed, number, 1)
    for n, kind in enumerate(INPUTS):
        print(f"%i{n} ({kind}):", *(f"{x:x}" for x in inputs[0, n]))
    for slot, result in enumerate(program.results):
        print(f"{result.text}\n%v{slot}:", *(f"{x:x}" for x in found[0, slot]))


def main() -> None:
    """Save a GPU's results, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=PER_MODULE, help="how many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--compare", metavar="FILE", help="has the seed and the programs' number")
    parser.add_argument("--optimize", metavar="LEVEL", help="of ptxas, or of g++ for hostcuda")
    parser.add_argument("--show", type=int, metavar="NUMBER")
    options = parser.parse_args()
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    if options.optimize:
        os.environ[LEVEL] = options.optimize
    if options.show is not None:
        return show(options.seed, options.show)
    theirs = dict(np.load(options.compare)) if options.compare else {}
    seed, count = map(int, theirs.get("made", (options.seed, options.programs)))
    firsts = range(0, count, PER_MODULE)
    tasks = [(seed, first, min(PER_MODULE, count - first)) for first in firsts]
    ours, texts, begin = np.zeros((count, SLOTS), "u4"), np.zeros(len(tasks), "u4"), time.time()
    with tempfile.TemporaryDirectory() as folder:  # hostcuda keeps what is compiled
        pool = multiprocessing.get_context("spawn").Pool(options.jobs, start, (folder,))
        with pool:
            for first, found, text in pool.imap_unordered(digests, tasks):
                ours[first : first + len(found)] = found
                texts[first // PER_MODULE] = text
    print(f"{count} programs in {time.time() - begin:.0f} s")
    if options.save:
        np.savez_compressed(options.save, made=[seed, count], results=ours, texts=texts)
    if options.compare:
        if (texts != theirs["texts"]).any():
            parser.error("the programs differ; use the same random_ptx.py for both")
        report(seed, ours, theirs["results"])


def start(folder: str) -> None:
    """Prepare a process."""
    os.environ["XDG_CACHE_HOME"] = folder
    if LEVEL in os.environ and "hostcuda" in sys.modules:
        from hostcuda import _build

        _build.KERNEL_FLAGS.append(f"-O{os.environ[LEVEL]}")


def report(seed: int, ours: Any, theirs: Any) -> None:
    """Print the instructions that differ although their operands do not."""
    ran: collections.Counter[str] = collections.Counter()
    differ: dict[str, list[tuple[int, int]]] = {}
    for number in range(len(ours)):
        results, unequal = Program(seed, number).results, ours[number] != theirs[number]
        ran.update(result.opcode for result in results)
        for slot in np.flatnonzero(unequal):
            sources = {r.slot for r in results[slot].sources if r.slot >= 0}
            if not any(unequal[s] for s in sources):
                differ.setdefault(results[slot].opcode, []).append((number, int(slot)))
    print("| instruction | differ | first program | there |\n|---|---|---|---|")
    for opcode, places in sorted(differ.items(), key=lambda item: -len(item[1])):
        number, slot = places[0]
        text = Program(seed, number).results[slot].text
        print(f"| {opcode} | {len(places)} of {ran[opcode]} | {number} | `{text}` |")
    print(f"{len(differ)} instructions of {len(ran)} differ, in {ran.total()} results")


if __name__ == "__main__":
    main()

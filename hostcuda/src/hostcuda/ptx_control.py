"""Translate PTX's branches and calls, and what threads wait for.

Source: PTX ISA, "Control Flow Instructions" and "Parallel Synchronization and Communication
Instructions".
"""

from __future__ import annotations

from .ptx_memory import meeting
from .ptx_parser import Instruction, Unsupported
from .ptx_writer import Modifiers, Writer, instruction

# What the driver has for kernels: the C function, and the types of its parameters.
BUILT_IN = {
    "vprintf": ("hc_vprintf", ("u64", "u64")),
    "malloc": ("hc_malloc", ("u64",)),
    "free": ("hc_free", ("u64",)),
    "__assertfail": ("hc_assertfail", ("u64", "u64", "u32", "u64")),
}


@instruction("bra")
def _bra(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.take("uni")
    label = w.function.label(i.scope, i.operands[0])
    code = f"goto {label};"
    if id(i) in w.spinning:
        w.uses.add("fuel")
        return f"{{ if (HC_RARE(!--fuel)) fuel = hc_spin(t, {i.own_line}); {code} }}"
    return code


@instruction("brx")
def _brx(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.take("idx")
    m.take("uni")
    targets = w.function.targets.get(i.operands[1]) or w.parts(i.operands[1])
    labels = (w.function.label(i.scope, name) for name in targets)
    cases = " ".join(f"case {n}: goto {label};" for n, label in enumerate(labels))
    return f"switch ({w.use(i.operands[0], 'u32')}) {{ {cases} default: __builtin_unreachable(); }}"


@instruction("ret", "exit")
def _ret(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.take("uni")
    if w.function.is_entry:
        return "return;"
    if i.name == "exit":
        return "hc_exit(t);"
    return "{ t->local = before; return; }" if w.local_bytes else "return;"


@instruction("call")
def _call(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.take("uni")
    operands = list(i.operands)
    results = (
        w.parts(operands.pop(0).replace("(", "{").replace(")", "}"))
        if operands[0][0] == "("
        else []
    )
    target = operands.pop(0)
    given = w.parts(operands.pop(0).replace("(", "{").replace(")", "}")) if operands else []
    codes = []
    for name in (*results, *given):
        variable = w.find(name)
        if variable is None or variable.space != "param":
            raise Unsupported(
                f"hostcuda: a call with {name} is not supported (in {w.function.name})"
            )
        codes.append(variable.code)
    target = w.common.module.aliases.get(target, target)
    known = w.common.module.functions.get(target)
    if known is not None and known.body is None:
        if target not in BUILT_IN:
            is_of_cuda = target.startswith(("cuda", "__cuda"))
            said = "a function of cudadevrt" if is_of_cuda else "which is not defined"
            w.refuse(i, f"a call of {target}, {said},")
        name, kinds = BUILT_IN[target]
        loads = [f"load<{kind}>({w.find(x).code})" for kind, x in zip(kinds, given, strict=False)]  # type: ignore[union-attr]
        if name == "hc_free":
            loads.append(str(i.own_line))
        found = f"{name}({', '.join(['t', *loads])})"
        return f"store({codes[0]}, {found});" if results else f"(void){found};"
    if known is not None and not known.results:  # who declares it may expect one
        codes = codes[len(results) :]
    arguments = ", ".join(["t", *codes])
    if known is not None:
        return f"{w.common.codes[target]}({arguments});"
    kinds = ", ".join(["hc_thread *", *["char *"] * len(codes)])
    address = f"hc_callee(t, hc_functions, hc_function_count, {w.use(target, 'u64')}, {i.own_line})"
    return f"((void (*)({kinds})){address})({arguments});"


@instruction("bar", "barrier")
def _bar(w: Writer, i: Instruction, m: Modifiers) -> str:
    for word in ("cta", "aligned"):
        m.take(word)
    if m.take("warp"):
        m.take("sync")
        return f"hc_warp(t, hc_syncwarp, {w.use(i.operands[0], 'u32')}, 0, 0, 0, {i.own_line});"
    if m.take("cluster"):  # of one block
        m.choose("release", "relaxed", "acquire")
        return (
            ";"
            if m.choose("arrive", "wait") == "arrive"
            else f"hc_barrier(t, hc_bar_sync, 0, 0, 0, {i.own_line});"
        )
    what = m.choose("sync", "arrive", "red") or "sync"
    if what == "arrive":
        number, count = (w.use(x, "u32") for x in i.operands)
        return f"hc_arrive(t, {number}, {count}, {i.own_line});"
    if what == "sync":
        numbers = [w.use(x, "u32") for x in i.operands] + ["0"]
        return f"hc_barrier(t, hc_bar_sync, {numbers[0]}, {numbers[1]}, 0, {i.own_line});"
    op = m.choose("popc", "and", "or")
    kind = m.type()
    to, number, *count, predicate = i.operands
    found = (
        f"hc_barrier(t, hc_bar_{op}, {w.use(number, 'u32')}, "
        f"{w.use(count[0], 'u32') if count else '0'}, {w.use(predicate, 'pred')}, {i.own_line})"
    )
    return w.put(to, kind, found)


def _with_predicate(w: Writer, to: str, kind: str, call: str) -> str:
    names = w.pair(to)
    puts = [w.put(names[0], kind, "found")]
    if len(names) > 1:
        puts.append(w.put(names[1], "pred", "found >> 32 & 1"))
    return f"{{ const u64 found = {call}; {' '.join(puts)} }}"


@instruction("shfl")
def _shfl(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    mode = m.choose("up", "down", "bfly", "idx")
    if not m.take("sync"):
        m.unknown(i.opcode)
    a, b, c, mask = (w.use(x, "u32") for x in i.operands[1:5])
    call = f"hc_warp(t, hc_shfl_{mode}, {mask}, {a}, {b}, {c}, {i.own_line})"
    return _with_predicate(w, i.operands[0], kind, call)


@instruction("vote")
def _vote(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    mode = m.choose("all", "any", "uni", "ballot")
    if not m.take("sync"):
        m.unknown(i.opcode)
    a, mask = w.use(i.operands[1], "pred"), w.use(i.operands[2], "u32")
    return w.put(
        i.operands[0], kind, f"hc_warp(t, hc_vote_{mode}, {mask}, {a}, 0, 0, {i.own_line})"
    )


@instruction("match")
def _match(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, mode = m.type(), m.choose("any", "all")
    m.take("sync")
    a, mask = w.use(i.operands[1], kind), w.use(i.operands[2], "u32")
    call = f"hc_warp(t, hc_match_{mode}{kind[1:]}, {mask}, {a}, 0, 0, {i.own_line})"
    return _with_predicate(w, i.operands[0], "u32", call)


@instruction("redux")
def _redux(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, op = m.type(), m.choose("add", "min", "max", "and", "or", "xor")
    m.take("sync")
    if kind not in ("u32", "s32", "b32"):
        m.unknown(kind)
    a, mask = w.use(i.operands[1], "u32"), w.use(i.operands[2], "u32")
    return w.put(
        i.operands[0], kind, f"hc_warp(t, hc_redux_{op}_{kind}, {mask}, {a}, 0, 0, {i.own_line})"
    )


@instruction("elect")
def _elect(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.take("sync")
    call = f"hc_warp(t, hc_elect, {w.use(i.operands[1], 'u32')}, 0, 0, 0, {i.own_line})"
    return _with_predicate(w, i.operands[0], "u32", call)


@instruction("activemask")
def _activemask(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.type()
    return w.put(i.operands[0], "u32", meeting(w, i).rstrip(";"))


@instruction("membar", "fence", "griddepcontrol", "pmevent", "setmaxnreg")
def _membar(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.left = []  # threads run one at a time, and see each other's writes
    return '__asm__ volatile("" ::: "memory");' + " hc_fence(t);" * w.common.checks


@instruction("nanosleep")
def _nanosleep(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.type()
    w.uses.add("fuel")
    return f"fuel = hc_spin(t, {i.own_line});"


@instruction("trap", "brkpt")
def _trap(w: Writer, i: Instruction, m: Modifiers) -> str:
    return f"hc_trap(t, {i.own_line});" if i.name == "trap" else ";"


@instruction("mapa")
def _mapa(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    m.left = []  # a cluster of one block
    return w.put(i.operands[0], kind, w.use(i.operands[1], kind))

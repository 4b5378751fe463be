"""Translate PTX's loads, stores and atomics, textures and surfaces.

Source: PTX ISA, "Data Movement and Conversion Instructions", "Texture Instructions", "Surface
Instructions" and "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

import re

from .ptx_parser import Instruction, size_of
from .ptx_writer import FLOATS, HALVES, Modifiers, Writer, instruction

SPACES = {"global": "generic", "const": "generic"}
SPACES |= {"param": "param", "local": "local", "shared": "shared"}
WAITING = "volatile", "acquire", "release", "relaxed", "acq_rel", "mmio", "cv"
_HINTS = {"weak", "nc", "ca", "cg", "cs", "lu", "wb", "wt"}
_HINTS |= {"cta", "cluster", "gpu", "sys", "sc", "unified", "noftz"}


def _space(m: Modifiers) -> str:
    for name in list(m.left):
        space, _, part = name.partition("::")
        if space in SPACES and part in ("", "cta", "func", "entry"):
            m.left.remove(name)
            return SPACES[space]
    return "generic"


def _hints(m: Modifiers) -> bool:
    """Take what says nothing of the result; tell whether the access is volatile."""
    is_volatile = any(name in WAITING for name in m.left)
    m.left = [
        name
        for name in m.left
        if name not in _HINTS and name not in WAITING and not re.match(r"L[12]::", name)
    ]
    return is_volatile


def pointer(
    w: Writer,
    i: Instruction,
    text: str,
    size: int,
    space: str,
    kind: str,
    is_volatile: bool = False,
    value: str = "nullptr",
) -> str:
    """Return the host's address of an access that was checked; `value` is that of `hc_seen`."""
    variable, code, offset = w.address(text)
    if variable is not None:
        space = {"shared": "shared", "local": "local"}.get(variable.space, space)
    is_inside = variable is not None and (
        variable.space == "param"
        or (0 <= offset <= variable.bytes - size and variable.align % size == 0 == offset % size)
    )
    is_seen = w.common.checks and space in ("generic", "shared")
    if space == "param":
        space = "generic"
    site = ""
    if is_seen or not is_inside:
        site = w.common.site(i, size, space, kind, is_volatile)
    if space == "shared":
        w.uses.add("shared")
        if variable is not None:
            code, offset = f"{w.offsets[id(variable)] + offset}ull", 0
    elif variable is not None:
        code = f"((char *){w.start(variable)} + {offset})"
        code, offset = code if is_inside else f"u64({code})", 0
    if offset:
        code = f"({code} + u64({offset}ll))"
    if is_inside:
        found = f"(shared + {code})" if space == "shared" else code
    elif space == "shared":
        found = f"at_shared<{size}>(t, {site}, shared, shared_bytes, {code})"
    elif space == "local":
        w.uses.add("local")
        found = f"at_local<{size}>(t, {site}, local, {w.local_bytes}, {code})"
    else:
        found = f"at<{size}>(t, {site}, {code})"
    return f"hc_seen(t, {site}, {found}, {value})" if is_seen else found


def _fence(w: Writer, i: Instruction) -> str:
    """Return the fence that an access has."""
    has = w.common.checks and {"acquire", "release", "acq_rel"} & {*i.modifiers}
    return "hc_fence(t); " if has else ""


@instruction("ld", "ldu")
def _ld(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, space, is_volatile = m.type(), _space(m), _hints(m)
    m.choose("v2", "v4", "v8")
    c, names = w.c(kind), w.parts(i.operands[0])
    at = pointer(w, i, i.operands[1], size_of(kind) * len(names), space, "reads", is_volatile)
    word = "load_volatile" if is_volatile else "load"
    if len(names) == 1:
        return _fence(w, i) + w.put(names[0], kind, f"{word}<{c}>({at})")
    loads = [f"const {c} x{n} = {word}<{c}>(p + {n * size_of(kind)});" for n in range(len(names))]
    puts = [w.put(name, kind, f"x{n}") for n, name in enumerate(names)]
    return f"{{ {_fence(w, i)}const char *p = {at}; {' '.join(loads)} {' '.join(puts)} }}"


@instruction("st")
def _st(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, space = m.type(), _space(m)
    in_step = space == "shared" and "volatile" in m.left
    is_volatile = _hints(m)
    m.choose("v2", "v4", "v8")
    c, values = w.c(kind), w.parts(i.operands[1])
    size = size_of(kind) * len(values)
    at = pointer(w, i, i.operands[0], size, space, "writes", is_volatile, "x")
    word = "store_volatile" if is_volatile else "store"
    changes = " ++hc_changes;" if w.common.counts_changes and space in ("generic", "shared") else ""
    given = ", ".join(w.use(value, kind, stored=True) for value in values)
    stores = [f"{word}<{c}>(p + {n * size_of(kind)}, x[{n}]);" for n in range(len(values))]
    code = (
        f"{{ {_fence(w, i)}const {c} x[] = {{{given}}}; char *p = {at}; "
        f"{' '.join(stores)}{changes} }}"
    )
    if in_step:
        # Code older than Volta counts on a warp's threads writing shared memory in step.
        return f"{meeting(w, i)} {code} {meeting(w, i)}"
    return code


def meeting(w: Writer, i: Instruction) -> str:
    """Return a call that waits for the lanes of the warp that can run."""
    w.common.places += 1
    return f"hc_meet(t, {w.common.places}, {i.own_line});"


@instruction("prefetch", "prefetchu", "applypriority")
def _prefetch(w: Writer, i: Instruction, m: Modifiers) -> str:
    m.left = []
    return ";"


def _combined(w: Writer, m: Modifiers, op: str, kind: str, terms: list[str]) -> str:
    """Return the new value of an atomic, from `old`."""
    c = w.c(kind)
    a = terms[0]
    if op == "add" and kind in HALVES:
        if kind.endswith("x2"):
            one = kind[:-2]
            return (
                f"pair({one}_add(u16(old), u16({a})), {one}_add(u16(old >> 16), u16(({a}) >> 16)))"
            )
        return f"{kind}_add(old, {a})"
    if op in ("min", "max") and kind in FLOATS:
        return f"f{op}(old, {a})"
    if op in ("min", "max") and kind in HALVES and not kind.endswith("x2"):
        return f"{kind}_{op}(old, {a})"
    found = {
        "add": f"{c}(old + {a})",
        "and": f"{c}(old & {a})",
        "or": f"{c}(old | {a})",
        "xor": f"{c}(old ^ {a})",
        "min": f"({a} < old ? {a} : old)",
        "max": f"(old < {a} ? {a} : old)",
        "exch": a,
        "inc": f"(old >= {a} ? 0 : old + 1)",
        "dec": f"(!old || old > {a} ? {a} : old - 1)",
        "cas": f"(old == {a} ? {terms[-1]} : old)",
    }
    if op not in found or (kind in HALVES and op not in ("exch", "cas")):
        m.unknown(op)
    return found[op]


OPERATIONS = "add", "and", "or", "xor", "min", "max", "exch", "inc", "dec", "cas"


@instruction("atom", "red")
def _atom(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, space = m.type(), _space(m)
    op = m.choose(*OPERATIONS)
    if m.choose("v2", "v4", "v8") or kind == "b128":
        m.unknown(i.opcode)
    _hints(m)
    if kind[0] == "b" and kind[1:].isdigit():
        kind = "u" + kind[1:]
    operands = i.operands if i.name == "atom" else ["_", *i.operands]
    c, size = w.c(kind), size_of(kind)
    value = "&x0" if op == "exch" else "nullptr"
    at = pointer(w, i, operands[1], size, space, "updates", False, value)
    terms = [w.use(text, kind) for text in operands[2:]]
    names = [f"const {c} x{n} = {term};" for n, term in enumerate(terms)]
    made = _combined(w, m, op, kind, [f"x{n}" for n in range(len(terms))])
    if (op, kind) == ("add", "f32") and space != "shared":
        made = w.flush(f"{w.flush('old')} + {w.flush('x0')}")
    changes = ""
    if w.common.counts_changes:
        changes = " hc_changes += __builtin_memcmp(&old, &made, sizeof made) != 0;"
    put = "" if operands[0] == "_" else w.put(operands[0], kind, "old")
    return (
        f"{{ {_fence(w, i)}{' '.join(names)} char *p = {at}; "
        f"const {c} old = load<{c}>(p), made = {made};{changes} store<{c}>(p, made); {put} }}"
    )


@instruction("cvta")
def _cvta(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind, backwards = m.type(), m.take("to")
    space = _space(m)
    a = w.use(i.operands[1], "u64")
    if space == "shared":
        w.uses.add("shared")
        a = f"{a} {'-' if backwards else '+'} u64(shared)"
    return w.put(i.operands[0], kind, a)


@instruction("isspacep")
def _isspacep(w: Writer, i: Instruction, m: Modifiers) -> str:
    name = m.choose("global", "const", "local", "shared", "shared::cta", "param", "param::entry")
    a = w.use(i.operands[1], "u64")
    w.uses.add("shared")
    is_shared = f"{a} - u64(shared) < shared_bytes"
    is_local = f"{a} - u64(t->local_start) < u64(t->local_end - t->local_start)"
    found = {"shared": is_shared, "shared::cta": is_shared, "local": is_local}.get(name)
    if name == "global":
        found = f"!({is_shared}) && !({is_local})"
    return w.put(i.operands[0], "pred", found or "false")


@instruction("cp")
def _cp(w: Writer, i: Instruction, m: Modifiers) -> str:
    if not m.take("async") or any("bulk" in name or "mbarrier" in name for name in m.left):
        m.unknown(i.opcode)
    if m.choose("commit_group", "wait_group", "wait_all"):
        return ";"  # the copy is done at once
    m.left = [
        name
        for name in m.left
        if name not in ("ca", "cg", "shared", "shared::cta", "global") and "L2::" not in name
    ]
    size = int(i.operands[2], 0)
    to = pointer(w, i, i.operands[0], size, "shared", "writes")
    source = pointer(w, i, i.operands[1], size, "generic", "reads")
    given = w.find(i.operands[3]) if len(i.operands) > 3 else None
    if len(i.operands) == 3 or (given and given.kind != "pred" and given.bytes == 8):  # a policy
        return f"{{ char *to = {to}; __builtin_memmove(to, {source}, {size}); }}"
    if given and given.kind == "pred":
        kept = f"({w.use(i.operands[3], 'pred')} ? 0 : {size})"
    else:
        kept = w.use(i.operands[3], "u32")  # the rest is zero
    return (
        f"{{ char *to = {to}; const u32 n = least({kept}, {size}); __builtin_memset(to, 0, "
        f"{size}); "
        f"if (n) __builtin_memcpy(to, {source}, n); }}"
    )


def _place(w: Writer, m: Modifiers, operand: str) -> tuple[str, list[str]]:
    """Return the name of a texture or surface, and coordinates: `[name, {x, y}]`."""
    found = re.match(r"\[\s*([^,\]]+?)\s*,\s*(\{.*\}|[^\]]+?)\s*\]$", operand, re.S)
    if not found:
        m.unknown(operand)
    return found[1], w.parts(found[2])


@instruction("tld4")
def _tld4(w: Writer, i: Instruction, m: Modifiers) -> str:
    by, _ = m.type(), m.type()
    component = "rgba".index(m.choose("r", "g", "b", "a"))
    if not m.take("2d") or not m.take("v4") or by != "f32" or len(i.operands) > 2:
        m.unknown(i.opcode)
    texture, at = _place(w, m, i.operands[1])
    x, y = (w.use(part, "f32") for part in at[:2])
    puts = (w.put(name, "u32", f"words[{n}]") for n, name in enumerate(w.parts(i.operands[0])))
    return (
        f"{{ u32 words[4]; const f32 at[] = {{{x}, {y}}}; "
        f"hc_gather(t, {w.use(texture, 'u64')}, at, {component}, words, {i.own_line}); "
        f"{' '.join(puts)} }}"
    )


@instruction("tex")
def _tex(w: Writer, i: Instruction, m: Modifiers) -> str:
    by, kind = m.type(), m.type()
    shape = m.choose("1d", "2d", "3d", "a1d", "a2d")
    m.take("v4")
    count = 2 + m.take("level")  # there are no mipmaps: each level is the first
    if not shape or len(i.operands) != count:
        m.unknown(i.opcode)
    texture, at = _place(w, m, i.operands[1])
    found = w.find(texture)
    if found is not None and found.space != "reg":
        m.unknown(f"the texture reference {texture}")
    handle = w.use(texture, "u64")
    names = w.parts(i.operands[0])
    puts = " ".join(w.put(name, "u32", f"words[{n}]") for n, name in enumerate(names))
    if kind not in ("f32", "u32", "s32"):
        m.unknown(kind)
    if shape == "1d" and by == "s32":
        call = f"hc_texel(t, {handle}, {w.use(at[0], 's32')}, words, {i.own_line});"
        return f"{{ u32 words[4]; {call} {puts} }}"
    layer = "0"
    if shape[0] == "a":
        layer = w.use(at.pop(0), "s32")
    dimensions = int(shape[-2])
    coordinates = ", ".join(f"f32({w.use(x, by)})" for x in at[:dimensions])
    return (
        f"{{ u32 words[4]; const f32 at[] = {{{coordinates}}}; "
        f"hc_texture(t, {handle}, {dimensions}, at, {layer}, words, {i.own_line}); {puts} }}"
    )


@instruction("suld", "sust")
def _surface(w: Writer, i: Instruction, m: Modifiers) -> str:
    kind = m.type()
    if not m.take("b"):
        m.unknown(i.opcode)
    _hints(m)
    shape = m.choose("1d", "2d", "3d", "a1d", "a2d")
    mode = m.choose("trap", "clamp", "zero")
    m.choose("v2", "v4")
    is_load = i.name == "suld"
    where, vector = i.operands[1 - (not is_load)], w.parts(i.operands[0 if is_load else 1])
    if not shape:
        m.unknown(i.opcode)
    surface, parts = _place(w, m, where)
    at = [w.use(x, "s32") for x in parts]
    x, y, z = {
        "1d": lambda: (at[0], "0", "0"),
        "2d": lambda: (at[0], at[1], "0"),
        "3d": lambda: (at[0], at[1], at[2]),
        "a1d": lambda: (at[1], "0", at[0]),
        "a2d": lambda: (at[1], at[2], at[0]),
    }[shape]()
    c, size = w.c(kind), size_of(kind)
    call = (
        f"char *p = hc_surface(t, {w.use(surface, 'u64')}, {x}, {y}, {z}, "
        f"{size * len(vector)}, {['zero', 'clamp', 'trap'].index(mode or 'trap')}, {i.own_line});"
    )
    if w.common.checks:
        site = w.common.site(
            i, size * len(vector), "generic", "reads" if is_load else "writes", False
        )
        call += f" if (p) p = hc_seen(t, {site}, p, nullptr);"
    if is_load:
        body = " ".join(
            w.put(name, kind, f"p ? load<{c}>(p + {n * size}) : {c}(0)")
            for n, name in enumerate(vector)
        )
    else:
        stores = (
            f"store<{c}>(p + {n * size}, {w.use(value, kind)});" for n, value in enumerate(vector)
        )
        body = f"if (p) {{ {' '.join(stores)} }}"
    return f"{{ {call} {body} }}"

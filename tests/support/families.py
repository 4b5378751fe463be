"""Families of small programs: templates of lines, and values for their fields, which may have some.

Every program follows the guide's rules, and nothing more: before CuPy uses memory PyCUDA has used
`as_cupy` is called, before PyCUDA uses memory that CuPy has used `as_pycuda`, on any stream, inside
or outside of any block; and a view may be dropped anywhere.  With ``stream=``, the call names the
stream of the work.  Two streams of one library take no turns without a call between them.
"""

import random
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

STREAMS = {
    "c0": "cupy.cuda.Stream.null",
    "cb": "cupy.cuda.Stream()",
    "c1": "cupy.cuda.Stream(non_blocking=True)",
    "c2": "cupy.cuda.Stream(non_blocking=True)",
    "pt": "cupy.cuda.Stream.ptds",
    "ef": "bridge.as_cupy_stream(f1)",
    "eb": "bridge.as_cupy_stream(pb)",
    "e1": "bridge.as_cupy_stream(p1)",
    "f1": "Foreign(1)",
    "fb": "Foreign(0)",
    "p0": "None",
    "pb": "drv.Stream()",
    "p1": "drv.Stream(1)",
    "pn": "drv.Stream(1)",
}
OF_CUPY = "own = cupy.zeros(N, 'q'); a = bridge.as_pycuda(own)"
MEMORY = {
    "mem_alloc": "a = gpuarray.zeros(N, 'q')",
    "allocator": "a = gpuarray.zeros(N, 'q', allocator=allocator)",
    "device pool": "a = gpuarray.zeros(N, 'q', allocator=device_pool.allocate)",
    "cupy": OF_CUPY,
    "cupy of c1": f"with c1: {OF_CUPY}",
    "cupy slice": OF_CUPY + "[:]",
    "hand": "own = cupy.zeros(N, 'q')\n"
    "a = gpuarray.GPUArray(N, 'q', gpudata=own.data.ptr, base=own)",
    "bare": OF_CUPY.replace("(own)", "(bridge.as_cupy(own.data, N, 'q'))"),
    "cupy alone": "",  # the program makes it
}
USUAL = "mem_alloc", "allocator", "cupy"
P, C = ("p0", "pb", "p1"), ("c0", "cb", "c1")
PN = "p0", "pb", "pn"
AGAIN = (*P, *C)  # where the memory is used again
NEW_P = "drv.Stream()", "drv.Stream(1)"
NEW_C = "cupy.cuda.Stream()", "cupy.cuda.Stream(non_blocking=True)"
# The values of fields, unless a family gives its own.
FIELDS = {"p": P, "q": P, "s": P, "c": C, "d": C, "view": "vx", "mode": "02"}
FIELDS |= {"new_p": NEW_P, "new_c": NEW_C, "new_q": NEW_P}
SYNC = "drv.Context.synchronize()\n"
FIRST, LAST = "p(a, stream={p})\n", "p(a, stream={q})\n"
CONVERT, BACK = "v = bridge.as_cupy(a)", "bridge.as_pycuda(v)"
LASTS = "", f"{BACK}\n{LAST}"


class Family(NamedTuple):
    """A template, the values of its fields, and which of them make no program."""

    template: str
    axes: dict[str, Iterable[Any]]  # a dictionary as value gives several fields
    unless: Callable[[Any], bool]
    is_control: bool


FAMILIES: dict[str, Family] = {}


def family(name, template, unless=lambda o: False, is_control=False, **axes):
    axes = {"memory": USUAL, "end": ("read", *AGAIN), **axes}
    used = re.findall(r"\{(\w+)\}", template + repr(axes))
    rows = [one for values in axes.values() for one in values if isinstance(one, dict)]
    known = {*axes}.union(*rows)
    axes |= {field: FIELDS[field] for field in used if field in FIELDS and field not in known}
    axes = {axis: [*values] for axis, values in axes.items()}
    FAMILIES[name] = Family(template, axes, unless, is_control)


def rows(fields, *values):
    """Return values of several fields, each row at once."""
    return [dict(zip(fields.split(), row, strict=True)) for row in values]


def turn(work="op(v)", convert=CONVERT, back=BACK, c="{c}"):
    """CuPy's turn, with the calls of rule 2 before, inside of, or after its block."""
    return (
        f"{convert}\nwith {c}: {work}\n{back}\n",
        f"with {c}: {convert}; {work}; {back or 0}\n",
        f"with {c}: {convert}; {work}\n{back}\n",
    )


def elsewhere(lines):
    lines = textwrap.indent(lines, "    ")
    return f"def turn():\n    global v, g\n{lines}elsewhere(turn)\ndel turn\n"


def one_of(fields, line, *none):
    """Put a line at one of several places, or at none."""
    fields = fields.split()
    return [{one: line * (one == at) for one in fields} for at in [*fields, *none]]


def mixed_up(o):  # PyCUDA's pool does not follow PyCUDA's own streams
    return o.memory == "device pool" and o.p != o.q


family(
    "turns",
    "{first}{turn}{last}",
    lambda o: not o.first and not o.last,
    first=("", FIRST),
    turn=turn("{work}({view})", back="bridge.as_pycuda({view})"),
    work=("op", "k"),
    last=("", LAST),
)

# Before families that also launch on it: any launch there lets the bridge order more.
family("on_threads_default", FIRST + turn()[1] + LAST, c=["pt"])
family(  # each row of the guide's table of order
    "calls",
    FIRST + "with {c}: {call}\n" + LAST,
    mixed_up,
    memory=(*USUAL, "device pool", "hand", "bare"),
    c=(*C, "pt"),
    call=(
        "bridge.as_cupy(a); op(x); bridge.as_pycuda(x)",
        "v = bridge.as_cupy(a[2:])[:-2]; v *= 2; bridge.as_pycuda(v)",
        "bridge.as_cupy(a[:4]); op(x); bridge.as_pycuda(x[4:])",
        "v = cupy.from_dlpack(a); op(v); bridge.as_pycuda(v)",
        "v = cupy.asarray(a); op(v); bridge.as_pycuda(v)",
        "k(a)",
        "kp(a.gpudata)",
        "bridge.as_cupy(a); k(x); bridge.as_pycuda(x)",
        "launch(a)",
        "bridge.as_cupy(a); op(x); wrapped(x); op(x); bridge.as_pycuda(x)",
        "a += y",
        "a[:] = y",
        "d = a == y; bridge.as_pycuda(y)",
        "d = a + y; bridge.as_pycuda(y)",
        "d = y + a; bridge.as_pycuda(y)",
        "y += a; bridge.as_pycuda(y)",
    ),
)

# ---- streams that begin and end between turns ---------------------------------------------------

BODY = f"{CONVERT}\nwith c: op(v)\n", f"with c: {CONVERT}; op(v)\n"
family(
    "ends",
    "s = {new_p}\n{m0}p(a, stream=s)\n{m1}{e0}v = bridge.as_cupy(a)\n{m2}{e1}{work}"
    "{e2}{e3}bridge.as_pycuda(v)\n",
    lambda o: o.m2 and o.work == BODY[1],
    made=one_of("m0 m1 m2", "c = {new_c}\n"),
    ended=one_of("e0 e1 e2", "del s\n", None),
    ended_too=one_of("e3", "del c\n", None),
    work=("with c: op(v)\n", BODY[1]),
)
family(
    "ends_of_cupy",
    "c = {new_c}\n{m0}{work}{m1}{e0}bridge.as_pycuda(v)\n{m2}{e1}p(a, stream=s)\n{e2}{e3}",
    made=one_of("m0 m1 m2", "s = {new_p}\n"),
    ended=one_of("e0 e1 e2", "del c\n", None),
    ended_too=one_of("e3", "del s\n", None),
    work=BODY,
)
family(  # each stream ends at once: the next one may get its handle
    "handles_again",
    "s = {new_p}\np(a, stream=s)\n{e0}c = {new_c}\n{work}{e1}u = {new_q}\n"
    "bridge.as_pycuda({view})\np(a, stream=u)\ndel u\n",
    ended=one_of("e0", "del s\n", None),
    ended_too=one_of("e1", "del c\n", None),
    work=[work.replace("(v)", "({view})") for work in BODY],
)
DROPS = (
    "{cleared} = None",
    "box = [{names}]; {cleared} = None; elsewhere(box.clear)",
    "box = [{names}]; {cleared} = None; threads.submit(box.clear).result()",
    "box = [{names}]; box.append(box); {cleared} = box = None; gc.collect()",
    "box = [{names}]; box.append(box); {r}.begin_capture(2); {cleared} = box = None; gc.collect(); "
    "h = {r}.end_capture()",
    "{r}.begin_capture(2); {cleared} = None; h = {r}.end_capture()",
)
RACING = "box = [{names}]; {cleared} = None; t = threads.submit(primary(box.clear))"
family(  # on another thread, meanwhile, in a cycle, beside a capture
    "ends_somewhere",
    "{turns}" + LAST,
    lambda o: o.cleared == "s" and "submit(box" in o.drop,  # PyCUDA never frees such a stream
    turns=rows(
        "names cleared turns",
        ("s", "s", "s = {new_p}\np(a, stream=s)\n{drop}\n" + turn()[0].replace("{c}", "c0")),
        ("c", "c", "c = {new_c}\n{work}{drop}\nbridge.as_pycuda(v)\n"),
    ),
    drop=(*DROPS, RACING),
    r=("c1", "cb"),
    work=BODY,
)
MANY = (
    "s = [drv.Stream(1) for _ in range({n})]\np(a, stream=s[-1])\n" + turn()[0],
    "s = [cupy.cuda.Stream(non_blocking=True) for _ in range({n})]\n" + turn(c="s[-1]")[0],
)
family("many_streams", "{turns}" + LAST, turns=MANY, n=("10", "40"))
ONE = {"end": ["c1"], "c": ["c1"], "q": ["p1"]}
family("hundreds_of_streams", "{turns}" + LAST, turns=MANY, n=["70"], **ONE)  # and of events
family(  # CuPy's streams over PyCUDA's, over a third library's, and of other classes
    "outer_streams",
    "{make}" + FIRST + "{turn}c0.use()\n" + LAST,
    make=rows(
        "c make",
        *(("e1", ""), ("eb", ""), ("ef", "")),
        ("c", "c = type('Sub', (cupy.cuda.Stream,), dict())(non_blocking=True)\n"),
        ("c", f"r = {NEW_C[1]}\nc = cupy.cuda.ExternalStream(r.ptr)\n"),
    ),
    turn=(
        *turn("op({view})", back="bridge.as_pycuda({view})"),
        "{c}.use(); bridge.as_cupy(a); op({view}); c0.use(); bridge.as_pycuda({view})\n",
        "bridge.as_cupy(a); {c}.use(); op({view}); bridge.as_pycuda({view})\n",
    ),
    view="x",
)

# ---- calls that name streams --------------------------------------------------------------------

WIDEN = (
    "w = bridge.as_cupy(b)\nwith {d}: op(w)\nbridge.as_pycuda(b)\n",
    "w = bridge.as_cupy(b[:])\nwith {d}: op(w)\nbridge.as_pycuda(b[:])\n",
    "w = bridge.as_cupy(b[2:][:-2])\nwith {d}: w += 1\nbridge.as_pycuda(w)\n",
    "w = bridge.as_cupy(b)[:]\nwith {d}: op(w)\nbridge.as_pycuda(w)\n",
    "bridge.as_cupy(b)\nwith {d}: op(v)\nbridge.as_pycuda(v)\n",
    "w = cupy.from_dlpack(b)\nwith {d}: op(w)\nbridge.as_pycuda(w)\n",
    "with {d}: k(b)\n",
    "with {d}: w = bridge.as_cupy(b[:], stream={s}); op(w); b = bridge.as_pycuda(w, stream={q})\n",
    "with {d}: w = bridge.as_cupy(b, stream={s}); op(w); b = bridge.as_pycuda(w, stream={q})\n",
)
WIDEN = ["", *(widen + "p(b, stream={q})\n" for widen in WIDEN)]
family(
    "named",
    FIRST
    + "with {c}: v = bridge.as_cupy({of}, stream={p}); op(v); b = bridge.as_pycuda(v, stream={s})\n"
    "p(b, stream={s})\n{widen}",
    of=("a", "bridge.as_cupy(a, stream=-1)"),
    widen=[*WIDEN, WIDEN[-1].replace("as_pycuda(w", "as_pycuda(b")],
    d=(*C, "c2"),
    q=PN,
)
family(  # a thread's own default stream has no record
    "new_streams",
    "with {c}: v = bridge.as_cupy(a); {work}; bridge.as_pycuda(v)\n"
    "s = {new_p}\np(a, stream=s)\n{last}",
    c=(*C, "pt"),
    work=("op(v)", "k(v)"),
    last=("", "bridge.as_cupy(a)\n"),
)
family(  # the only view of CuPy's memory names a stream; an unnamed call meets its memory
    "narrow",
    "with {c}: x = cupy.zeros(N, 'q')\n" + SYNC + "with {c}: b = bridge.as_pycuda({of}, stream={s})"
    "\np(b, stream={s})\nv = x\n{widen}{last}{drop}",
    lambda o: (
        ("stream={s}" in o.widen and (o.last or o.c not in ("c0", o.d)))  # guide.md, as below
        or (o.last and not o.widen)
    ),
    memory=("cupy alone",),
    end=AGAIN,
    of=("x", "x[:]"),
    widen=WIDEN,
    q=(*P, "pn"),
    last=("", "bridge.as_cupy(b)\nwith {d}: op(v)\n"),
    drop=("", "with c2: c2.begin_capture(2); b = v = w = x = None; h = c2.end_capture()\n"),
)
family(  # CuPy's memory is of one stream's part of the pool, and converted under another
    "pools_of_streams",
    "with {home}: x = cupy.zeros(N, 'q')\n" + SYNC + "with {c}: b = bridge.as_pycuda(x{naming})\n"
    "p(b, stream={p})\n",
    lambda o: o.naming and o.home not in ("c0", o.c),  # guide.md: under the allocation's stream
    memory=("cupy alone",),
    end=(*AGAIN, "c2", "pn", "ef"),
    home=(*C, "ef", "e1"),
    c=(*C, "ef", "e1"),
    p=(*P, "pn"),
    naming=("", ", stream={p}"),
)
family(  # CuPy frees its memory itself, and PyCUDA's allocator takes it
    "reuse",
    "with {c}: x = cupy.zeros(N, 'q'); op(x)\n{last}",
    memory=("cupy alone",),
    end=P,
    c=(*C, "c2"),
    last=("", "bridge.as_pycuda(x)\n"),
)
family(  # "pb", "e1", ...: after CuPy's current stream, and before its later work
    "launches",
    "with {c}: v = bridge.as_cupy(a); op(v); kn({of}, stream={s}){then}",
    of="av",
    s=("pb", "p1", "c0", "cb", "c1", "c2", "f1", "fb", "e1"),
    then=[work + then for work in ("\n", "; op(v)\n") for then in LASTS],
    q=PN,
)
family(  # a stream that is not PyCUDA's, between work on the default stream
    "launches_alone",
    "p(a)\nwith {c}: kn(a, stream={s})\np(a)\n",
    s=("c0", "cb", "c1", "c2", "f1", "fb"),
)
family(
    "waits",
    "v = bridge.as_cupy(a)\n" + FIRST + "{turn}" + LAST,
    turn=(
        "bridge.wait_stream({c}, {p})\nwith {c}: op({view})\nbridge.wait_stream({q}, {c})\n",
        "bridge.wait_stream(f1, {p})\nkn(a, stream=f1)\nbridge.wait_stream({q}, f1)\n",
        "with {c}, bridge.ordered(): op({view})\n",
        "@bridge.ordered()\ndef work(): op({view})\nwith {c}: work()\ndel work\n",
        "with {c}, bridge.ordered(): v = bridge.as_cupy(a, stream=-1); op(v)\n",
        "o = bridge.ordered()\nwith c2, o, {c}, o: op({view})\n",
    ),
    c=(*C, "pt"),
)
family(  # to consumers that name a stream, work there, and may end it
    "exports",
    "{make}"
    + FIRST
    + "with {c}: {call}v = cupy.from_dlpack(a.__dlpack__(stream={handle}{version}))\n"
    "with {at}: op(v)\n{gone}{last}",
    lambda o: o.gone and not o.make,
    at=rows(
        "handle at make call",
        *(("None", "c0", "", ""), ("1", "c0", "", "")),
        *(("c1.ptr", "c1", "", ""), ("cb.ptr", "cb", "", "")),
        ("-1", "{c}", "", "bridge.as_cupy(a); "),
        *(("s.ptr", "s", f"s = {new}\n", "") for new in NEW_C),
        ("s.ptr", "s", "s = bridge.as_cupy_stream(Foreign(1))\n", ""),
    ),
    version=("", ", max_version=(1, 0)"),
    gone=("", "s = None\n"),
    last=LASTS,
)
family(  # to a third library, which works on its own stream
    "consumers",
    FIRST + "v = cupy.from_dlpack(a.__dlpack__(stream={f}.handle{more}))\n"
    "runtime.memsetAsync(v.data.ptr, 0, 8 * N, {f}.handle)\nbridge.wait_stream({c}, {f})\n"
    "bridge.as_pycuda(v)\n" + LAST,
    end=AGAIN,
    f=("f1", "fb", "p1"),
    more=("", ", max_version=(1, 0)"),
)
family(  # from a third library, whose memory is not used again
    "imports",
    "with {c}: x = cupy.zeros(N, 'q')\n"
    + SYNC
    + "runtime.memsetAsync(x.data.ptr, 1, 8 * N, {f}.handle)\n"
    "with {c}: v = bridge.{call}(Exported(x, {f}){naming})\n{work}" + SYNC,
    memory=("cupy alone",),
    end=("c0",),
    f=("f1", "fb"),
    call=rows(
        "call naming work",
        ("as_cupy", "", "with {d}: op(v)\n"),
        ("as_cupy", ", stream={f}", "with {c}: op(v)\n"),
        ("as_pycuda", "", "p(v, stream={p})\n"),
        ("as_pycuda", ", stream={p}", "p(v, stream={p})\n"),
    ),
    d=(*C, "c2"),
)

# ---- threads, releases --------------------------------------------------------------------------

TURNS = [*turn(), *(lines.removesuffix(BACK + "\n") for lines in turn()[::2])]
ENDS = LAST, f"{BACK}\n{LAST}"
family(
    "on_threads",
    "{first}{turn}{last}",
    lambda o: mixed_up(o) or (BACK in o.turn) == (BACK in o.last),
    memory=(*USUAL, "device pool"),
    first=(FIRST, elsewhere(FIRST)),
    turn=[*TURNS, *map(elsewhere, TURNS)],
    last=[*ENDS, *map(elsewhere, ENDS)],
)
family(  # the last references go somewhere, in some order, under some current stream
    "release",
    "b = None; own = globals().get('own')\n{turns}with {current}: {drop}\n",
    lambda o: o.memory == "device pool" and o.end in P,
    memory=(*USUAL, "device pool", "cupy of c1", "cupy slice", "hand", "bare"),
    end=AGAIN,
    turns=(
        FIRST + "bridge.as_cupy(x)\nwith {c}: op(x)\n",
        "with {c}: op(x)\nb = bridge.as_pycuda(x)\n" + FIRST,
    ),
    current=(*C, "{r}"),
    names=rows(
        "names cleared",
        ("a, x, b, own", "a = x = b = own"),
        *(("x, b", "x = b"), ("a, own", "a = own")),
    ),
    drop=DROPS,
    r=("c2", "cb"),
)
family(  # so do the last work and references of another thread
    "release_elsewhere",
    elsewhere("bridge.as_cupy(x)\nwith {c}: op(x)\n") + "{drop}\n",
    end=AGAIN,
    names=["x"],
    cleared=["own = a = x"],
    drop=DROPS[:3],
)

# ---- captures -----------------------------------------------------------------------------------

CAPTURE = "with {c}: {c}.begin_capture({mode}); {body}; g = {c}.end_capture()\n"
family(  # CuPy's turn is a graph, captured before, and launched between PyCUDA's turns
    "captures",
    "{capture}" + FIRST + "{turn}" + LAST,
    lambda o: "{own}" in o.body and not o.own,
    memory=("allocator", "cupy"),
    capture=(CAPTURE, elsewhere(CAPTURE)),
    c=rows("c own", ("c1", ""), ("cb", ""), ("e1", "p1"), ("eb", "pb")),
    body=(
        "op(x); k(x)",
        "v = bridge.as_cupy(a); op(v); bridge.as_pycuda(v)",
        "v = bridge.as_cupy(a, stream=-1); op(v)",
        "k(a); kp(a); op(x)",
        "op(x); bridge.as_pycuda(x); p(a, stream={own}); bridge.as_cupy(a); op(x)",
        "op(x); bridge.wait_stream(c2, {c}); c2.use(); v = bridge.as_cupy(a); op(v); "
        "{c}.use(); bridge.wait_stream({c}, c2); op(x)",
        "op(x); bridge.wait_stream(pn, {c}); bridge.as_pycuda(x); p(a, stream=pn); "
        "bridge.as_cupy(a); op(x)",
        "op(x); kn(x, stream=pn); launch(x, stream=pn); b = bridge.as_pycuda(x, stream=pn); "
        "p(b, stream=pn); bridge.as_cupy(b, stream=pn); op(x)",
        "op(x); v = cupy.asarray(a); op(v)",
    ),
    at=("{c}", "c0", "c2"),
    turn=turn("g.launch(); g.launch()", c="{at}"),
)
BEGIN, END = "{r}.begin_capture({mode})\n", "h = {r}.end_capture()\n"
family(  # another stream is being captured, by this or by another thread
    "beside_a_capture",
    "{begin}{busy}" + FIRST + "{turn}" + LAST + "{end_capture}" + turn()[0],
    lambda o: o.r == o.c,
    memory=("allocator", "cupy"),
    end=AGAIN,
    who=rows("begin end_capture", (BEGIN, END), (elsewhere(BEGIN), elsewhere(END))),
    r=("c2", "cb", "e1", "eb"),
    busy=("", "with {r}: op(y)\n"),
    turn=turn(),
    p=PN,
    q=PN,
)
family(  # the captured stream has work of before; PyCUDA takes its turn within the capture or after
    "before_a_capture",
    "with {r}: v = bridge.as_cupy(a); op(v)\n" + BEGIN + "{pycuda}v = bridge.as_cupy(a)\n"
    "with {c}: bridge.as_cupy(a); op(v)\n",
    end=AGAIN,
    r=("c1", "cb", "e1", "eb"),
    pycuda=(
        BACK + "\n" + FIRST + END,
        END + BACK + "\n" + FIRST,
        f"s = {NEW_P[1]}\nc = {NEW_C[1]}\n{END}{BACK}\np(a, stream=s)\n" + turn(c="c")[1],
    ),
    p=PN,
    c=("c0", "c2"),
)
family(  # a stream that has work joins a capture, and others take turns meanwhile
    "joins_a_capture",
    "p(a, stream=pn)\n" + BEGIN + "bridge.wait_stream(pn, {r})\n{turn}"
    "bridge.wait_stream({r}, pn)\n" + END + "{again}p(a, stream=pn)\n",
    end=AGAIN,
    r=("c2", "e1"),
    turn=[*turn(), *map(elsewhere, turn())],
    c=("c0", "c1"),
    again=("", turn("v += 1")[0]),
)

# ---- copies, two arrays, two devices ------------------------------------------------------------

family(
    "copies",
    "import cupyx\nh, m = drv.pagelocked_empty(N, np.int64), cupyx.empty_pinned(N, 'q')\n"
    "h[:] = m[:] = 1; u = gpuarray.zeros(N, 'q'); w = cupy.zeros(N, 'q')\n"
    + SYNC
    + "{first}{turn}{last}u = t = None\n",
    end=AGAIN,
    first=[
        {"first": line.replace("{s}", "{p}"), "last": line.replace("{s}", "{q}")}
        for line in (
            "a.set_async(h, {s})\n",
            "a.get_async({s}, h)\n",
            "drv.memcpy_htod_async(int(a.gpudata), h, {s})\n",
            "drv.memcpy_dtoh_async(h, int(a.gpudata), {s})\n",
            "drv.memcpy_dtod_async(int(a.gpudata), int(u.gpudata), 8 * N, {s})\n",
            "drv.memset_d32_async(int(a.gpudata), 7, 2 * N, {s})\n",
            "a.fill(3, {s})\n",
            "p(a, stream={s})\n",
        )
    ],
    turn=turn("{work}"),
    work=(
        "v.set(m)",
        "v.get(out=m, blocking=False)",
        "op(v)",
        "t = v.copy()",
        "v[...] = w",
        "v.fill(2)",
        "t = bridge.as_cupy(h); op(t); v[...] = t",
    ),
)


def two_arrays(seed):
    """Write three or four turns; one call, with one of the arrays, is enough for both."""
    draw = random.Random(seed)
    one = draw.choice
    lines, last, stream = "", None, None
    for _ in range(one((3, 4))):
        library = one("PCC" if last == "P" else "CPP")
        s = one((*P, "pn")) if library == "P" else one((*C, "c2"))
        if last == library:
            lines += f"bridge.wait_stream({s}, {stream})\n"
        if library == "P":
            lines += f"bridge.as_pycuda({one('vw')})\n" * (last == "C")
            copy = f"drv.memcpy_dtod_async(int(b.gpudata), int(a.gpudata), 8 * N, {s})\n"
            works = (f"{call}, stream={s})\n" for call in ("p(a", "p(b", "p2(a, b", "p2(b, a"))
            lines += one((*works, copy))
        else:
            works = "op(v)", "op(w)", "op2(w, v)", "k2(w, v)", "w[...] = v", "k(a)", "k2(a, b)"
            call = one(("bridge.as_cupy(a)", "bridge.as_cupy(b)", CONVERT, "w = bridge.as_cupy(b)"))
            lines += one(turn(one(works), call, "", s)[:2])
        last, stream = library, s
    return lines + "\n".join(draw.sample(("a = v = own = None", "b = w = other = None"), 2))


family(
    "two_arrays",
    "{b}\nv = bridge.as_cupy(a); w = bridge.as_cupy(b)\n" + SYNC + "{lines}\n",
    end=AGAIN,
    b=[MEMORY[m].replace("a =", "b =").replace("own", "other") for m in USUAL],
    lines=[two_arrays(seed) for seed in range(2000)],
)
family(  # in a world with a second device, on that device
    "two_devices",
    FIRST + "{beside}{turn}" + LAST,
    beside=(
        "with first: {lines}\n",
        "with first: o = cupy.cuda.Stream(non_blocking=True)\nbridge.wait_stream(o, {c}); "
        "bridge.wait_stream({c}, o)\n",
        "with first: o = drv.Stream(1)\nwith first: {lines}; o = None\n",
    ),
    lines=("bridge.as_cupy(gpuarray.zeros(4, 'f'))", "cupy.arange(4); {new_p}; {new_c}"),
    turn=turn(),
)

# ---- controls -----------------------------------------------------------------------------------

family("host_waits", FIRST + SYNC + "with {c}: op(x)\n" + SYNC + LAST + SYNC, is_control=True)
family(
    "without_calls",
    (FIRST + "with {c}: op(x)\n") * 5,
    is_control=True,
    memory=("cupy",),
    end=("read",),
    p=("p1",),
    c=("c1",),
)
family(  # CuPy's turn has a copy: the clocks find nothing
    "wrong_numbers",
    "p(a)\nv = bridge.as_cupy(a).copy()\nop(v)\n",
    is_control=True,
    memory=("mem_alloc",),
    end=("read",),
)

"""Small programs that follow the guide's three rules; the host driver judges each without luck.

A program is text: paste `PREAMBLE`, then its lines.  It makes the streams and the memory that it
names, lets the libraries take turns with the calls of rule 2 between them, then drops everything
and uses the memory again, or reads it.  Two oracles judge it: `hostcuda.conflicts`, for work that
nothing orders, and numbers, since the kernels of the libraries do not commute.  On a GPU there are
numbers only: with ``--held``, streams are busy for a while in front of random lines, so that a
reader that nothing orders comes too early.

    python -m hostcuda --check --pool tests/support/programs.py --families turns,named --sample 500
    python tests/support/programs.py --held 1 --threads 4
"""

import argparse
import collections
import contextlib
import gc
import math
import os
import random
import re
import sys
import textwrap
import time
import traceback
import warnings
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from families import FAMILIES, MEMORY, STREAMS, Family
from gpus import ON_GPU

if ON_GPU:
    conflicts = partial(contextlib.nullcontext, ())
else:
    from hostcuda import conflicts

PREAMBLE = '''
import gc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import cupy, numpy as np, pycuda.driver as drv
from cupy.cuda import runtime
from pycuda import gpuarray
from pycuda.compiler import SourceModule
from pycuda.tools import DeviceMemoryPool
import bridge, bridge.autoinit

bridge.use_nvrtc()
N = 32
SOURCE = """
#define KERNEL(name, value) __global__ void name(long long *x) { x[threadIdx.x] = value; }
#define KERNEL2(name) __global__ void name(long long *x, const long long *y) \\\\
  { x[threadIdx.x] = 3 * x[threadIdx.x] + y[threadIdx.x]; }
KERNEL(p, 3 * x[threadIdx.x] + 2)
KERNEL(k, 5 * x[threadIdx.x] + 1)
KERNEL(kn, 5 * x[threadIdx.x] + 1)
KERNEL(again_p, 9) KERNEL2(p2) KERNEL2(k2)
"""

def of_pycuda(device):
    with bridge.primary_context(device):
        module = SourceModule(SOURCE)
        pool = DeviceMemoryPool()
    functions = (module.get_function(name) for name in ("p", "p2", "again_p"))
    return *(partial(function, block=(N, 1, 1)) for function in functions), pool

p, p2, again_p, device_pool = of_pycuda(0)
second = of_pycuda(1) if runtime.getDeviceCount() > 1 else None
ours = bridge.SourceModule(SOURCE)
k, kn, k2 = (partial(ours.get_function(f), block=N) for f in ("k", "kn", "k2"))
kp = partial(ours.get_function("k").prepare("P").prepared_call, (1, 1), (N, 1, 1))
launch = partial(bridge.launch, p.func, block=N)
wrapped = bridge.wrap_pycuda(p)
op = cupy.ElementwiseKernel("", "int64 x", "x = 7 * x + 3", "op")
op2 = cupy.ElementwiseKernel("int64 y", "int64 x", "x = 3 * x + y", "op2")
again_c = cupy.ElementwiseKernel("", "int64 x", "x = 9", "again_c")
allocator = bridge.pycuda_allocator()
threads, primary = ThreadPoolExecutor(1), bridge.primary_context()

def elsewhere(action):  # on another thread
    return threads.submit(primary(action)).result()

class Foreign:  # a third library's stream
    def __init__(self, flags): self.handle = runtime.streamCreateWithFlags(flags)
    def __cuda_stream__(self): return 0, self.handle
    def __del__(self): runtime.streamDestroy(self.handle)

class Exported:  # a third library's array, with work on its stream
    def __init__(self, array, stream): self.array, self.stream = array, stream
    @property
    def __cuda_array_interface__(self):
        return dict(self.array.__cuda_array_interface__, stream=self.stream.handle)
'''
# It keeps a stream busy, in no order with others; it is launched by a handle, unseen by the bridge.
DELAY = 'extern "C" __global__ void delay() { for (int us = %d; us > 0; us--) __nanosleep(1000); }'


class World(NamedTuple):
    """Which streams there are."""

    replaced: dict[str, str]  # in programs
    alive: str = "None"  # besides
    devices: int = 1
    variable: str = ""  # of the environment, set before CuPy is imported


BLOCKING_P, BLOCKING_C = {"Stream(1)": "Stream()"}, {"blocking=True": "blocking=False"}
WORLDS = {
    "own": World({}),  # a program makes those that it names, and there are no others
    "blocking": World(BLOCKING_P | BLOCKING_C),
    "pycuda": World(BLOCKING_C),  # only PyCUDA's may be non-blocking
    "cupy": World(BLOCKING_P),
    "many": World({}, f"[{', '.join(STREAMS[stream] for stream in ('pb', 'p1', 'cb', 'c1'))}]"),
    "devices": World({}, devices=2),  # on the second one
    "threads": World({}, variable="CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"),
}
OF_DEVICES = "two_devices", "turns", "ends", "ends_of_cupy", "named", "narrow", "release", "exports"
SECOND = "p, p2, again_p, device_pool = second\nfirst = bridge.primary_context(0)\n"
ARRAYS = "x = bridge.as_cupy(a)", "y = cupy.ones(N, 'q')"
# What each kernel does to the array: x becomes m * x + n.
EFFECTS = {"p": (3, 2), "k": (5, 1), "op": (7, 3)}
ASSIGNED = {"add": (1, 1), "assign": (0, 1)}
EFFECTS |= dict.fromkeys(("launch", "wrapped"), (3, 2)) | dict.fromkeys(("kn", "kp"), (5, 1))
STEP = re.compile(
    rf"\b(?P<work>{'|'.join(EFFECTS)})\([avxbdw]\b|(?P<begin>begin_capture)|(?P<end>end_capture)"
    r"|(?P<launch>g\.launch)|(?P<add>\ba \+= y)|(?P<assign>\ba\[:\] = y)"
)
# What our pages name, in calls of the bridge; and what CUDA refuses in calls of the program's own.
DOCUMENTED = {
    True: "ValueError: .*captur",
    False: "(?i)legacy stream depend on a capturing blocking stream|CAPTURE_?IMPLICIT",
}
LIBRARY = {"p": "P", "p2": "P", "again_p": "P", "kn": "named"}  # by kernel; others are CuPy's
# Pools of CuPy and of PyCUDA do not follow their own library's streams: memory, whose first and
# second work.  A kernel on a named stream is work of CuPy, too.
OWN = re.compile("(cupy.*|hand|bare) (C|named) C|device pool P P")
MADE = re.compile(r"^ *(\w+) = (?:.*[sS]tream|Foreign|None$)", re.M)  # a stream


class Program(NamedTuple):
    """One program."""

    memory: str
    text: str
    end: str  # "read", or the stream on which memory is used again


def again(stream: str, memory: str) -> str:
    """Drop everything, and use the memory again on a stream."""
    use = f"with {stream}: z = cupy.empty(N, 'q'); again_c(z)\n"
    if stream[0] == "p":
        allocate = "device_pool.allocate" if memory == "device pool" else "allocator"
        use = f"z = gpuarray.GPUArray(N, 'q', allocator={allocate}); again_p(z, stream={stream})\n"
    return f"a = x = v = w = b = d = t = own = None\n{use}"


def program(one: Family, fields: dict[str, Any], world: World) -> Program | None:
    """Write a program; None if the fields' values make none."""
    if one.unless(SimpleNamespace(**fields)):
        return None
    body, memory, end = one.template, fields["memory"], fields["end"]
    while "{" in body:
        body = body.format_map(fields)
    body = f"drv.Context.synchronize()\n{body}{again(end, memory) if end != 'read' else ''}"
    if MEMORY[memory]:
        before = [MEMORY[memory]]
        before += [line for line in ARRAYS if re.search(rf"\b{line[0]}\b", body)]
        body = "\n".join([*before, body])
    for stream, new in STREAMS.items():  # what others stand on comes first in the text
        if re.search(rf"\b{stream}\b", body):
            body = f"{stream} = {new}\n{body}"
    for was, becomes in world.replaced.items():
        body = body.replace(was, becomes)
    if world.devices > 1:
        body = f"{SECOND}with bridge.primary_context(1):\n{textwrap.indent(body, '    ')}"
    return Program(memory, body, end)


def programs(name: str, count: int, world: World) -> Iterator[Program]:
    """Write `count` different programs of a family, the same each time; all if it is 0."""
    one = FAMILIES[name]
    total = math.prod(map(len, one.axes.values()))
    seen: set[str] = set()
    # An array, since programs collect cycles, and the collector looks through lists.
    for index in array("L", random.Random(name).sample(range(total), total)):
        fields: dict[str, Any] = {}
        for axis, values in one.axes.items():
            index, at = divmod(index, len(values))
            fields |= values[at] if isinstance(values[at], dict) else {axis: values[at]}
        made = program(one, fields, world)
        if made and made.text not in seen:
            seen.add(made.text)
            yield made
            if len(seen) == count:
                return


def expected(text: str) -> int:
    """Return what the array holds if everything runs in the order of the text."""
    value, graph, is_open = 0, [], False
    for step in STEP.finditer(text):
        kind = step.lastgroup
        if kind == "begin":
            graph, is_open = [], True
        elif kind == "end":
            is_open = False
        elif is_open:
            graph.append(EFFECTS[step["work"]])
        else:
            for m, n in (
                graph if kind == "launch" else [ASSIGNED.get(kind) or EFFECTS[step["work"]]]
            ):
                value = m * value + n
    return value


def library(work: str, text: str) -> str:
    """Tell whose work it is: of a kernel by its name, of another by its line."""
    name, line = re.match(r"(?:kernel )?(\w+) .*?of program:(\d+) ", work).groups()
    is_pycudas = re.match(r"\s*(a|drv)\.", text.splitlines()[int(line) - 1])
    return LIBRARY.get(name) or ("P" if is_pycudas else "C")


def is_own(program: Program, conflict: Any) -> bool:
    """Tell whether a library leaves this unordered without the bridge, too."""
    if not conflict.second.startswith("kernel again"):
        return False
    both = " ".join(library(work, program.text) for work in conflict[:2])
    return OWN.fullmatch(f"{program.memory} {both}") is not None


def held(text: str, chance: random.Random) -> str:
    """Hold random streams that a program has made, in front of random lines."""
    begin, sync, rest = text.partition("synchronize()\n")
    made, lines = MADE.findall(begin), [""]
    for line in rest.splitlines():
        if made and chance.random() < 0.5 and "@" not in lines[-1]:
            lines.append(f"{re.match(' *', line)[0]}hold('{chance.choice(made)}')")
        lines.append(line)
        made += MADE.findall(line)
    return begin + sync + "\n".join(lines[1:])


class Judge:
    """Runs programs in one process."""

    def __init__(self, delay: int) -> None:
        warnings.simplefilter("ignore", DeprecationWarning)  # of CuPy's ExternalStream
        self.names: dict[str, Any] = {"__name__": "preamble"}
        exec(PREAMBLE, self.names)
        self.delay = self.names["cupy"].RawKernel(DELAY % delay, "delay")
        self.hold({}, "")  # it is loaded before any capture
        self.names["__name__"] = "program"
        gc.collect()
        gc.freeze()  # so that programs collect their own cycles only
        gc.disable()

    def run(self, one: Program, device: int) -> tuple[str, str]:
        """Return what came of a program: "", "refused", or how it failed; and the details."""
        with conflicts() as found:
            kind, details = self.execute(one, device)
        found = [str(pair) for pair in found if not is_own(one, pair)]
        if found:
            return "conflict", "\n".join(found[:3])
        return kind, details

    def execute(self, one: Program, device: int) -> tuple[str, str]:
        """Do the same by numbers alone."""
        names, raised = dict(self.names), None
        names["hold"] = partial(self.hold, names)
        try:
            exec(compile(one.text, "program", "exec"), names)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            homes = {
                frame.f_globals.get("__name__", "").split(".")[0]
                for frame, _ in traceback.walk_tb(error.__traceback__)
                # A launch is the program's own.
                if not frame.f_code.co_name.endswith("._launch_kernel")
            }
            is_documented = re.search(DOCUMENTED["bridge" in homes], raised)
        if "capture" in one.text:
            self.end_captures(one.text, names)
        self.names["cupy"].cuda.Stream.null.use()
        with self.names["bridge"].primary_context(device):
            self.names["runtime"].deviceSynchronize()
            array = None if raised else names.get("a" if one.end == "read" else "z")
            numbers = set() if array is None else {*array.get()[[0, -1]].tolist()}
            del array
        names.clear()
        if raised:
            return "refused" if is_documented else "error", raised
        user = "P" if one.end[0] == "p" else "C"
        if one.end != "read" and OWN.fullmatch(f"{one.memory} {user} {user}"):
            return "", ""
        number = expected(one.text) if one.end == "read" else 9
        if wrong := numbers - {number}:
            return "wrong number", f"{wrong.pop()}, not {number}"
        return "", ""

    def hold(self, names: dict[str, Any], name: str) -> None:
        """Let a stream of a program be busy for a while, unless it is captured."""
        runtime, stream = self.names["runtime"], names.get(name)
        stream = stream[-1] if isinstance(stream, list) else stream
        handle = getattr(stream, "handle", None) or getattr(stream, "ptr", 0)
        is_captured = True  # or a blocking one is, and this is the default stream
        with contextlib.suppress(runtime.CUDARuntimeError):
            is_captured = runtime.streamIsCapturing(handle)
        if not is_captured:
            launch = self.names["cupy"].cuda.driver.launchKernel
            launch(self.delay.kernel.ptr, *[1] * 6, 0, handle, 0, 0)

    def end_captures(self, text: str, names: dict[str, Any]) -> None:
        """End captures that an error left open."""
        for name in re.findall(r"(\w+)\.begin_capture", text):
            handle = names[name].ptr if name in names else 0
            with contextlib.suppress(Exception):
                names[name].end_capture()
            with contextlib.suppress(Exception):
                self.names["runtime"].streamEndCapture(handle)


def show(kind: str, details: str, text: str) -> None:
    """Print how a program failed, and its lines."""
    print(f"    {kind}: {details}")
    for n, line in enumerate(text.splitlines(), 1):
        print(f"{n:6} {line}")


def judge(names: list[str], given: argparse.Namespace) -> int:
    """Run families; print what came of each; return how many programs failed."""
    one, chance, world = Judge(given.delay), random.Random(given.held), given.world
    alive = eval(WORLDS[world].alive, one.names)
    failed, begin = 0, time.monotonic()
    for at, name in enumerate(names):
        until = begin + given.seconds * (at + 1) / len(names) if given.seconds else math.inf
        count, refusals = 0, collections.Counter()
        failures: dict[str, list[tuple[int, str, str]]] = collections.defaultdict(list)
        for program in programs(name, given.sample, WORLDS[world]):
            if given.held:
                program = program._replace(text=held(program.text, chance))
            kind, details = one.run(program, WORLDS[world].devices - 1)
            count += 1
            if kind == "refused":
                refusals[re.sub(r"0x\w+|\d+", "#", details)[:90]] += 1
            elif kind:
                failures[kind].append((len(program.text), details, program.text))
            if (failures and given.first) or time.monotonic() > until:
                break
        failed += sum(map(len, failures.values()))
        text = "".join(f", {len(found)} {kind}" for kind, found in failures.items())
        print(f"{world:8} {name:16} {count:6} programs{text}")
        for refusal, n in refusals.most_common():
            print(f"         refused {n}: {refusal}")
        for kind, found in list(failures.items())[: given.shown]:
            show(kind, *min(found)[1:])
        if failures and given.first:
            break
    del alive
    print(f"{world}: {failed} programs failed, in {time.monotonic() - begin:.1f} s")
    return failed


def stress(names: list[str], given: argparse.Namespace) -> int:
    """Run families on threads at the same time; return how many programs and pairs failed."""
    one, chance = Judge(given.delay), random.Random(given.held)
    work = [p for name in names for p in programs(name, given.sample, WORLDS[given.world])]
    work = [p for p in work if p.end == "read" and "capture" not in p.text]
    if given.held:
        work = [p._replace(text=held(p.text, chance)) for p in work]
    chance.shuffle(work)

    @one.names["bridge"].primary_context()
    def run(part: list[Program]) -> list[tuple[str, str, str]]:
        return [(*one.execute(program, 0), program.text) for program in part]

    sys.setswitchinterval(1e-5)
    begin, parts = time.monotonic(), [work[i :: given.threads] for i in range(given.threads)]
    with conflicts() as found, ThreadPoolExecutor(given.threads) as threads:
        failed = [result for part in threads.map(run, parts) for result in part if result[0]]
    for pair in found[: given.shown]:
        print(f"    conflict: {pair}")
    for result in failed[: given.shown]:
        show(*result)
    seconds = time.monotonic() - begin
    print(f"{len(work)} programs, {len(failed)} failed, {len(found)} conflicts, in {seconds:.1f} s")
    return len(failed) + len(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", help=f"by commas, of {', '.join(FAMILIES)}")
    parser.add_argument("--world", choices=WORLDS, default="own", help="which streams there are")
    parser.add_argument("--sample", type=int, default=150, help="programs of each; 0: all")
    parser.add_argument("--seconds", type=float, default=0, help="for all families together")
    parser.add_argument("--shown", type=int, default=1, help="kinds of failures shown for each")
    parser.add_argument("--first", action="store_true", help="end with the first that fails")
    parser.add_argument("--threads", type=int, default=0, help="run programs at the same time")
    parser.add_argument("--held", type=int, default=0, help="seed of delays; 0: none")
    parser.add_argument("--delay", type=int, default=200, help="microseconds of each")
    given = parser.parse_args()
    if variable := WORLDS[given.world].variable:
        os.environ[variable] = "1"
    usual = [f for f in FAMILIES if not FAMILIES[f].is_control and f != "two_devices"]
    # From its first use on, a thread's default stream lets the bridge order more.
    usual.sort(key=lambda name: "pt" in FAMILIES[name].axes.get("c", ()))
    if WORLDS[given.world].devices > 1:
        usual = list(OF_DEVICES)
    names = given.families.split(",") if given.families else usual
    return int((stress if given.threads else judge)(names, given) > 0)


if __name__ == "__main__":
    sys.exit(main())

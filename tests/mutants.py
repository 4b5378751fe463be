"""Mistakes in the ordering and in the release, each in a copy of the package that must then fail.

What small programs can see must fail there (`support/programs.py`), the rest in a named test.

``python tests/mutants.py`` tries all of them; with words, those whose names have one.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Of `programs.py`, those that find a mistake: the first ones find most.
WORLDS = "own", "many", "blocking", "threads", "cupy", "pycuda", "devices"


class Mutant(NamedTuple):
    """A mistake, and the test that finds it where the small programs do not."""

    file: str
    function: str
    old: str  # with "(" at its end, a whole call
    new: str
    number: int = 1  # which one in the function
    test: str = ""


# For each file, functions and what a mistake changes there.  First come those that the small programs
# find; a test stands above what it finds.  `fences` has the lines that call `order`, too.
TABLE = r"""
interop/ordering.pyx
    order: note_unnamed_call( -> 0
    order_streams: order_libraries( -> 0
    order_streams: enter_capture( -> 0
    order_streams: note_capture( -> 0
    order_libraries: current == PER_THREAD -> False
    order_libraries: is_capturing(current) -> False
    order_libraries: non_blocking_count[waiting | awaited] -> False
    order_libraries: ended_count or -> 0 or
    order_libraries: blocking_count[waiting] and blocking_count[awaited] -> False
    order_libraries: False, per_thread_is_used -> False, False
    order_libraries: per_thread_is_used or blocking_count[awaited] > 0 -> per_thread_is_used
    order_library: fence( -> 0
    order_library: fence( #2 -> 0
    order_library: capture or with_blocking -> with_blocking
    order_with_each: record.context == context -> True
    order_with_each: pinned[7].next if count == 8 else NULL -> NULL
    order_reuse: blocking_count[BOTH] > 1 -> False
    order_reuse: order_library( -> 0
    order_reuse: order_library( #2 -> 0
    order_release: is_capturing(current) -> False
    order_release: order_streams( -> 0
    order_release: fence( -> 0
    order_release: fence( #2 -> 0
    begin_capture: enter_capture( -> 0
    end_capture: record.capture == capture -> record.handle == handle
    pipelines: what_a_capture_holds_back_is_shown_and_let_go_when_it_ends
    order: if kept_for_capture: -> if False:
    end_capture: release_kept_views( -> 0
    order_table: each_pair_of_streams_in_each_capture
    order_streams: wait == REFUSED -> False
    kind_of_wait: waiter and not of_waiter -> waiter
    kind_of_wait: waiter and not of_waiter -> not of_waiter
    kind_of_wait: of_awaited == capture_of( -> False
    order_with_one: record.capture == found -> False
    pipelines: any_stream_may_join_a_capture
    kind_of_wait: joins or -> False or
    pipelines: a_capture_leaves_other_captures_alone
    order_with_one: capture or record.capture == found -> record.capture == found
    pipelines: a_capture_that_was_not_seen_to_begin_is_refused
    order_with_one: return CAPTURE_ISOLATION -> return 0
    pipelines: beside_the_capture_of_a_blocking_stream_what_needs_the_default_one_is_refused
    order_reuse: if status: -> if False:
    pipelines: a_view_that_ends_in_the_capture_of_its_user_draws_nothing_in
    order_release: is_capturing(awaited) -> False
    pipelines: a_block_dropped_in_a_capture_is_not_reused_early
    order_release: is_capturing(waiter) -> False
    release: the_release_is_ordered_wherever_it_happens
    order_release: fence( #3 -> 0
    pipelines: the_end_of_a_capture_waits_for_the_default_stream_or_says_that_it_cannot
    end_capture: if status: -> if False:
interop/live_streams.pyx
    begin_stream: wait_for_default( -> 0
    remember: is_blocking(handle) -> True
    remember: record.library |= library -> record.library = library
    remember: record.pycuda = <PyObject *> stream -> pass
    end_record: default_waits_for( -> pass
    default_waits_for: cuEventRecord( -> 0
    default_waits_for: ended_count += 1 -> pass
    default_waits_for_ended: if status: -> if False:
    default_waits_for_ended: cuStreamWaitEvent( -> 0
    stream_ends: a_stream_is_followed_until_its_last_object_ends
    end_cupy_stream: getattr(self, "_foreign_stream_ref", None) is None -> True
    remember: record.pycuda is not NULL and record.library & library -> False
    remember: record.pycuda is not NULL and -> True and
    remember: record.objects += 1 -> record.objects = 1
    end_object: record.objects -= 1 -> pass
    end_object: is_destroyed or not record.objects -> not record.objects
    end_record: record.objects and not is_destroyed -> record.objects
    stream_ends: streams_from_before_the_import_are_followed
    remember: if not state -> if True
    all_programs: programs_that_threads_run_at_the_same_time_are_ordered
    end_record: not record.pins -> True
interop/streams.pyx
    fence: capture_of( -> 0
    named_streams: events_are_used_again_on_their_own_device
    fence: device_of( -> 0
interop/exporting.pyx
    exporting: in_a_capture_the_default_stream_is_a_consumer_as_well
    export: consumer or is_capturing(current) -> consumer
    exporting: the_consumer_of_a_copy_waits_for_it
    export: order( #2 -> 0
interop/importing.pyx
    exchange: the_exporters_stream_is_ordered
    import_exchanged: order( -> 0
    import_exchanged: order( #2 -> 0
    importing: dlpack_is_ordered_after_the_exporters_work
    import_dlpack: order( -> 0
interop/stream_functions.pyx
    named_streams: wait_stream_waits_for_events
    wait_stream: runtime.streamWaitEvent( -> None
    devices: streams_of_two_devices_are_ordered
    wait_stream: runtime.streamWaitEvent( #2 -> None
interop/views.pyx
    View: first_record is NULL -> True
    release: view.unnamed_calls != unnamed_calls -> False
    allocate: owner, ALL_STREAMS -> 0, ALL_STREAMS
    release: the_release_is_ordered_wherever_it_happens
    release: can_free_here( -> True
    release: the_release_in_a_cycle_with_its_stream_is_ordered
    release: isinstance(view.stream, FOLLOWED) and -> False and
    pipelines: a_block_dropped_in_a_capture_is_not_reused_early
    release: if CAPTURE_ERRORS -> if False and CAPTURE_ERRORS
"""
# A function or a class with its decorators, up to its name.
DEFINITION = re.compile(r"(?m)^(?:[ ]*@.*\n)*( *)(?:cp?def|def|class)\b[^\n(=:]*?\b(\w+) *[(:]")


PACKAGE = ROOT / "bridge"
FILES = sorted(path for path in PACKAGE.rglob("*.py*") if path.suffix in (".py", ".pyx"))
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text() for path in FILES}


@functools.cache
def functions_of(text: str) -> list[tuple[str, int, int]]:
    """Return the functions and classes of a file: name, start and end."""
    found = []
    for one in DEFINITION.finditer(text):
        # A line that is not further in ends it, but for the brackets of its first lines.
        end = re.compile(rf"(?m)^ {{0,{len(one[1])}}}[^ \n)#]").search(text, one.end())
        found.append((one[2], one.start(), end.start() if end else len(text)))
    return found


def end_of_call(text: str, start: int) -> int:
    """Return where the call ends that starts there."""
    depth = 0
    for place in range(text.index("(", start), len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if not depth:
            return place + 1
    raise AssertionError("no end")


def changed(mutant: Mutant) -> str:
    """Return the file of a mutant with its mistake."""
    text = SOURCES[mutant.file]
    spans = [at for name, *at in functions_of(text) if name == mutant.function]
    assert len(spans) == 1, f"{mutant.file} has {len(spans)} functions {mutant.function}"
    start, end = spans[0]
    found = [*re.finditer(r"(?<![\w.])" + re.escape(mutant.old), text[start:end])]
    assert len(found) >= mutant.number, f"{mutant.function} in {mutant.file} has no {mutant.old}"
    first = start + found[mutant.number - 1].start()
    last = end_of_call(text, first) if mutant.old[-1] == "(" else first + len(mutant.old)
    return text[:first] + mutant.new + text[last:]


def fences() -> Iterator[Mutant]:
    """Yield a mutant for each line of the package that orders two streams, without it."""
    for file, text in SOURCES.items():
        for call in re.finditer(r"(?<=\n) +(order|fence)\(", text):
            at, name = call.start(1), call[1]
            function, start, _ = [one for one in functions_of(text) if one[1] <= at < one[2]][-1]
            number = len(re.findall(rf"(?<![\w.]){name}\(", text[start:at])) + 1
            yield Mutant(file, function, f"{name}(", "0", number)


def named_test(file: str, test: str) -> str:
    """Return the id of a test of the table."""
    (path,) = (ROOT / "tests").glob(f"*/test_{file}.py")
    return f"{path.relative_to(ROOT)}::test_{test}"


def of_table() -> Iterator[Mutant]:
    """Yield the mutants of the table."""
    file = test = ""
    for line in TABLE.strip().splitlines():
        change = re.fullmatch(r"    (\w+): (.*?)(?: #(\d))? -> (.+)", line)
        if change:
            function, old, number, new = change.groups()
            yield Mutant(file, function, old, new.replace(r"\n", "\n"), int(number or 1), test)
        elif line[0] == " ":
            test = named_test(*line.strip().split(": "))
        else:
            file, test = line, ""


def name_of(mutant: Mutant) -> str:
    """Return the place and the change, by which a mutant is known."""
    number = f" #{mutant.number}" * (mutant.number > 1)
    return f"{mutant.file}: {mutant.function}: {mutant.old}{number} -> {mutant.new}"


MUTANTS = {name_of(mutant): mutant for mutant in [*fences(), *of_table()]}


class Workshop:
    """A copy of the package and its tests, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bridge", "tests", "docs"):
            ignored = shutil.ignore_patterns("*.c", "__*__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "setup.cfg", folder)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Python on the copy; return its status and what it printed."""
        folders = self.folder, self.folder / "tests/support", ROOT / "hostcuda/src"
        path = os.pathsep.join(map(str, folders))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        around = {"cwd": self.folder, "env": env, "timeout": 300, "errors": "replace"}
        done = subprocess.run([sys.executable, *arguments], capture_output=True, **around)
        return done.returncode, done.stdout + done.stderr

    def write(self, file: str, text: str) -> None:
        """Put a text in the place of a file, compiled if it is to be."""
        path = self.folder / "bridge" / file
        path.write_text(text)
        if path.suffix == ".pyx":
            status, said = self.run("-m", "cython", "-3", f"bridge/{file}")
            assert status == 0, said
            library = path.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
            include = f"-I{sysconfig.get_paths()['include']}"
            flags = "-O0", "-w", "-shared", "-fPIC", include, "-ldl"
            subprocess.run(["gcc", path.with_suffix(".c"), "-o", library, *flags], check=True)

    def fails(self, mutant: Mutant, sample: int = 300) -> str:
        """Return the world of small programs, or the test, that fails as it must; "" if none."""
        library = {path: path.read_bytes() for path in (self.folder / "bridge").rglob("*.so")}
        try:
            self.write(mutant.file, changed(mutant))
            if mutant.test:
                status, said = self.run("-m", "pytest", "-q", "-x", mutant.test)
                is_found = status < 0 or (status == 1 and "\nFAILED " in said)  # it may crash
                return mutant.test if is_found else ""
            for world in WORLDS:
                devices = "2" if world == "devices" else "1"
                driver = "-m", "hostcuda", "--check", "--pool", "--devices", devices
                options = "--world", world, "--sample", str(sample), "--first"
                status, said = self.run(*driver, "tests/support/programs.py", *options)
                if status == 1 and re.search(r"\n    (conflict|wrong number|error): ", said):
                    return world
            return ""
        finally:
            (self.folder / "bridge" / mutant.file).write_text(SOURCES[mutant.file])
            for path, content in library.items():
                path.write_bytes(content)


def main() -> int:
    """Try the mutants whose names have one of the command line's words; return how many survive."""
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder) / "copy")
        for name, mutant in MUTANTS.items():
            if any(word in name for word in sys.argv[1:] or [""]):
                found = workshop.fails(mutant)
                survivors += not found
                print(f"{name}: {found or 'SURVIVES'}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())

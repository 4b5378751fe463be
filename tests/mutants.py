"""Mistakes in the ordering and in the release, each in a copy of the package that must then fail.

A mutant names a file, a function in it, and a call or a few words in the function; a compiled file
is compiled again.  What random schedules can see must fail there, the rest in a named test.

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
SCHEDULES = (
    "import hostcuda; hostcuda.install(); import schedules; schedules.run({0}); "
    "schedules.run({0}, kind=schedules.Unnamed)"
)


class Mutant(NamedTuple):
    """A mistake, and the test that finds it where the schedules do not."""

    file: str
    function: str
    old: str  # with "(" at its end, a whole call
    new: str
    test: str = ""
    number: int = 1  # which one in the function


# A mistake, its place and what it changes there, and the test that finds it.  Each call that orders
# two streams, and each view whose release does, is a mutant of its own: below are their tests.
TABLE = r"""
a view for one stream that all may use now is ordered after that one
    interop/conversions.pyx: foreign_as_pycuda: type(base) is View -> False
the default stream does not wait for PyCUDA's side
    interop/ordering.pyx: order_with_pycuda: fence( -> 0
the default stream is not waited for by PyCUDA's side
    interop/ordering.pyx: order_with_pycuda: fence( #2 -> 0
non-blocking streams are not ordered with PyCUDA's side
    interop/ordering.pyx: order_with_each: order_with_one( -> 0
PyCUDA's side waits where it is to be waited for
    interop/ordering.pyx: order_with_one: record.handle if pycuda_waits -> record.handle if True
PyCUDA's side is waited for where it is to wait
    interop/ordering.pyx: order_with_one: record.handle if pycuda_waits -> record.handle if False
the default stream waits where it is to be waited for
    interop/ordering.pyx: order_with_pycuda: has_default and not pycuda_waits -> False
named streams are not ordered
    interop/ordering.pyx: order: fence( -> 0
a new stream does not wait for the default one
    interop/pycuda_streams.pyx: wait_for_default: fence( -> 0
    unnamed_streams: a_new_stream_waits_for_the_default_one
a stream that ends is forgotten
    interop/pycuda_streams.pyx: end_stream: stand_for( -> pass
    stream_ends: the_work_is_ordered
another capture's streams are drawn in
    interop/ordering.pyx: order_with_one: if found != capture -> if False
    unnamed_streams: in_a_capture_its_other_streams_are_ordered
an owner on a thread's stream does not wait for blocking ones
    interop/ordering.pyx: order_release: if of_thread #2 -> if False
    unnamed_streams: cupys_block_is_reused_after_the_work_on_every_stream
a block's next user does not wait for a blocking stream
    interop/ordering.pyx: order_reuse: default_waits_for_blocking( -> 0
    unnamed_streams: a_block_of_pycuda_allocator_is_reused_after_the_work_on_every_stream
a capture is like any other stream to the default one
    interop/ordering.pyx: order: is_outside( -> False
    pipelines: a_wait_for_what_is_outside_of_a_capture_is_refused
a fence records nothing
    interop/streams.pyx: fence: cuEventRecord( -> 0
a fence is not waited for
    interop/streams.pyx: fence: cuStreamWaitEvent( -> 0
the default stream does not wait for the release too
    interop/ordering.pyx: order_release: fence( -> 0
the owner's stream does not wait for the release
    interop/ordering.pyx: order_release: fence( #2 -> 0
a user needs no order
    interop/ordering.pyx: release_needs_order: user != 0 -> False
a non-blocking owner needs no order
    interop/ordering.pyx: release_needs_order: is_non_blocking( -> False
    named_streams: which_releases_order_streams
an owner in a capture is like any other
    interop/ordering.pyx: release_needs_order: is_capturing( -> False
unordered views are ordered at their end
    interop/ordering.pyx: release_needs_order: user == UNORDERED or owner == UNORDERED -> False
    release: an_unordered_view_keeps_no_streams
a release in a capture does not wait for its end
    interop/ordering.pyx: order_release: is_capturing(owner) or is_capturing(user) -> False
a release is not ordered within the graph
    interop/ordering.pyx: order_release: is_outside( -> True
events of all devices are one
    interop/streams.pyx: fence: device_of( -> 0
    named_streams: events_are_used_again_on_their_own_device
an exporter may leave another device current
    interop/importing.pyx: restore_after_exporter: cuCtxSetCurrent( -> 0
    importing: an_exporter_that_switches_the_device_changes_nothing
streams of two devices are not ordered
    interop/ordering.pyx: wait_stream: runtime.streamWaitEvent( -> None
    devices: streams_of_two_devices_are_ordered
a fence does not look for the capture of a blocking stream
    interop/streams.pyx: fence: capture_of( -> 0
    pipelines: a_block_stays_where_cuda_refuses_the_order
the collector ends streams before the views that need them
    interop/views.pyx: KeptStreams: @cython.no_gc -> #
    release: the_release_in_a_reference_cycle_is_ordered[stream in the cycle]
the collector clears views before their release
    interop/views.pyx: View: @cython.no_gc_clear -> #
    release: views_alive_at_exit_of_a_context_that_another_thread_made
memory is freed under whatever context is current
    interop/views.pyx: release: can_free_here( -> True
    release: the_release_is_ordered_wherever_it_happens
NVRTC's thread begins in Python
    compiler/nvrtc.py: compile_on_thread: run_under -> lambda *a: ({1}, {2}, {3}, run_under(*a))
    program: the_collector_has_a_context_where_nvrtcs_thread_begins
the release leaves its context current
    interop/views.pyx: release: leave_context( -> pass
    release: letting_go_leaves_the_current_device_as_it_is
a view takes its memory for held
    interop/views.pyx: is_held: Py_REFCNT(value) > 1 -> True
    release: memory_of_what_another_finalizer_saves_is_kept_and_let_go_later
what waits for a capture is freed in it
    interop/views.pyx: release: if CAPTURE_ERRORS -> if False and CAPTURE_ERRORS
memory is freed before its streams are ordered
    interop/views.pyx: release: try: #2 -> view.memory = view.source = None\n    try:
    release: streams_are_ordered_before_memory_is_freed

interop/conversions.pyx: foreign_as_pycuda, call 1 of order
    unnamed_streams: pycuda_reads_what_cupy_wrote
interop/exporting.pyx: array_interface, call 1 of new_view
    unnamed_streams: pycudas_block_is_reused_after_cupys_work
interop/exporting.pyx: array_interface, call 1 of order
    unnamed_streams: what_pycuda_wrote_is_read
interop/exporting.pyx: export, call 1 of order
    unnamed_streams: what_pycuda_wrote_is_read
interop/exporting.pyx: export, call 2 of order
    unnamed_streams: a_copy_is_exported_in_order
interop/exporting.pyx: export, call 3 of order
    unnamed_streams: a_copy_is_exported_in_order
interop/exporting.pyx: gpuarray_to_managed, call 1 of order
    exchange: pycudas_work_comes_before
interop/exporting.pyx: export_gpuarray, call 1 of new_view
    exchange: a_block_is_reused_after_the_consumers_work
interop/exporting.pyx: pycudas_stream, call 1 of order
    exchange: pycudas_work_comes_before
interop/importing.pyx: import_exchanged, call 1 of order
    exchange: the_exporters_stream_is_ordered
interop/importing.pyx: import_exchanged, call 2 of order
    exchange: the_exporters_stream_is_ordered
interop/ordering.pyx: wait_stream, call 1 of order
    named_streams: wait_stream_orders_any_two_streams
interop/views.pyx: release, call 1 of new_view
    pipelines: a_block_dropped_in_a_capture_is_not_reused_early
kernels/launching.pyx: order_before_launch, call 3 of order
    function: arguments_that_copy_are_taken
interop/ordering.pyx: __enter__, call 1 of order
    skcuda: work_queued_before_comes_first
interop/ordering.pyx: __exit__, call 1 of order
    skcuda: work_queued_later_comes_later
"""
# A function or a class with its decorators, up to its name.
DEFINITION = re.compile(r"(?m)^(?:[ ]*@.*\n)*( *)(?:cp?def|def|class)\b[^\n(=:]*?\b(\w+) *[(:]")


def sources() -> dict[str, str]:
    """Return the package's files and what they hold."""
    folder = ROOT / "bridge"
    paths = [*folder.rglob("*.py"), *folder.rglob("*.pyx")]
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(paths)}


SOURCES = sources()


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


def calls(pattern: str) -> Iterator[tuple[str, str, str, int, str]]:
    """Yield file, function, name, number and arguments of each call that a pattern finds."""
    for file, text in SOURCES.items():
        functions = functions_of(text)
        for call in re.finditer(pattern, text):
            at, name = call.start(1), call[1]
            function, start, _ = [one for one in functions if one[1] <= at < one[2]][-1]
            number = len(re.findall(rf"(?<![\w.]){name}\(", text[start:at])) + 1
            yield file, function, name, number, text[call.end() : end_of_call(text, at) - 1]


def without_fences() -> Iterator[Mutant]:
    """Yield a mutant for each line of the package that orders two streams, without that."""
    for file, function, name, number, given in calls(r"(?<=\n) +(order|fence)\("):
        yield Mutant(file, function, f"{name}(", f"({given})", number=number)


def unordered_views() -> Iterator[Mutant]:
    """Yield a mutant for each view with streams that its release orders, without these."""
    for file, function, name, number, given in calls(r"= (new_view)\("):
        new = re.sub(r"[\w.]+, [\w.]+(,\s+\w+(\(.*\))?\s*)\Z", r"UNORDERED, UNORDERED\1", given)
        if new != given:
            yield Mutant(file, function, f"{name}(", f"{name}({new})", number=number)


def named_test(file: str, test: str) -> str:
    """Return the id of a test of the table; "" for none."""
    if not file:
        return ""
    (path,) = (ROOT / "tests").glob(f"*/test_{file}.py")
    return f"{path.relative_to(ROOT)}::test_{test}"


def mutants() -> dict[str, Mutant]:
    """Return all by their names."""
    found, tests = {}, {}
    for place, *test in re.findall(r"(?m)^(\S+: \w+, call \d+ of \w+)\n    (\w+): (.+)", TABLE):
        tests[place] = named_test(*test)
    for kind, each in ("no fence", without_fences()), ("no order at the end", unordered_views()):
        for one in each:
            place = f"{one.file}: {one.function}, call {one.number} of {one.old[:-1]}"
            found[f"{kind}: {place}"] = one._replace(test=tests.pop(place, ""))
    assert not tests, f"of no call: {tests}"
    for row in re.finditer(
        r"(?m)^(\w.+)\n    (\S+): (\w+): (.+?)(?: #(\d))? -> (.+)(?:\n    (\w+): (.+))?", TABLE
    ):
        name, file, function, old, number, new, *test = row.groups("")
        new = new.replace(r"\n", "\n")
        found[name] = Mutant(file, function, old, new, named_test(*test), int(number or 1))
    return found


MUTANTS = mutants()


class Workshop:
    """A copy of the package and its tests, where one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bridge", "tests"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.c", "__*__")
            )
        shutil.copy(ROOT / "setup.cfg", folder)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Python on the copy; return its status and what it printed."""
        path = os.pathsep.join((str(self.folder), str(self.folder / "tests/support")))
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
        )
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

    def fails(self, mutant: Mutant, schedules: int = 3000) -> bool:
        """Tell whether a mutant's schedules, or its test, fail as they must."""
        library = {path: path.read_bytes() for path in (self.folder / "bridge").rglob("*.so")}
        try:
            self.write(mutant.file, changed(mutant))
            if not mutant.test:
                status, said = self.run("-W", "error", "-c", SCHEDULES.format(schedules))
                return status == 1 and "AssertionError: schedule" in said
            status, said = self.run("-m", "pytest", "-q", "-x", mutant.test)
            return status < 0 or (status == 1 and "\nFAILED " in said)  # it may crash
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
                failed = workshop.fails(mutant)
                survivors += not failed
                print("fails   " if failed else "SURVIVES", name, flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())

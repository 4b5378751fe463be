"""Mistakes in the ordering and in the release, each in a copy of the package that must then fail.

A mutant names a file, a function in it, and a call or a few words in the function; a compiled file
is compiled again.  What small programs can see must fail there (`support/programs.py`), the rest in
a named test.

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
WORLDS = "own", "many", "cupy", "pycuda", "blocking", "devices"


class Mutant(NamedTuple):
    """A mistake, and the test that finds it where the small programs do not."""

    file: str
    function: str
    old: str  # with "(" at its end, a whole call
    new: str
    test: str = ""
    number: int = 1  # which one in the function


# A mistake, its place and what it changes there, and the test that finds it.  Each call that orders
# two streams, and each view whose release does, is a mutant of its own: below are their tests.
TABLE = r"""
# ordering: a call
a call orders no libraries
    interop/ordering.pyx: order_streams: order_libraries( -> 0
a library does not wait for a stream
    interop/ordering.pyx: order_streams: order_library( -> 0
a stream does not wait for a library
    interop/ordering.pyx: order_streams: order_library( #2 -> 0
a library is waited for where it waits
    interop/ordering.pyx: order_streams: awaited, True -> awaited, False
a library waits where it is waited for
    interop/ordering.pyx: order_streams: waiter, False -> waiter, True
named streams are not ordered
    interop/ordering.pyx: order_streams: fence( -> 0
a named stream waits for no streams that have ended
    interop/ordering.pyx: order_streams: default_waits_for_ended( -> 0
a capture is like any other stream to the default one
    interop/ordering.pyx: order_streams: is_outside( -> False
a capture waits for streams outside
    interop/ordering.pyx: is_outside: of_waiter or not waiter -> not waiter
the default stream joins a capture
    interop/ordering.pyx: is_outside: not waiter -> False
any stream joins a capture
    interop/ordering.pyx: is_outside: is_captured_here(awaited) -> True
no stream joins a capture
    interop/ordering.pyx: is_outside: is_captured_here(awaited) -> False
wait_stream joins no capture
    interop/ordering.pyx: is_outside: joins or -> False or
calls without a stream are not counted
    interop/ordering.pyx: order: note_unnamed_call( -> 0
kept views wait for the end of their capture
    interop/ordering.pyx: order: if kept_for_capture and -> if False and
kept views are released in captures
    interop/ordering.pyx: order: not is_capturing(waiter) and not is_capturing(awaited) -> True
# ordering: libraries
the default stream is the hub of a capture
    interop/ordering.pyx: order_libraries: is_capturing(current) -> False
non-blocking streams need no order
    interop/ordering.pyx: order_libraries: non_blocking_count[first | second] -> False
only the first library's non-blocking streams need order
    interop/ordering.pyx: order_libraries: non_blocking_count[first | second] -> non_blocking_count[first]
only the second library's non-blocking streams need order
    interop/ordering.pyx: order_libraries: non_blocking_count[first | second] -> non_blocking_count[second]
streams that have ended need no order
    interop/ordering.pyx: order_libraries: ended_count or per_thread_is_used -> per_thread_is_used
a thread's default stream needs no order
    interop/ordering.pyx: order_libraries: ended_count or per_thread_is_used -> ended_count
blocking streams of both libraries need no order
    interop/ordering.pyx: order_libraries: blocking_count[first] and blocking_count[second] -> False
the hub does not wait
    interop/ordering.pyx: order_libraries: order_library( -> 0
the hub is not waited for
    interop/ordering.pyx: order_libraries: order_library( #2 -> 0
a thread's default stream is not waited for
    interop/ordering.pyx: order_libraries: fence( -> 0
blocking streams do not wait for a thread's default stream
    interop/ordering.pyx: order_libraries: per_thread_is_used or blocking_count[first] > 0 -> blocking_count[first] > 0
blocking streams do not wait for blocking streams
    interop/ordering.pyx: order_libraries: per_thread_is_used or blocking_count[first] > 0 -> per_thread_is_used
# ordering: a library
a library's ended streams are not waited for
    interop/ordering.pyx: order_library: default_waits_for_ended( -> 0
the default stream does not wait for a named one
    interop/ordering.pyx: order_library: fence( -> 0
a named stream does not wait for the default one
    interop/ordering.pyx: order_library: fence( #2 -> 0
a captured stream is ordered with the default one
    interop/ordering.pyx: order_library: other and capture == NO_CAPTURE -> other
the streams of a library are not ordered
    interop/ordering.pyx: order_library: order_with_each( -> 0
the streams that ended meanwhile are left out
    interop/ordering.pyx: order_library: non_blocking_count[libraries] or ended_count -> non_blocking_count[libraries]
the blocking streams of a capture are left out
    interop/ordering.pyx: order_library: capture or with_blocking -> with_blocking
blocking streams are left out
    interop/ordering.pyx: order_library: capture or with_blocking -> capture
the hub records nothing
    interop/ordering.pyx: order_with_each: cuEventRecord( -> 0
streams of other devices are ordered
    interop/ordering.pyx: order_with_each: record.context == context -> True
a stream waits for itself
    interop/ordering.pyx: order_with_each: record.handle != other -> True
both libraries' streams are ordered
    interop/ordering.pyx: order_with_each: record.library & libraries -> True
blocking streams of a capture are passed over
    interop/ordering.pyx: order_with_each: capture or with_blocking or -> with_blocking or
blocking streams are passed over
    interop/ordering.pyx: order_with_each: capture or with_blocking or -> capture or
all blocking streams are ordered
    interop/ordering.pyx: order_with_each: not record.is_blocking -> True
only eight streams are ordered
    interop/ordering.pyx: order_with_each: pinned[7].next if count == 8 else NULL -> NULL
records are removed while they are read
    interop/ordering.pyx: order_with_each: record.pins += 1 -> pass
    stream_ends: while_another_thread_orders
the last work of an ended stream is not waited for
    interop/ordering.pyx: order_with_one: library_waits or capture else -> True else
an ended stream is awaited where a library waits
    interop/ordering.pyx: order_with_one: library_waits or capture else -> capture else
a capture waits for ended streams
    interop/ordering.pyx: order_with_one: library_waits or capture else -> library_waits else
a stream that another library has destroyed is an error
    interop/ordering.pyx: order_with_one: if status: -> if False:
a library's streams record nothing
    interop/ordering.pyx: order_with_one: cuEventRecord( -> 0
a library's streams are not ordered
    interop/ordering.pyx: order_with_one: cuStreamWaitEvent( #2 -> 0
the hub waits where a library is to wait
    interop/ordering.pyx: order_with_one: record.handle if library_waits else other -> other
another capture's streams are drawn in
    interop/ordering.pyx: order_with_one: if found != capture -> if False
streams outside of a capture are refused in it
    interop/ordering.pyx: order_with_one: capture or record.capture -> record.capture
the default stream stands for no captured stream
    interop/ordering.pyx: order_with_one: record.capture == found -> False
a capture that begins is refused
    interop/ordering.pyx: order_with_one: record.capture == <uint64_t> ANY_CAPTURE -> False
a capture that CuPy does not know of is passed over
    interop/ordering.pyx: order_with_one: return CAPTURE_ISOLATION -> return 0
# ordering: releases
a block's next user does not wait for its last one
    interop/ordering.pyx: order_reuse: order_library( -> 0
a block's next user does not wait for a blocking stream
    interop/ordering.pyx: order_reuse: blocking_count[BOTH] > 1 -> False
a release needs no order for non-blocking streams
    interop/ordering.pyx: streams_need_order: non_blocking_count[BOTH] > 0 -> False
a release needs no order for ended streams
    interop/ordering.pyx: streams_need_order: ended_count > 0 -> False
a release needs no order for blocking streams
    interop/ordering.pyx: streams_need_order: blocking_count[BOTH] > 1 -> False
a release needs no order for a thread's default stream
    interop/ordering.pyx: streams_need_order: per_thread_is_used -> False
unordered views are ordered at their end
    interop/ordering.pyx: order_release: awaited == UNORDERED -> False
a release in a capture does not wait for its end
    interop/ordering.pyx: order_release: is_capturing(current) -> False
a release in a capture orders none of its streams
    interop/ordering.pyx: order_release: order_streams( -> 0
a release in a capture draws in other streams
    interop/ordering.pyx: order_release: capture_of(awaited) == capture_of(current) -> True
memory that is released in a capture is freed
    interop/ordering.pyx: order_release: return CAPTURE_ISOLATION -> return 0
a release orders nothing
    interop/ordering.pyx: order_release: order_streams( #2 -> 0
# ordering: captures
the default stream does not stand for a stream that is captured
    interop/ordering.pyx: begin_capture: stand_for( -> pass
a capture is not noted while it begins
    interop/ordering.pyx: begin_capture: note_capture( -> 0
a capture is not noted
    interop/ordering.pyx: begin_capture: note_capture( #2 -> 0
a capture's end is not noted
    interop/ordering.pyx: end_capture: note_capture( -> 0
after a capture, the stream does not wait for the default one
    interop/ordering.pyx: end_capture: wait_for_default( -> 0
kept views are not released when a capture ends
    interop/ordering.pyx: end_capture: release_kept_views( -> 0
# live streams
PyCUDA's new streams are not known
    interop/live_streams.pyx: init_pycuda_stream: begin_stream( -> 0
CuPy's new streams are not known
    interop/live_streams.pyx: init_cupy_stream: begin_stream( -> 0
CuPy's streams end unnoticed
    interop/live_streams.pyx: end_cupy_stream: end_records( -> 0
other records of CuPy's streams stay when they end
    interop/live_streams.pyx: end_cupy_stream: getattr(self, "_foreign_stream_ref", None) is None -> False
a view of a stream ends it
    interop/live_streams.pyx: end_cupy_stream: getattr(self, "_foreign_stream_ref", None) is None -> True
CuPy's objects for other streams end unnoticed
    interop/live_streams.pyx: end_external_stream: end_records( -> 0
an object for a captured stream waits for the default one
    interop/live_streams.pyx: begin_stream: is_capturing(record.handle) -> False
a new stream does not wait for those that have ended
    interop/live_streams.pyx: begin_stream: default_waits_for_ended( -> 0
a new stream does not wait for the default one
    interop/live_streams.pyx: begin_stream: wait_for_default( -> 0
an object that is initialized twice has two records
    interop/live_streams.pyx: remember: record.stream == <PyObject *> stream and -> False and
no stream is blocking
    interop/live_streams.pyx: remember: not state and is_blocking(handle) -> False
all streams are blocking
    interop/live_streams.pyx: remember: not state and is_blocking(handle) -> True
a stream of another device has the record
    interop/live_streams.pyx: record_of: or record.context != context -> or False
a new blocking stream does not wait for the default one
    interop/live_streams.pyx: wait_for_default: (blocking_count[BOTH] < 2 or not unnamed_calls) -> True
a new stream is not fenced
    interop/live_streams.pyx: wait_for_default: fence( -> 0
a new stream of another device leaves that device current
    interop/live_streams.pyx: wait_for_default: is_set( #2 -> pass
PyCUDA's streams end unnoticed
    interop/live_streams.pyx: end_stream: end_records( -> pass
a record that a thread still reads is freed
    interop/live_streams.pyx: remove: record.pins -> False
    all_programs: programs_that_threads_run_at_the_same_time_are_ordered
a stream that ends is forgotten
    interop/live_streams.pyx: end_records: stand_for( -> pass
other records of a destroyed stream stay
    interop/live_streams.pyx: end_records: is_destroyed and -> False and
a stream that ends takes other devices' records with it
    interop/live_streams.pyx: end_records: record.context != context -> False
a stream that ends in its capture is waited for
    interop/live_streams.pyx: stand_for: is_capturing(record.handle) -> False
an ended stream's work is not recorded
    interop/live_streams.pyx: stand_for: cuEventRecord( -> 0
an ended stream's work waits for a later call
    interop/live_streams.pyx: stand_for: default_waits_for_ended( -> pass
an ended stream is not counted
    interop/live_streams.pyx: stand_for: ended_count += 1 -> pass
an ended stream of another device leaves that device current
    interop/live_streams.pyx: stand_for: is_set( #2 -> pass
other devices' ended streams are waited for
    interop/live_streams.pyx: default_waits_for_ended: record.context != context -> False
the default stream is used beside a capture of a blocking stream
    interop/live_streams.pyx: default_waits_for_ended: if status: -> if False:
the default stream does not wait for ended streams
    interop/live_streams.pyx: default_waits_for_ended: cuStreamWaitEvent( -> 0
# fences
a fence records nothing
    interop/streams.pyx: fence: cuEventRecord( -> 0
a fence is not waited for
    interop/streams.pyx: fence: cuStreamWaitEvent( -> 0
a fence does not look for the capture of a blocking stream
    interop/streams.pyx: fence: capture_of( -> 0
events of all devices are one
    interop/streams.pyx: fence: device_of( -> 0
    named_streams: events_are_used_again_on_their_own_device
# conversions
a view for one stream is one for all where it is passed on
    interop/conversions.pyx: foreign_as_pycuda: note_unnamed_call( -> 0
a view in PyCUDA is not ordered
    interop/conversions.pyx: view_in_pycuda: order_before_pycuda( -> 0
a view for one stream is released after no stream
    interop/conversions.pyx: view_in_pycuda: handle_of(stream, "as_pycuda") -> UNORDERED
a view of PyCUDA's memory is not released by its record
    interop/conversions.pyx: view_in_pycuda: is not View -> is View
a wrapped function's stream leaves out the default one
    interop/conversions.pyx: call_with_gpuarrays: [0, named] -> [named]
    wrapping: a_stream_that_is_passed_is_part_of_the_call
# exports, imports
a consumer's stream is known
    interop/exporting.pyx: export: record_of(consumer) is NULL and -> False and
a consumer's default stream is not ordered in a capture
    interop/exporting.pyx: export: consumer or is_capturing(current) -> consumer
an exporter may leave another device current
    interop/importing.pyx: restore_after_exporter: cuCtxSetCurrent( -> 0
    importing: an_exporter_that_switches_the_device_changes_nothing
streams of two devices are not ordered
    interop/stream_functions.pyx: wait_stream: runtime.streamWaitEvent( -> None
    devices: streams_of_two_devices_are_ordered
another device's stream joins a capture
    interop/stream_functions.pyx: wait_stream: is_outside( -> False
# launches
a launch on a named stream is unordered with the default one
    kernels/launching.pyx: choose_streams: config.is_foreign and has_pycuda_memory -> False
    unnamed_streams: a_kernel_on_a_stream_of_cupys_is_ordered_with_the_default_one
a launch in a capture is ordered with the default stream
    kernels/launching.pyx: choose_streams: not is_capturing(streams.launch) -> True
    graphs: under_run_a_capture_stays_on_its_stream
PyCUDA's kernels follow it while views are alive
    kernels/launching.pyx: choose_streams: views_are_alive() -> False
PyCUDA's kernels follow it with CuPy's arrays
    kernels/launching.pyx: choose_streams: packed.has_other_arrays -> False
PyCUDA's kernels follow it on other streams
    kernels/launching.pyx: choose_streams: packed.has_handlers or config.is_foreign -> packed.has_handlers
bare addresses are not PyCUDA's
    kernels/launching.pyx: choose_streams: packed.has_pycuda_memory or follows_pycuda -> packed.has_pycuda_memory
a launch waits for all streams where one is named
    kernels/launching.pyx: choose_streams: has_pycuda_memory and not config.is_named -> has_pycuda_memory
PyCUDA's streams do not wait for a launch
    kernels/launching.pyx: order_after_launch: streams.others -> UNORDERED
a captured kernel is not kept
    kernels/launching.pyx: launch: keep_for_graph( -> 0
    graphs: a_captured_kernel_is_unloaded_after_its_graph
# views
a view needs no order at its end
    interop/views.pyx: __dealloc__: not streams_need_order() -> True
a block is not held
    interop/views.pyx: __dealloc__: is_held(<PyObject *> self.block) -> True
a view takes its memory for held
    interop/views.pyx: is_held: Py_REFCNT(value) > 1 -> True
    release: memory_of_what_another_finalizer_saves_is_kept_and_let_go_later
a view for one stream stays so
    interop/views.pyx: release: view.unnamed_calls != unnamed_calls -> False
a view's stream has not ended
    interop/views.pyx: release: is_followed(view.stream) and -> False and
a view's stream has ended
    interop/views.pyx: release: is_followed(view.stream) and record_of(awaited) is NULL -> True
third libraries' streams are followed
    interop/views.pyx: is_followed: (drv.Stream, *CUPY_STREAMS) -> object
CuPy's streams are not followed
    interop/views.pyx: is_followed: (drv.Stream, *CUPY_STREAMS) -> drv.Stream
the release orders no streams
    interop/views.pyx: release: order_release( -> 0
what waits for a capture is freed in it
    interop/views.pyx: release: if CAPTURE_ERRORS -> if False and CAPTURE_ERRORS
memory is freed before its streams are ordered
    interop/views.pyx: release: try: #2 -> view.memory = view.source = None\n    try:
memory is freed under whatever context is current
    interop/views.pyx: release: can_free_here( -> True
    release: the_release_is_ordered_wherever_it_happens
the release leaves its context current
    interop/views.pyx: release: leave_context( -> pass
    release: letting_go_leaves_the_current_device_as_it_is
host memory is not kept for the default stream
    interop/views.pyx: release: {0, current_stream(device_id)} -> {current_stream(device_id)}
    release_of_users: pinned_memory_goes_back_to_the_host_after_the_work
host memory is not kept for CuPy's current stream
    interop/views.pyx: release: {0, current_stream(device_id)} -> {0}
    release_of_users: pinned_memory_goes_back_to_the_host_after_the_work
a view does not keep its block
    interop/views.pyx: new_view: view.block = -> unused =
host memory waits for no streams
    interop/views.pyx: record_memory: 0, ALL_STREAMS -> UNORDERED, ALL_STREAMS
    release_of_users: pinned_memory_goes_back_to_the_host_after_the_work
a block of PyCUDA's pool is reused at once
    interop/views.pyx: record_memory: ALL_PYCUDA_STREAMS, ALL_CUPY_STREAMS -> UNORDERED, UNORDERED
a block of PyCUDA's pool is reused after PyCUDA's work
    interop/views.pyx: record_memory: ALL_PYCUDA_STREAMS, ALL_CUPY_STREAMS -> ALL_PYCUDA_STREAMS, ALL_PYCUDA_STREAMS
a block that PyCUDA's array wraps by hand is reused at once
    interop/views.pyx: record_memory: ALL_STREAMS, ALL_STREAMS -> UNORDERED, UNORDERED
a block is allocated on CuPy's current stream
    interop/views.pyx: allocate: null_stream.use( -> pass
a block is used at once
    interop/views.pyx: allocate: order_reuse( -> 0
the collector clears views before their release
    interop/views.pyx: View: @cython.no_gc_clear -> #
    release: views_alive_at_exit_of_a_context_that_another_thread_made
NVRTC's thread begins in Python
    compiler/nvrtc.py: compile_on_thread: run_under -> lambda *a: ({1}, {2}, {3}, run_under(*a))
    program: the_collector_has_a_context_where_nvrtcs_thread_begins

interop/exporting.pyx: gpuarray_to_managed, call 1 of order
    exchange: pycudas_work_comes_before
interop/exporting.pyx: pycudas_stream, call 1 of order
    exchange: pycudas_work_comes_before
interop/importing.pyx: import_dlpack, call 1 of order
    importing: dlpack_is_ordered_after_the_exporters_work
interop/importing.pyx: import_dlpack, call 2 of order
    importing: dlpack_is_ordered_after_the_exporters_work
interop/importing.pyx: import_exchanged, call 1 of order
    exchange: the_exporters_stream_is_ordered
interop/importing.pyx: import_exchanged, call 2 of order
    exchange: the_exporters_stream_is_ordered
interop/views.pyx: release, call 1 of new_view
    pipelines: a_block_dropped_in_a_capture_is_not_reused_early
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
        given = re.split(r",\s+", given.strip())
        new = ", ".join([*given[:5], "UNORDERED", "UNORDERED", *given[7:]])
        if given[5:7] != ["UNORDERED", "UNORDERED"]:
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
    """A copy of the package and its tests, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bridge", "tests", "docs"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.c", "__*__")
            )
        shutil.copy(ROOT / "setup.cfg", folder)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Python on the copy; return its status and what it printed."""
        folders = self.folder, self.folder / "tests/support", ROOT / "hostcuda/src"
        path = os.pathsep.join(map(str, folders))
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

    def judge(self, world: str, sample: int) -> tuple[int, str]:
        """Run small programs of a world on the copy, until one fails."""
        driver = [
            "-m",
            "hostcuda",
            "--check",
            "--pool",
            "--devices",
            "2" if world == "devices" else "1",
        ]
        options = ["--world", world, "--sample", str(sample), "--first"]
        return self.run(*driver, "tests/support/programs.py", *options)

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
                status, said = self.judge(world, sample)
                if status == 1 and re.search(r"\n    (conflict|wrong number): ", said):
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

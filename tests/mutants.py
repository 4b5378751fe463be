"""Mistakes in the ordering and in the release, each in a copy of the package that must then fail.

A mutant is a text in one of the package's files, and what takes its place; a compiled file is
compiled again.  What random schedules can see must fail there, the rest in a named test.

``python tests/mutants.py`` tries all of them; with words, those whose names have one.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
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
    start: int  # where in the file
    old: str
    new: str
    test: str = ""


EXCHANGE, ORDER, RELEASE, CAPTURES = (
    "test_exchange.py::test_",
    "test_unnamed_streams.py::test_",
    "test_release.py::test_",
    "test_pipelines.py::test_",
)
# What the schedules do not do.
BY_LINE = {
    "fence(found.handle, 0)": ORDER + "a_new_stream_waits_for_the_default_one",
    "order(consumer, here)": ORDER + "a_copy_is_exported_in_order",
    "order(0 if can_wait else here, PYCUDA)": ORDER + "what_pycuda_wrote_is_read",
    "order(consumer, PYCUDA)": ORDER + "what_pycuda_wrote_is_read",
    "order(here, PYCUDA)  # CuPy copies": ORDER + "a_copy_is_exported_in_order",
    "order(here, PYCUDA)  # a consumer": EXCHANGE + "pycudas_work_comes_before",
    "order(<Stream> out[0], PYCUDA)": EXCHANGE + "pycudas_work_comes_before",
    "order(waiter, 0 if <Stream> awaited": EXCHANGE + "the_exporters_stream_is_ordered",
    "            order(waiter, handle_of(stream": EXCHANGE + "the_exporters_stream_is_ordered",
    "order(first, second)": "test_named_streams.py::test_wait_stream_orders_any_two_streams",
    "fence(0, streams[index].handle)": ORDER
    + "a_block_of_pycuda_allocator_is_reused_after_the_work_on_every_stream",
    "order(there, 0)": "test_function.py::test_arguments_that_copy_are_taken",
    "order(PYCUDA, 0)": ORDER + "pycuda_reads_what_cupy_wrote",
    "# what is given": "test_skcuda.py::test_work_queued_before_comes_first",
    "# what is returned": "test_skcuda.py::test_work_queued_later_comes_later",
}


def sources() -> dict[str, str]:
    """Return the package's files and what they hold."""
    folder = ROOT / "bridge"
    paths = [*folder.rglob("*.py"), *folder.rglob("*.pyx")]
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(paths)}


SOURCES = sources()


def mutant(old: str, new: str, test: str = "") -> Mutant:
    """Return a mutant by a text that stands in the package once."""
    (place,) = (
        (file, text.index(old)) for file, text in SOURCES.items() for _ in text.split(old)[1:]
    )
    return Mutant(*place, old, new, test)


def without_fences() -> dict[str, Mutant]:
    """Return a mutant for each line of the package that orders two streams, without that."""
    found = {}
    for file, text in SOURCES.items():
        for call in re.finditer(r"(?<=\n) +((?:order|fence)\().*", text):
            name = f"no fence: {file}, {call[0].strip()}, {len(found)}"
            test = next((test for line, test in BY_LINE.items() if line in call[0]), "")
            found[name] = Mutant(file, call.start(1), call[1], "(", test)  # its arguments only
    return found


MUTANTS = {
    **without_fences(),
    **{
        f"no order at the end: {old}": mutant(old, new)
        for old, new in (
            ("array.nbytes, here, waiter,", "array.nbytes, UNORDERED, UNORDERED,"),
            ("nbytes, awaited, waiter, kept)\n    return", "nbytes, -1, -1, kept)\n    return"),
            ('"], awaited, waiter, kept', '"], UNORDERED, UNORDERED, kept'),
            ("device_id, 0, 0, PYCUDA, None)", "device_id, 0, UNORDERED, UNORDERED, None)"),
        )
    },
    "no order at the end: of what is exported": mutant(
        "device_id, nbytes, PYCUDA, here, kept)",
        "device_id, 0, UNORDERED, UNORDERED, kept)",
        ORDER + "pycudas_block_is_reused_after_cupys_work",
    ),
    "no order at the end: of what is lent": mutant(
        "device_id, nbytes, PYCUDA, user, kept)",
        "device_id, 0, UNORDERED, UNORDERED, kept)",
        EXCHANGE + "a_block_is_reused_after_the_consumers_work",
    ),
    "a view for one stream that all may use now is ordered after that one": mutant(
        "type(base) is View and (<View> base).user > 0", "False"
    ),
    "the default stream is not ordered with PyCUDA's side": mutant(
        "        status = order_default(other, pycuda_waits)\n", "        pass\n"
    ),
    "non-blocking streams are not ordered with PyCUDA's side": mutant(
        "            if status or handle == other:", "            if True:"
    ),
    "PyCUDA's side waits where it is to be waited for": mutant(
        "            elif pycuda_waits:\n", "            elif True:\n"
    ),
    "PyCUDA's side is waited for where it is to wait": mutant(
        "            elif pycuda_waits:\n", "            elif False:\n"
    ),
    "the default stream waits where it is to be waited for": mutant(
        "fence(0, other) if default_waits else", "fence(0, other) if True else"
    ),
    "the default stream is waited for where it is to wait": mutant(
        "fence(0, other) if default_waits else", "fence(0, other) if False else"
    ),
    "named streams are not ordered": mutant("else fence(waiter, awaited)", "else 0"),
    "a stream that ends is forgotten": mutant(
        "    if not forget(self, &found) or",
        "    if True or",
        ORDER + "a_stream_that_ends_leaves_its_work_ordered",
    ),
    "another capture's streams are drawn in": mutant(
        "if capture_of(handle) != capture:",
        "if False:",
        ORDER + "in_a_capture_its_other_streams_are_ordered",
    ),
    "an owner on a thread's stream does not wait for blocking ones": mutant(
        "        if of_thread:\n",
        "        if False:\n",
        ORDER + "cupys_block_is_reused_after_the_work_on_every_stream",
    ),
    "a block's next user does not wait for a blocking stream": mutant(
        "if status := default_waits_for_blocking():",
        "if status := 0:",
        ORDER + "a_block_of_pycuda_allocator_is_reused_after_the_work_on_every_stream",
    ),
    "a capture is like any other stream to the default one": mutant(
        "elif not is_capturing(waiter or awaited):", "elif True:"
    ),
    "a fence records nothing": mutant("status = cuEventRecord(event, awaited)", "pass"),
    "a fence is not waited for": mutant("status = cuStreamWaitEvent(waiter, event, 0)", "pass"),
    "the default stream does not wait for the release too": mutant(
        "    elif user:\n        status = fence(0, user)", "    elif user:\n        pass"
    ),
    "the owner's stream does not wait for the release": mutant(
        "        status = fence(owner, user)\n    return status", "        pass\n    return status"
    ),
    "a user needs no order": mutant("return user != 0 or (", "return ("),
    "a non-blocking owner needs no order": mutant(
        "or is_non_blocking(owner))",
        "or False)",
        "test_named_streams.py::test_which_releases_order_streams",
    ),
    "an owner in a capture is like any other": mutant(
        "(is_capturing(owner) or is_non",
        "(False or is_non",
    ),
    "unordered views are ordered at their end": mutant(
        "    if user == UNORDERED or owner == UNORDERED:\n        return False",
        "    if False:\n        return False",
        RELEASE + "an_unordered_view_keeps_no_streams",
    ),
    "a release in a capture does not wait for its end": mutant(
        "    if of_owner or of_user:\n", "    if False:\n"
    ),
    "a release is not ordered within the graph": mutant(
        "elif owner != user and of_owner == of_user:", "elif False:"
    ),
    "a release does not look for the capture of a blocking stream": mutant(
        "        return CAPTURE_IMPLICIT\n    capture_of(0, &status)\n",
        "        return CAPTURE_IMPLICIT\n",
        CAPTURES + "a_block_stays_where_cuda_refuses_the_order",
    ),
    "events of all devices are one": mutant(
        "    cdef int device_id = device_of(cuda_current())  # events",
        "    cdef int device_id = 0  #",
        "test_named_streams.py::test_events_are_used_again_on_their_own_device",
    ),
    "an exporter may leave another device current": mutant(
        "    if cuda_current() != current:\n        cuCtxSetCurrent(current)\n    return 0",
        "    return 0",
        "test_importing.py::test_an_exporter_that_switches_the_device_changes_nothing",
    ),
    "streams of two devices are not ordered": mutant(
        "runtime.streamWaitEvent(first, event.ptr)",
        "pass",
        "test_devices.py::test_streams_of_two_devices_are_ordered",
    ),
    "a captured stream waits for one outside": mutant(
        "is_outside = is_capturing(waiter) and not is_capturing(awaited)",
        "is_outside = False",
        CAPTURES + "a_wait_for_what_is_outside_of_a_capture_is_refused",
    ),
    "the collector ends streams before the views that need them": mutant(
        "@cython.no_gc  # in a cycle",
        "# in a cycle",
        RELEASE + "the_release_in_a_reference_cycle_is_ordered[stream in the cycle]",
    ),
    "the collector clears views before their release": mutant(
        "@cython.no_gc_clear  # the",
        "# the",
        RELEASE + "views_alive_at_exit_of_a_context_that_another_thread_made",
    ),
    "memory is freed under whatever context is current": mutant(
        "    cdef bint is_elsewhere = not is_entered(device_id)\n",
        "    cdef bint is_elsewhere = False\n",
        RELEASE + "the_release_is_ordered_wherever_it_happens",
    ),
    "NVRTC's thread begins in Python": mutant(
        "_thread.start_new_thread(run_under, (drv.Context.get_current(), work, ended))",
        "threading.Thread(target=run_under, args=(drv.Context.get_current(), work, ended)).start()",
        "test_program.py::test_the_collector_has_a_context_where_nvrtcs_thread_begins",
    ),
    "the release leaves its context current": mutant(
        "        if is_elsewhere:\n            leave(",
        "        if False:\n            leave(",
        RELEASE + "letting_go_leaves_the_current_device_as_it_is",
    ),
    "a view takes its memory for held": mutant(
        "return Py_REFCNT(value) > 1",
        "return True",
        RELEASE + "memory_of_what_another_finalizer_saves_is_kept_and_let_go_later",
    ),
    "what waits for a capture is not ordered then": mutant(
        "device_id, 0, view.owner, view.user, None",
        "device_id, 0, UNORDERED, UNORDERED, None",
        CAPTURES + "a_block_dropped_in_a_capture_is_not_reused_early",
    ),
    "what waits for a capture is freed in it": mutant(
        "if CAPTURE_ERRORS <= status < CAPTURE_ERRORS + 9:", "if False:"
    ),
    "memory is freed before its streams are ordered": mutant(
        "    try:\n        if needs_order(view.owner, view.user):",
        "    try:\n        view.memory = view.source = None\n"
        "        if needs_order(view.owner, view.user):",
        RELEASE + "streams_are_ordered_before_memory_is_freed",
    ),
}


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
        text = SOURCES[mutant.file]
        assert text.startswith(mutant.old, mutant.start)
        changed = text[: mutant.start] + mutant.new + text[mutant.start + len(mutant.old) :]
        library = {path: path.read_bytes() for path in (self.folder / "bridge").rglob("*.so")}
        try:
            self.write(mutant.file, changed)
            if not mutant.test:
                status, said = self.run("-W", "error", "-c", SCHEDULES.format(schedules))
                return status == 1 and "AssertionError: schedule" in said
            file, _, test = mutant.test.partition("::")
            (path,) = self.folder.glob(f"tests/*/{file}")
            status, said = self.run("-m", "pytest", "-q", "-x", f"{path}::{test}")
            return status < 0 or (status == 1 and "\nFAILED " in said)  # it may crash
        finally:
            (self.folder / "bridge" / mutant.file).write_text(text)
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

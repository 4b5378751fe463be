"""Mistakes in the ordering and in the release, each in a copy of the package that must then fail.

A mutant is a text in one of the package's files, and what takes its place; a compiled file is
compiled again.  What random schedules can see must fail there, the rest in a named test.

``python tests/mutants.py`` tries all of them; with words, those whose names have one.
"""

from __future__ import annotations

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
SCHEDULES = "import hostcuda; hostcuda.install(); import ordering; ordering.run({})"


class Mutant(NamedTuple):
    """A mistake, and the test that finds it where the schedules do not."""

    file: str
    start: int  # where in the file
    old: str
    new: str
    test: str = ""


BY_ARGUMENT = {
    "handle": "test_run.py::test_a_block_is_reused_after_the_work_on_every_stream",
    "theirs": "test_wrapping.py",
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
            # Streams that the schedules have not.
            argument = re.search(r"\b(?:handle|theirs)\b", call[0])
            test = BY_ARGUMENT[argument[0]] if argument else ""
            found[name] = Mutant(file, call.start(1), call[1], "(", test)  # its arguments only
    return found


RELEASE, STREAMS = "test_release.py::test_", "test_streams.py::test_"
CAPTURES = "test_pipelines.py::test_"

MUTANTS = {
    **without_fences(),
    **{
        f"no order at the end: {old}": mutant(old, new)
        for old, new in (
            ("array.nbytes, current.ptr, waiter,", "array.nbytes, 0, 0,"),
            ("nbytes, awaited, waiter, kept)\n    return", "nbytes, 0, 0, kept)\n    return"),
            ('"], awaited, waiter, kept', '"], 0, 0, kept'),
            ("keep_at_home(block, device_id, 0, stream,", "keep_at_home(block, device_id, 0, 0,"),
        )
    },
    "the default stream follows blocking ones by itself": mutant(
        "    elif waiter:\n",
        "    elif awaited:\n"
        "        cuStreamGetFlags(awaited, &flags)\n"
        "        if not flags & NON_BLOCKING:\n"
        "            return 0\n"
        "    elif waiter:\n",
    ),
    "non-blocking streams follow the default one": mutant(
        "if status or not flags & NON_BLOCKING:", "if True:"
    ),
    "blocking streams follow every other": mutant(
        "    if waiter and awaited:\n",
        "    if waiter and awaited:\n"
        "        cuStreamGetFlags(waiter, &flags)\n"
        "        if not flags & NON_BLOCKING:\n"
        "            return 0\n",
    ),
    "a capture is like any other stream to the default one": mutant(
        "elif is_capturing(waiter or awaited):", "elif False:"
    ),
    "a fence records nothing": mutant("status = cuEventRecord(event, awaited)", "pass"),
    "a fence is not waited for": mutant("status = cuStreamWaitEvent(waiter, event, 0)", "pass"),
    "the default stream does not wait for the release too": mutant(
        "if not status and default_too:", "if False:"
    ),
    "a user needs no order": mutant("return user != 0 or (", "return ("),
    "a non-blocking owner needs no order": mutant("or is_non_blocking(owner))", "or False)"),
    "an owner in a capture is like any other": mutant(
        "(is_capturing(owner) or is_non", "(False or is_non"
    ),
    "unordered views are ordered at their end": mutant(
        "if user < 0 or owner < 0:", "if False:", RELEASE + "an_unordered_view_keeps_no_streams"
    ),
    "nothing stands in for the per-thread stream": mutant("if user == PER_THREAD:", "if False:"),
    "a release in a capture does not wait for its end": mutant(
        "if captured or is_capturing(user) or is_capturing(owner):", "if False:"
    ),
    "the stream that is current at the release may be captured": mutant(
        "if captured or is_capturing(user)",
        "if is_capturing(user)",
        CAPTURES + "a_block_of_others_dropped_in_a_capture",
    ),
    "the stream that was current at the release may be captured": mutant(
        "captured = captured or is_capturing(streams.kept[2].ptr)",
        "pass",
        CAPTURES + "what_waits_is_not_tried_beside_the_capture_that_made_it_wait",
    ),
    "streams of two devices are not ordered": mutant(
        "runtime.streamWaitEvent(first, event.ptr)",
        "pass",
        "test_devices.py::test_streams_of_two_devices_are_ordered",
    ),
    "a captured stream waits for one outside": mutant(
        "if is_capturing(waiter) and not is_capturing(awaited):  # CUDA",
        "if False:  # CUDA",
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
        RELEASE + "the_release_in_a_reference_cycle_is_ordered",
    ),
    "memory is freed under whatever context is current": mutant(
        "    if away:\n        try:\n            enter",
        "    away = False\n    if away:\n        try:\n            enter",
        RELEASE + "the_release_is_ordered_wherever_it_happens",
    ),
    "the release leaves its context current": mutant(
        "        if away:\n            leave(",
        "        if False:\n            leave(",
        RELEASE + "letting_go_leaves_the_current_device_as_it_is",
    ),
    "a view takes its memory for held": mutant(
        "return Py_REFCNT(value) > 1",
        "return True",
        RELEASE + "memory_of_what_another_finalizer_saves_is_kept_and_let_go_later",
    ),
    "what waits for a capture is not ordered then": mutant("heir.streams = view.streams", "pass"),
    "what waits for a capture is freed in it": mutant("waiting.append(heir_of(view))", "pass"),
    "memory is freed before its streams are ordered": mutant(
        "    try:\n        if view.streams is not None:",
        "    try:\n        view.memory = view.source = None\n        if view.streams is not None:",
    ),
    "a stream's owner is not told of the user": mutant(
        "return fence(owner, user, device_id, owner", "return fence(0, user, device_id, owner"
    ),
    "the default stream's pool is not told of the user": mutant(
        "device_id, owner != 0 and user != 0)", "device_id, False)"
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
        path = os.pathsep.join((str(self.folder), str(self.folder / "tests")))
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
            status, said = self.run("-m", "pytest", "-q", "-x", f"tests/{mutant.test}")
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

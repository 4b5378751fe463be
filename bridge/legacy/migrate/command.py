"""Writing the edited copy of a program, and saying what was done."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .comparing import compare
from .editing import NOTE, cst, notes_in
from .program import ProgramEdits
from .python2 import problem_of, to_python3


class Migrated(NamedTuple):
    """An edited program, and what was done."""

    text: bytes
    edits: list[tuple[int, str]]  # lines of the program, and what became what
    notes: list[tuple[int, str]]  # lines of the copy, and what a person should decide
    before: bytes  # the program, in Python 3


def migrate(text: bytes, name: str = "the program") -> Migrated:
    """Edit a program.

    Raise ImportError if it is Python 2, and fissix is not installed; raise ValueError if it cannot
    be read, or has a name `bridge` of its own.
    """
    try:
        before, edits = to_python3(text, name)
        program = ProgramEdits(before, Path(name).parent)
        edited = program.apply()
    except (cst.ParserSyntaxError, cst.CSTValidationError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if problem := problem_of(edited):
        raise ValueError(f"{name} cannot be edited: its copy would not be Python 3: {problem}")
    return Migrated(edited, sorted(edits + program.records), notes_in(edited), before)


def write_copy(path: Path, copy: Path, arguments: Sequence[str] | None, keep: bool = False) -> bool:
    """Write the edited copy of a program, and print what was done; or `keep` the one that is there.

    With `arguments`, run both and compare what they print.  Return False if it differs.
    """
    for own in (path.with_name("bridge.py"), path.with_name("bridge") / "__init__.py"):
        if own.exists() and own.resolve() != Path(__file__).parents[2] / "__init__.py":
            raise ValueError(f"{own} would hide the package of this name from the copy; rename it")
    text = path.read_bytes()
    done = migrate(text, str(path))
    if done.text == text and not keep:
        compared = "" if arguments is None else ", and nothing is compared"
        print(f"{path}: there is nothing to edit, so no copy is written{compared}")
        return True
    if keep:
        print(f"{copy} stays as it is; --force writes it anew")
    else:
        copy.write_bytes(done.text)
        _print_edits(path, copy, done)
    if arguments is None:
        return True
    if done.before == text:
        return compare(path, copy, arguments)
    print(f"compare: {path} is not Python 3; it runs converted, with no other edit")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.stem}_", suffix=".py") as file:
        file.write(done.before)
        file.flush()
        return compare(Path(file.name), copy, arguments)


def _print_edits(path: Path, copy: Path, done: Migrated) -> None:
    print(f"{path} -> {copy}")
    for line, said in done.edits:
        print(f"  line {line}: {said}")
    if done.notes:
        print(f"for you to decide, at the comments {NOTE.strip()!r} of {copy}:")
    for line, said in done.notes:
        print(f"  line {line}: {said}")

"""The record of a run: the sources that it compiled, and how, for ``python -m bridge check``.

Each line is the JSON of one source, so that several processes can write one record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..compiler import Request
from ..errors import program_frame

KEPT = ("source", "options", "no_extern_c", "include_dirs")


def record_source(path: Path, recorded: set[str], request: Request) -> None:
    """Append what is compiled to a record, unless it is among what this process has `recorded`."""
    given: dict[str, Any] = {name: getattr(request, name) for name in KEPT}
    given["include_dirs"] = [str(Path(one).absolute()) for one in request.include_dirs or ()]
    text = json.dumps(given, default=str)
    if text not in recorded:
        recorded.add(text)
        place = "{0.f_code.co_filename}:{0.f_lineno}".format(program_frame())
        line = json.dumps({"line": place, **given}, default=str)
        with path.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())  # at once: other processes append, too


def sources_in(path: Path) -> list[tuple[str, Request]]:
    """Return the lines of the program that compile a source, and the sources.

    Raise ValueError if the file is no record.
    """
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not found:
            raise ValueError("there is nothing in it")
        return [(one["line"], Request(**{name: one[name] for name in KEPT})) for one in found]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"it is no program (.py, .ipynb), and no record of bridge run --record ({error})"
        ) from None

"""Print the table that README.md shows: ``python -m benchmarks.headline``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "results.json"
AGAIN, FIRST = (
    "PyCUDA to CuPy, shape (1000,)",
    "PyCUDA to CuPy, an array that was not converted before",
)
CALL, COMPILE = "A checked call of a SourceModule function", "A source that is new, no include"
BOTH = ("as_cupy(a)", "cupy.asarray(a)")

# The rows: what is done, the table that has it, the unit, its us, and the two calls.
HEADLINE: list[tuple[str, str, str, float, tuple[str, str], str]] = [
    ("A `GPUArray` becomes a CuPy array", FIRST, "us", 1, BOTH, "`cupy.asarray(a)`"),
    ("The same array again", AGAIN, "us", 1, BOTH, "`cupy.asarray(a)`"),
    (
        "A kernel is called, with 5 checked arguments",
        CALL,
        "us",
        1,
        ("f(cupy arrays)", "PyCUDA f(cupy arrays)"),
        "PyCUDA's own function, unchecked",
    ),
    ("A new source is compiled", COMPILE, "ms", 1e3, ("SourceModule", "PyCUDA's"), "with nvcc"),
]


def headline(found: Mapping[str, Any]) -> str:
    """Write the table of README.md, out of what ``results.json`` holds."""
    rows = ["| | with `bridge` | without |", "|---|---|---|"]
    for what, title, unit, scale, calls, other in HEADLINE:
        ours, theirs = (found[title][call][0] / scale for call in calls)
        rows.append(f"| {what} | {ours:.3g} {unit} | {theirs:.3g} {unit} ({other}) |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(headline(json.loads(RESULTS.read_text())))

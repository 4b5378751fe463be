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
OTHERS = {
    "UnownedMemory recipe": "`UnownedMemory` by hand, without order",
    "cupy.asarray(a)": "`cupy.asarray(a)`",
}

# The rows: what is done, the table that has it, the unit, its us, our call, and
# others with their names.
HEADLINE: list[tuple[str, str, str, float, str, dict[str, str]]] = [
    ("A `GPUArray` becomes a CuPy array", FIRST, "us", 1, "as_cupy(a)", OTHERS),
    ("The same array again", AGAIN, "us", 1, "as_cupy(a)", OTHERS),
    (
        "A kernel is called, with 5 checked arguments",
        CALL,
        "us",
        1,
        "f(cupy arrays)",
        {
            "cupy.RawKernel": "`cupy.RawKernel`, unchecked",
            "PyCUDA f(cupy arrays)": "PyCUDA's function, unchecked",
        },
    ),
    ("A new source is compiled", COMPILE, "ms", 1e3, "SourceModule", {"PyCUDA's": "with nvcc"}),
]


def headline(found: Mapping[str, Any]) -> str:
    """Write the table of README.md, out of what ``results.json`` holds."""
    rows = ["| | with `bridge` | without |", "|---|---|---|"]
    for what, title, unit, scale, ours, others in HEADLINE:
        took = {call: f"{found[title][call][0] / scale:.3g} {unit}" for call in (ours, *others)}
        theirs = ", ".join(f"{took[call]} ({name})" for call, name in others.items())
        rows.append(f"| {what} | {took[ours]} | {theirs} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(headline(json.loads(RESULTS.read_text())))

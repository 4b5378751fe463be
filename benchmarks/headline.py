"""Print the table that README.md shows: ``python -m benchmarks.headline``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "results.json"

# What README.md shows: a label, the table that has it, the unit, its us, and the calls beside it.
HEADLINE: list[tuple[str, str, str, float, dict[str, str]]] = [
    (
        "`bridge.as_cupy(a)`",
        "PyCUDA to CuPy, shape (1000,)",
        "us",
        1,
        {
            "cupy.asarray(a)": "`cupy.asarray(a)`",
            "UnownedMemory recipe": "the `UnownedMemory` recipe",
            "cupy.ndarray(shape, dtype, memptr)": "`cupy.ndarray(shape, dtype, memptr)`",
            "cupy.asarray(a.get())": "copying through the host",
        },
    ),
    (
        "`f(...)` of `SourceModule`, checked: 3 arrays, 2 scalars",
        "A checked call of a SourceModule function",
        "us",
        1,
        {
            "cupy.RawKernel": "`cupy.RawKernel`",
            "PyCUDA f(cupy arrays)": "PyCUDA's `f(...)`",
            "cuda.core launch": "cuda.core's `launch`, unchecked",
        },
    ),
    (
        "`SourceModule` of a source that is new",
        "A source that is new, no include",
        "ms",
        1e3,
        {"PyCUDA's": "PyCUDA's, which runs nvcc"},
    ),
]


def headline(found: Mapping[str, Any]) -> str:
    """Write the table of README.md, out of what ``results.json`` holds."""
    rows = ["| | takes | which is |", "|---|---|---|"]
    for label, title, unit, scale, peers in HEADLINE:
        median = next(iter(found[title].values()))[0] / scale
        times = [f"{found[title][call][2]:.2f} of {name}" for call, name in peers.items()]
        rows.append(f"| {label} | {median:.3g} {unit} | {', '.join(times)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(headline(json.loads(RESULTS.read_text())))

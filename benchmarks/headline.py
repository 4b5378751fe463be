"""Print the numbers that README.md shows beside the picture: ``python -m benchmarks.headline``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "results.json"
CALL, PREPARED = "A checked call of a SourceModule function", "A prepared call"
COMPILE = "A source that is new, no include"


def headline(found: Mapping[str, Any]) -> str:
    """Write the sentences of README.md, out of what ``results.json`` holds."""
    calls, compilations = found[CALL], found[COMPILE]
    names = "f(cupy arrays)", "cuda.core launch", "cupy.RawKernel", "PyCUDA f(cupy arrays)"
    ours, cores, cupys, pycudas = (_rounded(calls[name][0]) for name in names)
    prepared = _rounded(found[PREPARED]["PyCUDA prepared_call"][0])
    new, nvcc = (_rounded(compilations[name][0] / 1e3) for name in ("SourceModule", "PyCUDA's"))
    return (
        f"A call of a kernel with 5 arguments takes {ours} us. cuda.core takes {cores} us, "
        f"CuPy {cupys} us, and PyCUDA {pycudas} us (prepared {prepared} us).\n"
        "Of these, only `bridge` checks dtypes. "
        f"A new source compiles in {new} ms, and in {nvcc} ms with nvcc."
    )


def _rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


if __name__ == "__main__":
    print(headline(json.loads(RESULTS.read_text())))

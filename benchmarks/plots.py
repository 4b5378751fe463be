"""Draw what a run of the benchmarks found: ``python -m benchmarks.plots [FOLDER]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

OURS, THEIRS = "#2a6f97", "#c9cdd2"
CONVERSIONS = {
    "GPUArray to CuPy, the first time": "PyCUDA to CuPy, an array that was not converted before",
    "GPUArray to CuPy, again": "PyCUDA to CuPy, shape (1000,)",
    "ndarray to PyCUDA": "CuPy to PyCUDA, shape (1000,)",
}
THROUGH_THE_HOST = "cupy.asarray(a.get())", "gpuarray.to_gpu(x.get())"  # off the scale
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "bridge",  # the same figures give the same file
    "svg.fonttype": "none",
}


def bars(
    axes: Any, title: str, timings: dict[str, list[float]], ours: str | tuple[str, ...]
) -> None:
    """Draw a bar for each call, from the fastest to the slowest."""
    names = sorted(timings, key=lambda name: -timings[name][0])
    values = [timings[name][0] for name in names]
    colours = [OURS if name.startswith(ours) else THEIRS for name in names]
    drawn = axes.barh(names, values, color=colours)
    axes.bar_label(drawn, [f"{value:.1f}" for value in values], padding=3)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("microseconds a call")
    axes.margins(x=0.12)


def without(timings: dict[str, list[float]], *names: str) -> dict[str, list[float]]:
    """Leave some of them out."""
    return {name: value for name, value in timings.items() if name not in names}


def draw(folder: Path) -> None:
    """Draw ``conversions.svg``, ``sizes.svg`` and ``calls.svg``."""
    found = json.loads((folder / "results.json").read_text())
    where = (
        f"{found['machine']['GPU']}, CuPy {found['machine']['CuPy']}, {found['machine']['date']}"
    )
    with plt.rc_context(STYLE):
        timings = [without(found[table], *THROUGH_THE_HOST) for table in CONVERSIONS.values()]
        figure, axes = plt.subplots(  # below one another: for the width of a phone, too
            *(3, 1), figsize=(6, 4.4), layout="constrained", sharex=True,
            height_ratios=[len(timing) for timing in timings],
        )  # fmt: skip
        for one, title, timing in zip(axes, CONVERSIONS, timings, strict=True):
            bars(one, title, timing, "as_")
        for one in axes[:-1]:
            one.set_xlabel("")
        save(figure, folder / "conversions.svg", where)

        figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
        nbytes, ours, _, staged = zip(*found["sizes"], strict=True)
        axes.loglog(nbytes, staged, "o-", color="#8a8f98", label="through the host")
        axes.loglog(nbytes, ours, "o-", color=OURS, label="as_cupy")
        axes.set(xlabel="bytes", ylabel="microseconds")
        axes.set_title("A GPUArray as a CuPy array", loc="left", fontsize=10, fontweight="bold")
        axes.legend(frameon=False)
        save(figure, folder / "sizes.svg", where)

        figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
        calls = found["A checked call of a SourceModule function"]
        bars(axes, "A kernel call, 3 arrays and 2 scalars", calls, "f(")
        save(figure, folder / "calls.svg", where)


def save(figure: Any, path: Path, where: str) -> None:
    """Write an SVG that says what it was measured on."""
    figure.supxlabel(where, fontsize=8, color="#6b7078")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("results")))

"""Write what ``benchmarks.scaling`` found: ``python -m benchmarks.scaling_tables [FOLDER]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import model
from benchmarks.plots import OURS, STYLE, plt, save

OURS_NAME, THEIRS_NAME, WITHOUT = "both libraries", "CuPy alone", "without halos"


class Curve(NamedTuple):
    """One workload on several numbers of GPUs."""

    title: str
    is_weak: bool  # the work grows with the GPUs
    rows: list[dict[str, Any]]  # of scaling.json, by the number of GPUs

    def seconds(self, way: str) -> list[float]:
        """Return the median of each row."""
        return [row["seconds"][way]["median"] for row in self.rows]

    def efficiency(self, way: str) -> list[float]:
        """Return the speed as a multiple of one GPU's, by the number of GPUs."""
        times = self.seconds(way)
        return [
            times[0] / time / (1 if self.is_weak else row["gpus"])
            for time, row in zip(times, self.rows, strict=True)
        ]


def waves_curves(found: dict[str, Any]) -> list[Curve]:
    """Return the waves' curves, each of which begins with one GPU."""
    side = max(found["plan"]["sides"])
    slabs = [found["plan"]["weak"], *([thin, side] for thin in found["plan"]["thin"])]
    curves = []
    for side in found["plan"]["sides"]:
        same = [r for r in found["waves"] if r["rows"] == r["columns"] == side]
        curves.append(Curve(f"{side} x {side} in all", False, same))
    for rows, columns in slabs:
        growing = [
            r for r in found["waves"] if r["rows"] == rows * r["gpus"] and r["columns"] == columns
        ]
        curves.append(Curve(f"{rows} x {columns} a GPU", True, growing))
    return [curve for curve in curves if curve.rows]  # a run may have broken off


def frames_curves(found: dict[str, Any]) -> list[Curve]:
    """Return the frames' curves."""
    number = found["plan"]["frames"]
    same = [row for row in found["frames"] if row["frames"] == number]
    growing = [row for row in found["frames"] if row["frames"] == number * row["gpus"]]
    curves = [
        Curve(f"{number} frames in all", False, same),
        Curve(f"{number} frames a GPU", True, growing),
    ]
    return [curve for curve in curves if curve.rows]


def table(curve: Curve, unit: str, scale: float) -> str:
    """Write a curve as a table."""
    columns = ["GPUs", unit, "spread", "speed-up", "efficiency", f"CuPy alone, {unit}"]
    columns.append("of CuPy alone")
    if any(WITHOUT in row["seconds"] for row in curve.rows):
        columns.append(WITHOUT)
    if any("tasks" in row for row in curve.rows):
        columns += ["in the tasks", "of CuPy alone"]
    lines = [
        f"### {'Weak' if curve.is_weak else 'Strong'} scaling: {curve.title}\n",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    efficiency = curve.efficiency(OURS_NAME)
    for row, share in zip(curve.rows, efficiency, strict=True):
        ours, theirs = row["seconds"][OURS_NAME], row["seconds"][THEIRS_NAME]
        lines.append(
            f"| {row['gpus']} | {ours['median'] * scale:.3f} | {ours['spread'] * scale:.3f} | "
            f"{share * row['gpus']:.2f} | {share:.2f} | {theirs['median'] * scale:.3f} | "
            f"{row['ratio']:.3f} |"
        )
        if WITHOUT in columns:
            without = row["seconds"].get(WITHOUT, ours)["median"] * scale
            lines[-1] += f" {without:.3f} |"
        if "in the tasks" in columns:
            tasks = row["tasks"]
            within = tasks["seconds"][OURS_NAME]["median"] * scale
            lines[-1] += f" {within:.3f} | {tasks['ratio']:.3f} |"
    return "\n".join(lines)


def text(found: dict[str, Any]) -> str:
    """Write the page."""
    plan = found["plan"]
    height, width = plan["shape"]
    where = "\n".join(f"| {name} | {value} |" for name, value in found["machine"].items())
    parts = [
        "# Several GPUs",
        "One worker process of Dask's for each GPU. Medians of "
        f"{plan['rounds']} rounds, in each of which both ways took their turn; spread is the "
        "distance of the quartiles. *Speed-up* and *efficiency* are of both libraries, against "
        "themselves on one GPU; *of CuPy alone* is the median of the rounds' multiples, with the "
        "same number of GPUs. [What the waves would take on more GPUs](model.md).",
        f"| | |\n|---|---|\n{where}",
        "![Efficiency by the number of GPUs, measured and modelled](scaling.svg)",
        "## Waves",
        "A kernel of PyCUDA's on `GPUArray`s, which a `bridge.SourceModule` compiled; each step, "
        "NCCL sends the outer rows to the neighbours, out of the same memory, on the same stream "
        f"and after the kernel, so that nothing overlaps. Every {plan['every']} steps CuPy "
        "computes the energy, and NCCL sums it over all GPUs. A step is timed by events on each "
        f"GPU, {plan['steps']} at a time (of the thin slabs ten times as many), and the slowest "
        "GPU counts, also *without halos*, where none waits for another. Energies and heights were "
        "those of one GPU, each time.",
        *(table(curve, "ms a step", 1e3) for curve in waves_curves(found)),
        "## Frames",
        f"Frames of {width} x {height} float32, made on the GPU from a seed: two kernels of "
        "PyCUDA's on a `GPUArray`, CuPy's Gaussian filter, its maximum. "
        f"{plan['batch']} frames are a task; the time is that of `client.map` and the gathering "
        f"of all results. Medians of {plan['turns']} rounds. *In the tasks* is what the tasks "
        "took by themselves, all of a GPU's together: the rest is Dask's.",
        *(table(curve, "s", 1) for curve in frames_curves(found)),
    ]
    return "\n\n".join(parts) + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw efficiency against the number of GPUs: waves and their model, and frames."""
    machine = found["machine"]
    where = f"{machine['GPU']}, CuPy {machine['CuPy']}, {machine['date']}"
    waves, frames = waves_curves(found)[1:3], frames_curves(found)  # not the smaller, thinner ones
    with plt.rc_context(STYLE):
        figure, both = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
        for axes, title, curves in (both[0], "Waves", waves), (both[1], "4K frames", frames):
            for curve in curves:
                gpus = [row["gpus"] for row in curve.rows]
                marker, scaling = ("s", "weak") if curve.is_weak else ("o", "strong")
                line = marker if curves is waves else f"-{marker}"
                if curves is waves:
                    modelled = model.curve(found, curve.is_weak)
                    axes.plot(modelled.keys(), modelled.values(), "--", color="#8a8f98")
                label = f"{scaling}: {curve.title}"
                axes.plot(gpus, curve.efficiency(OURS_NAME), line, color=OURS, label=label)
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axes.set_xscale("log", base=2)
            ticks = [1, 2, 4, 8, 64, 512] if curves is waves else gpus
            axes.set_xticks(ticks, [str(number) for number in ticks])
            axes.minorticks_off()
            axes.set(xlabel="GPUs", ylim=(0, 1.1))
        both[0].plot([], [], "--", color="#8a8f98", label="modelled")
        for axes in both:
            axes.legend(frameon=False, loc="lower left")
        both[0].set_ylabel("efficiency")
        save(figure, path, where)


def write(folder: Path) -> None:
    """Write ``scaling.md`` and ``scaling.svg`` of ``scaling.json``."""
    found = json.loads((folder / "scaling.json").read_text())
    (folder / "scaling.md").write_text(text(found))
    draw(found, folder / "scaling.svg")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results"))

"""What a run of the benchmarks found: as Markdown, and as JSON for the plots."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
import pycuda
import pycuda.driver as drv

from benchmarks.measure import Timing

# How calls begin that are the package's own as well, or a part of what they stand beside.
_OWN = "as_", "a.__dlpack__", "f(", "import ", "1 thread"


class Goal(NamedTuple):
    """A figure, and the most that it may be."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Tell whether the figure, as it is printed, is within the limit."""
        return round(self.value, 2) <= self.limit


class Report:
    """Collects what the parts find; prints it as it comes."""

    def __init__(self) -> None:
        self.goals: list[Goal] = []
        self.text: list[str] = []
        self.data: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Add Markdown."""
        print(f"\n{text}", flush=True)
        self.text.append(text)

    def goal(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """Add a figure that has a goal."""
        self.goals.append(Goal(what, value, limit, unit))
        print(f"{what}: {value:.2f} {unit}", flush=True)

    def compare(
        self,
        title: str,
        timings: Mapping[str, Timing],
        goals: Mapping[str, float] | None = None,
        unit: str = "us",
    ) -> None:
        """Add a table: each call, its time, and the first one as a multiple of it.

        `goals` says, for a call, which multiple of it the first one may be at most.
        """
        subject = next(iter(timings))
        rows = [
            f"### {title}\n",
            f"| call | {unit} | spread | {subject} is |",
            "|---|---|---|---|",
        ]
        for name, timing in timings.items():
            ratio = timings[subject].over(timing)
            times = "" if name == subject else f"{ratio:.2f} of it"
            rows.append(f"| {name} | {timing.median:.2f} | {timing.spread:.2f} | {times} |")
            if goals and name in goals:
                self.goal(f"{title}: {subject} / {name}", ratio, goals[name])
        self.say("\n".join(rows))
        first = timings[subject]
        self.data[title] = {n: [t.median, t.spread, first.over(t)] for n, t in timings.items()}

    def save(self, folder: Path) -> None:
        """Write ``README.md`` and ``results.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        where = machine()
        found = json.dumps({"machine": where, **self.data}, indent=1)
        (folder / "results.json").write_text(found + "\n")
        rows = "\n".join(f"| {name} | {value} |" for name, value in where.items())
        parts = [
            "# Results",
            "Times are medians, and `spread` is the distance between their quartiles. Each round "
            "times all rows of a table: a row is compared in each round, and the median is shown.",
            f"| | |\n|---|---|\n{rows}",
            "Drawn: [conversions](conversions.svg), [sizes](sizes.svg), "
            "[calls of kernels](calls.svg).",
            faster(self.data),
            *self.text,
        ]
        (folder / "README.md").write_text("\n\n".join(parts) + "\n")


def faster(data: Mapping[str, Any]) -> str:
    """Write the table of what takes less time than what it is compared with, most first."""
    found = []
    for title, timings in data.items():
        if isinstance(timings, dict) and all(isinstance(t, list) for t in timings.values()):
            subject, *others = timings
            here = timings[subject][0]
            found += [
                (ratio, f"| {title} | {subject}: {here:.2f} | {name}: {there:.2f} | {ratio:.2f} |")
                for name in others
                for there, _, ratio in [timings[name]]
                if ratio >= 1.05 and not name.startswith(_OWN)
            ]
    return "\n".join(
        [
            "## Where another way is faster\n",
            "The third column is the faster way; units are those of the tables below.\n",
            "| what | with bridge | elsewhere | times as long |",
            "|---|---|---|---|",
            *(row for _, row in sorted(found, reverse=True)),
        ]
    )


def summary(goals: list[Goal]) -> str:
    """Write the table of all goals, for those who work on the speed."""
    rows = ["| goal | is | at most | |", "|---|---|---|---|"]
    for goal in goals:
        unit = f" {goal.unit}" if goal.unit else ""
        above = "" if goal.is_met else f"{goal.value / goal.limit:.2f} of it"
        rows.append(f"| {goal.what} | {goal.value:.2f}{unit} | {goal.limit:.2f}{unit} | {above} |")
    return "\n".join(rows)


def machine() -> dict[str, str]:
    """Say what the figures were measured with."""
    runtime = cupy.cuda.runtime
    toolkit, driver = map(_dotted, (runtime.runtimeGetVersion(), drv.get_driver_version()))
    with open("/proc/cpuinfo") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "date": date.today().isoformat(),
        "GPU": runtime.getDeviceProperties(0)["name"].decode(),
        "CPU": cpu or platform.machine(),
        "Python": platform.python_version(),
        "CUDA": f"{toolkit} (the runtime in CuPy), driver {driver}",
        "CuPy": cupy.__version__,
        "PyCUDA": pycuda.VERSION_TEXT,
        "NumPy": np.__version__,
    }


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"

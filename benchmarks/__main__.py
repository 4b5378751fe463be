"""Measure everything, and write ``benchmarks/results``: `make bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

import bridge
import bridge.autoinit
from benchmarks import conversions, kernels, memory, plots, programs, workloads
from benchmarks.report import Report, summary

PARTS = {
    part.__name__: part
    for module in (conversions, kernels, memory, programs, workloads)
    for part in module.PARTS
}


def main() -> None:
    """Run the parts that are named, or all; save what all of them found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of {list(PARTS)}")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"unknown part: {', '.join(unknown)}; known are {', '.join(PARTS)}")
    bridge.show_config()
    report = Report()
    for name in options.parts or PARTS:
        PARTS[name](report)
    print(f"\n{summary(report.goals)}")
    if not options.parts:
        report.save(options.output)
        plots.draw(options.output)


if __name__ == "__main__":
    main()

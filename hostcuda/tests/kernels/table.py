"""Run the kernels of `cases`, and print how many are right, area by area.

On the host driver, run it as `python -m hostcuda hostcuda/tests/kernels/table.py`. On a GPU, where
it needs CuPy alone, leave out `-m hostcuda`. Arguments choose areas or kernels: `masks half.sizes`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases
import runner


def main() -> int:
    """Print the table; return 1 if a kernel is not right."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="areas, or kernels as area.name; else all")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--json", action="store_true", help="print one line per kernel instead")
    options = parser.parse_args()
    wanted: dict[str, set[str] | None] = {}
    for given in options.names or cases.AREAS:
        area, _, name = given.partition(".")
        if name:
            wanted[area] = (wanted.get(area) or set()) | {name}
        else:
            wanted[area] = None
    start = time.perf_counter()
    found: dict[str, list[runner.Result]] = {area: [] for area in wanted}
    for area, name, result in runner.run_areas(wanted, options.jobs):
        found[area].append(result)
        if options.json:
            print(json.dumps([f"{area}.{name}", *result]), flush=True)
        elif result.kind != runner.RIGHT:
            print(f"{result.kind:8} {area}.{name}: {result.text}", flush=True)
    if options.json:
        return 0
    row = "{:<12}{:>8}{:>8}{:>9}{:>7}{:>7}".format
    print(row("area", "kernels", *runner.KINDS))
    total = []
    for area, results in found.items():
        kinds = [result.kind for result in results]
        print(row(area, len(kinds), *map(kinds.count, runner.KINDS)))
        total += kinds
    print(row("all", len(total), *map(total.count, runner.KINDS)))
    print(f"{time.perf_counter() - start:.0f} s")
    return int(total.count(runner.RIGHT) != len(total))


if __name__ == "__main__":
    sys.exit(main())

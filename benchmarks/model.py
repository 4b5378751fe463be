"""Say what the waves would take on more GPUs: ``python -m benchmarks.model [FOLDER]``.

A model, fitted to what ``benchmarks.scaling`` measured on a few GPUs of one machine.  A step of p
GPUs takes, in seconds,

    cells / p * a  +  (latency + bytes sent * inverse bandwidth, where p > 1)
                   +  log2(p) * latency / 50

for the kernel over a GPU's own cells; for the halos, of which a GPU sends one to each neighbour;
and for the sum of the energies, every 50 steps.  Beyond the 8 GPUs of a machine a network joins:
its terms are assumed, not measured.  Reads ``scaling.json``, writes ``model.md``; needs NumPy and
no GPU.
"""

from __future__ import annotations

import json
import math
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EVERY = 50  # steps from one sum of the energies to the next
ITEM = 4  # bytes of a cell
MACHINE = 8  # GPUs that one machine has at most
GPUS = (8, 64, 512)

# The network, assumed: a 400 Gb/s InfiniBand port for each GPU, as DGX H100 and H200 have it, and
# the time that a message takes beyond what it takes inside of a machine.
NETWORK_BANDWIDTH = 400e9 / 8
NETWORK_LATENCY = 5e-6
SOURCE = (
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-"
    "enterprise-ai/latest/core-components.html"
)


class Point(NamedTuple):
    """What a step took: on how many GPUs, of which membrane, in seconds."""

    gpus: int
    rows: int
    columns: int
    seconds: float


class Link(NamedTuple):
    """What was fitted: seconds a cell, a message's seconds, and seconds a byte."""

    cell: float
    latency: float
    byte: float


def messages(gpus: int) -> int:
    """Return how many halos the busiest GPU sends each step: one to each neighbour."""
    return min(2, gpus - 1)


def nbytes(gpus: int, columns: int) -> int:
    """Return the bytes of those halos."""
    return messages(gpus) * columns * ITEM


def terms(gpus: int, rows: int, columns: int) -> tuple[float, float, float]:
    """Return by what `Link`'s three numbers are multiplied, and then summed, for one step."""
    latencies = (gpus > 1) + math.log2(gpus) / EVERY
    return rows * columns / gpus, latencies, nbytes(gpus, columns)


def fit(points: list[Point]) -> Link:
    """Return the link whose steps differ least from the measured ones, in parts of these.

    None of the three numbers is negative.  What is least is found by trying which of them are 0:
    there the sum of squares has its least value of the others, and three numbers have few subsets.
    """
    matrix = np.array([terms(*point[:3]) for point in points], dtype=float)
    times = np.array([point.seconds for point in points])
    matrix /= times[:, None]  # parts of each time, so that the short ones count as well
    scale = np.abs(matrix).max(axis=0)
    if not scale.all() or np.linalg.matrix_rank(matrix / scale) < 3:
        raise ValueError(
            "model: these points do not tell cell, latency and bandwidth apart; steps of two "
            "membranes of different widths are needed, each on 1, 2 and more GPUs"
        )
    matrix /= scale
    best, least = np.zeros(3), math.inf
    for number in (1, 2, 3):
        for chosen in map(list, combinations(range(3), number)):
            found = np.zeros(3)
            found[chosen] = np.linalg.lstsq(matrix[:, chosen], np.ones(len(times)), rcond=None)[0]
            error = float(np.sum((matrix @ found - 1) ** 2))
            if found.min() >= 0 and error < least:
                best, least = found, error
    return Link(*(float(value) for value in best / scale))


def seconds(link: Link, gpus: int, rows: int, columns: int) -> float:
    """Return the seconds of a step, with the network's beyond one machine.

    A GPU at the edge of a machine sends one halo by the link and one by the network, one after the
    other, and of the sum's levels those above a machine are the network's.
    """
    cells, latencies, sent = terms(gpus, rows, columns)
    time = cells * link.cell + latencies * link.latency + sent * link.byte
    if gpus > MACHINE:
        row = columns * ITEM
        time += NETWORK_LATENCY + row * max(0.0, 1 / NETWORK_BANDWIDTH - link.byte)
        time += math.log2(gpus / MACHINE) * NETWORK_LATENCY / EVERY
    return time


class Line(NamedTuple):
    """A line of a table: what each GPU sends a step, and how long a step takes."""

    gpus: int
    sent: int
    messages: float
    seconds: float
    efficiency: float


def table(link: Link, rows: int, columns: int, is_weak: bool) -> list[Line]:
    """Return a line for each number of GPUs; `rows` are in all, or of each GPU (weak)."""
    alone = seconds(link, 1, rows, columns)
    lines = []
    for gpus in (1, *GPUS):
        time = seconds(link, gpus, rows * gpus if is_weak else rows, columns)
        sums = math.log2(gpus) / EVERY
        sent = nbytes(gpus, columns) + round(sums * ITEM)
        efficiency = alone / time / (1 if is_weak else gpus)
        lines.append(Line(gpus, sent, messages(gpus) + sums, time, efficiency))
    return lines


def points_of(found: dict[str, Any]) -> list[Point]:
    """Return what ``scaling.json`` says of the waves of both libraries."""
    return [
        Point(row["gpus"], row["rows"], row["columns"], row["seconds"]["both libraries"]["median"])
        for row in found["waves"]
    ]


def text(found: dict[str, Any]) -> str:
    """Write the page."""
    points = points_of(found)
    link = fit(points)
    modelled = [seconds(link, *point[:3]) for point in points]
    residuals = [time / point.seconds - 1 for time, point in zip(modelled, points, strict=True)]
    side = max(found["plan"]["sides"])
    rows, columns = found["plan"]["weak"]
    bandwidth = f"{1e-9 / link.byte:.0f} GB/s" if link.byte else "too large to be seen"
    machine = found["machine"]
    parts = [
        "# The waves on more GPUs: a model",
        "**Modelled, not measured.** Only the table of residuals has measured times, those of "
        f"[scaling.md](scaling.md): {machine['GPU']}, {machine['date']}.",
        "A step of p GPUs takes `cells / p * a`, and, where p > 1, `latency + bytes sent * inverse "
        f"bandwidth`, and `log2(p) * latency / {EVERY}` for the sum of the energies every {EVERY} "
        "steps. The halos follow the kernel; nothing overlaps. The three numbers are fitted by "
        "least squares of the relative errors, none below 0:",
        "| fitted | |\n|---|---|\n"
        f"| a, time of a cell | {link.cell * 1e12:.3f} ps |\n"
        f"| that is, at 12 bytes a cell | {12e-12 / link.cell:.2f} TB/s |\n"
        f"| latency of the halos | {link.latency * 1e6:.1f} us |\n"
        f"| bandwidth of the link | {bandwidth} |",
        "## The fit\n\n"
        "| GPUs | membrane | measured ms a step | modelled | residual |\n|---|---|---|---|---|\n"
        + "\n".join(
            f"| {p.gpus} | {p.rows} x {p.columns} | {p.seconds * 1e3:.4f} | {time * 1e3:.4f} | "
            f"{part:+.1%} |"
            for p, time, part in zip(points, modelled, residuals, strict=True)
        ),
        f"The largest residual is {max(map(abs, residuals)):.1%}; {len(points)} points, 3 numbers.",
        "## Assumed beyond 8 GPUs",
        f"Machines of {MACHINE} GPUs; inside of one, the fitted link serves them all. Between "
        f"machines, each GPU has a port of {NETWORK_BANDWIDTH * 8e-9:.0f} Gb/s, as "
        f"[NVIDIA says of DGX H100 and H200]({SOURCE}), all of which a message gets, and a message "
        f"takes {NETWORK_LATENCY * 1e6:.0f} us more than by the link: a guess, on which the "
        "efficiency of small slabs depends. A GPU at a machine's edge sends one halo each way, one "
        "after the other. No other traffic, no slow GPU.",
        _table(f"Strong scaling, {side} x {side} in all", table(link, side, side, False)),
        _table(f"Weak scaling, {rows} x {columns} a GPU", table(link, rows, columns, True)),
        "*Sent* and *messages* are those of a GPU with two neighbours; a GPU's part of the sums is "
        f"log2(p) messages of {ITEM} bytes every {EVERY} steps. By the shape of the model: the "
        "halos of slabs stay as large however many GPUs there are, so that strong scaling ends "
        "where the kernel takes as long as the halos, and weak scaling hardly does.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, lines: list[Line]) -> str:
    rows = [
        f"## Modelled: {title}\n",
        "| GPUs | bytes sent a step by each | messages a step | ms a step | efficiency |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {line.gpus} | {line.sent:,} | {line.messages:.2f} | {line.seconds * 1e3:.4f} | "
        f"{line.efficiency:.2f} |"
        for line in lines
    ]
    return "\n".join(rows)


def write(folder: Path) -> None:
    """Write ``model.md`` of ``scaling.json``."""
    found = json.loads((folder / "scaling.json").read_text())
    (folder / "model.md").write_text(text(found))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results"))

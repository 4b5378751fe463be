"""Say what the waves would take on more GPUs: ``python -m benchmarks.model [FOLDER]``.

A model of what ``benchmarks.scaling`` measured on a few GPUs of one machine.  A step takes what the
kernel takes on a GPU's own slab, which is measured, and where there are p > 1 GPUs, the seconds

    latency  +  bytes sent * inverse bandwidth  +  log2(p) * latency / 50

for the halos, of which a GPU sends one to each neighbour, and for the sum of the energies, every 50
steps.  Latency and bandwidth are fitted to what the steps took with and without halos.  Beyond the
8 GPUs of a machine a network joins: its terms are assumed, not measured.  Reads ``scaling.json``,
writes ``model.md``; needs NumPy and no GPU.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EVERY = 50  # steps from one sum of the energies to the next
ITEM = 4  # bytes of a cell
MACHINE = 8  # GPUs that one machine has at most
GPUS = (8, 64, 512)

# The network, assumed: a 400 Gb/s InfiniBand port for each GPU, as DGX H100 and H200 have it, and
# the time that a message takes beyond what it takes inside of a machine: a guess, and its range.
NETWORK_BANDWIDTH = 400e9 / 8
NETWORK_LATENCY = 5e-6
RANGE = (2e-6, 20e-6)
SOURCE = (
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-"
    "enterprise-ai/latest/core-components.html"
)


class Point(NamedTuple):
    """What a step took, in seconds: on how many GPUs, of which membrane, with and without halos."""

    gpus: int
    rows: int
    columns: int
    seconds: float
    kernel: float


class Link(NamedTuple):
    """What was fitted: an exchange's seconds, and seconds a byte."""

    latency: float
    byte: float


def messages(gpus: int) -> int:
    """Return how many halos the busiest GPU sends each step: one to each neighbour."""
    return min(2, gpus - 1)


def nbytes(gpus: int, columns: int) -> int:
    """Return the bytes of those halos."""
    return messages(gpus) * columns * ITEM


def terms(gpus: int, columns: int) -> tuple[float, float]:
    """Return by what `Link`'s two numbers are multiplied, and then summed, for one step."""
    return (gpus > 1) + math.log2(gpus) / EVERY, nbytes(gpus, columns)


def fit(points: list[Point]) -> Link:
    """Return the link whose steps differ least from the measured ones, in parts of these.

    Neither of the two numbers is negative.  What is least is found by trying which of them are 0:
    there the sum of squares has its least value of the others.
    """
    several = [point for point in points if point.gpus > 1]
    matrix = np.array([terms(point.gpus, point.columns) for point in several], dtype=float)
    times = np.array([point.seconds for point in several])
    extra = np.array([point.seconds - point.kernel for point in several]) / times
    if not len(several) or np.linalg.matrix_rank(matrix / matrix.max(axis=0)) < 2:
        raise ValueError(
            "model: these points do not tell latency and bandwidth apart; steps on 2 or more GPUs "
            "of membranes of different widths are needed"
        )
    matrix /= times[:, None]  # parts of each time, so that the short ones count as well
    scale = matrix.max(axis=0)
    matrix /= scale
    best, least = np.zeros(2), math.inf
    for chosen in ([0], [1], [0, 1]):
        found = np.zeros(2)
        found[chosen] = np.linalg.lstsq(matrix[:, chosen], extra, rcond=None)[0]
        error = float(np.sum((matrix @ found - extra) ** 2))
        if found.min() >= 0 and error < least:
            best, least = found, error
    return Link(*(float(value) for value in best / scale))


def exchange(
    link: Link, gpus: int, columns: int, network_latency: float = NETWORK_LATENCY
) -> float:
    """Return the seconds of the halos and sums of a step, with the network's beyond one machine.

    A GPU at the edge of a machine sends one halo by the link and one by the network, one after the
    other, and of the sum's levels those above a machine are the network's.
    """
    latencies, sent = terms(gpus, columns)
    time = latencies * link.latency + sent * link.byte
    if gpus > MACHINE:
        row = columns * ITEM
        time += network_latency + row * max(0.0, 1 / NETWORK_BANDWIDTH - link.byte)
        time += math.log2(gpus / MACHINE) * network_latency / EVERY
    return time


class Line(NamedTuple):
    """A line of a table: what each GPU sends a step, what a step takes, and its efficiency."""

    gpus: int
    sent: int
    messages: float
    kernel: float
    exchange: float
    efficiency: float
    between: tuple[float, ...]  # the efficiency where the network's latency is at the ends of RANGE


def table(
    link: Link, columns: int, kernels: dict[int, float], ideals: dict[int, float]
) -> list[Line]:
    """Return a line for each number of GPUs.

    The kernel takes so many seconds for a slab; a step of efficiency 1 would take the ideal ones.
    """
    lines = []
    for gpus, kernel in kernels.items():
        times = [exchange(link, gpus, columns, latency) for latency in (NETWORK_LATENCY, *RANGE)]
        efficiency, *between = (ideals[gpus] / (kernel + time) for time in times)
        number = messages(gpus) + math.log2(gpus) / EVERY
        sent = nbytes(gpus, columns)
        lines.append(Line(gpus, sent, number, kernel, times[0], efficiency, tuple(between)))
    return lines


def points_of(found: dict[str, Any]) -> list[Point]:
    """Return what ``scaling.json`` says of the waves of both libraries."""
    points = []
    for row in found["waves"]:
        step = row["seconds"]["both libraries"]["median"]
        kernel = row["seconds"]["without halos"]["median"] if row["gpus"] > 1 else step
        points.append(Point(row["gpus"], row["rows"], row["columns"], step, kernel))
    return points


def curve(found: dict[str, Any], is_weak: bool) -> dict[int, float]:
    """Return the modelled efficiency of the largest membrane by the number of GPUs."""
    points = points_of(found)
    alone = {(p.rows, p.columns): p.kernel for p in points if p.gpus == 1}
    rows, columns = found["plan"]["weak"] if is_weak else [max(found["plan"]["sides"])] * 2
    if is_weak:
        kernels = {n: alone[rows, columns] for n in (1, *GPUS)}
    else:
        kernels = {p.gpus: p.kernel for p in points if p.rows == p.columns == rows}
        slabs = {n: (rows // n, columns) for n in GPUS}
        kernels |= {n: alone[slab] for n, slab in slabs.items() if slab in alone}
    ideals = {n: alone[rows, columns] / (1 if is_weak else n) for n in kernels}
    lines = table(fit(points), columns, kernels, ideals)
    return {line.gpus: line.efficiency for line in sorted(lines)}


def text(found: dict[str, Any]) -> str:
    """Write the page."""
    points = points_of(found)
    several = [point for point in points if point.gpus > 1]
    alone = {(p.rows, p.columns): p.kernel for p in points if p.gpus == 1}
    link = fit(points)
    modelled = [point.kernel + exchange(link, point.gpus, point.columns) for point in several]
    residuals = [time / point.seconds - 1 for time, point in zip(modelled, several, strict=True)]
    side = max(found["plan"]["sides"])
    strong = {n: alone[side // n, side] for n in (1, *GPUS) if (side // n, side) in alone}
    rows, columns = found["plan"]["weak"]
    weak = {n: alone[rows, columns] for n in (1, *GPUS)}
    bandwidth = f"{1e-9 / link.byte:.0f} GB/s" if link.byte else "too large to be seen"
    port = "is faster than the fitted one, so that it changes nothing"
    if link.byte * NETWORK_BANDWIDTH < 1:
        port = "is what a halo between machines gets"
    shortest = min(several, key=lambda point: point.seconds)
    low, high = (f"{latency * 1e6:.0f}" for latency in RANGE)
    machine = found["machine"]
    parts = [
        "# The waves on more GPUs: a model",
        "**Modelled, not measured**, but for what the kernel takes and the table of residuals, "
        f"which are of [scaling.md](scaling.md): {machine['GPU']}, {machine['date']}.",
        "A step of p GPUs takes what the kernel takes for one slab, as measured on one GPU, and, "
        "where p > 1, `latency + bytes sent * inverse bandwidth` for the halos, and `log2(p) * "
        f"latency / {EVERY}` for the sum of the energies every {EVERY} steps. The halos follow the "
        "kernel; nothing overlaps. The two numbers are fitted by least squares to what steps took "
        "with and without halos, in parts of the whole step, neither below 0:",
        "| fitted | |\n|---|---|\n"
        f"| latency of an exchange | {link.latency * 1e6:.1f} us |\n"
        f"| bandwidth of the link | {bandwidth} |",
        "They are what an exchange by NCCL took here, on one stream and after the kernel, and not "
        "what the hardware could do.",
        "## The fit\n\n"
        "| GPUs | membrane | measured us a step | without halos | modelled | residual |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {p.gpus} | {p.rows} x {p.columns} | {p.seconds * 1e6:.1f} | {p.kernel * 1e6:.1f} | "
            f"{time * 1e6:.1f} | {part:+.1%} |"
            for p, time, part in zip(several, modelled, residuals, strict=True)
        ),
        f"The largest residual is {max(map(abs, residuals)):.1%}; {len(several)} points, 2 "
        "numbers.",
        "## Assumed beyond 8 GPUs",
        f"Machines of {MACHINE} GPUs; inside of one, the fitted link serves them all. Between "
        f"machines, each GPU has a port of {NETWORK_BANDWIDTH * 8e-9:.0f} Gb/s, as "
        f"[NVIDIA says of DGX H100 and H200]({SOURCE}); it {port}. A message between machines "
        f"takes {NETWORK_LATENCY * 1e6:.0f} us more than inside of one: a guess, on which the "
        f"efficiency of small slabs depends, so that the last column has it for {low} and for "
        f"{high} us. A GPU at a machine's edge sends one halo each way, one after the other. No "
        "other traffic, no slow GPU. The host queues a step sooner than the GPU has done the last "
        f"one, as in the shortest step that was measured, of {shortest.seconds * 1e6:.0f} us on "
        f"{shortest.gpus} GPUs; in shorter ones it may not.",
        _table(
            f"Strong scaling, {side} x {side} in all",
            table(link, side, strong, {n: alone[side, side] / n for n in strong}),
        ),
        _table(f"Weak scaling, {rows} x {columns} a GPU", table(link, columns, weak, weak)),
        "*Sent* is the halos of a GPU with two neighbours; *messages* has its part of the sums, "
        f"log2(p) of {ITEM} bytes every {EVERY} steps. By the shape of the model: the halos of "
        "slabs stay as large however many GPUs there are, so that strong scaling falls to a half "
        "where the kernel takes as long as the exchange, and weak scaling hardly falls.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, lines: list[Line]) -> str:
    rows = [
        f"## Modelled: {title}\n",
        "| GPUs | bytes sent a step by each | messages a step | us of the kernel | of the exchange "
        "| a step | efficiency | between |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {line.gpus} | {line.sent:,} | {line.messages:.2f} | {line.kernel * 1e6:.1f} | "
        f"{line.exchange * 1e6:.1f} | {(line.kernel + line.exchange) * 1e6:.1f} | "
        f"{line.efficiency:.2f} | {' and '.join(f'{end:.2f}' for end in line.between)} |"
        for line in lines
    ]
    return "\n".join(rows)


def write(folder: Path) -> None:
    """Write ``model.md`` of ``scaling.json``."""
    found = json.loads((folder / "scaling.json").read_text())
    (folder / "model.md").write_text(text(found))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results"))

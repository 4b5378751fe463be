"""Several GPUs, without NCCL: waves in slabs, tasks, tables."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest
from gpus import GPUS
from processes import install, surroundings

import bridge
from benchmarks import batches, model, scaling, scaling_tables as tables, waves

ROWS, COLUMNS = 64, 96


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(waves, "EVERY", 5)
    monkeypatch.setattr(waves, "CHECKED", 20)
    monkeypatch.setattr(waves, "APART", 8)


class Neighbours:
    """An exchange of slabs on threads of one process: plain copies, where NCCL sends."""

    def __init__(self, size, rank, board):
        self.rank, self.board = rank, board  # address by rank
        self.beside = [other for other in (rank - 1, rank + 1) if 0 <= other < size]

    def halos(self, address, rows, columns):
        row = 4 * columns
        with self.board(self.rank, address) as addresses:
            for other in self.beside:
                above = other < self.rank
                into = address if above else address + (rows + 1) * row
                out_of = addresses[other] + (rows * row if above else row)
                copy(into, out_of, row)

    def total(self, address):
        with self.board(self.rank, address) as addresses:
            mine = [view(other).copy() for other in addresses]
        with self.board(self.rank, address):
            view(address)[...] = sum(mine)


class Missing(Neighbours):
    """The same, but nothing is copied."""

    def halos(self, address, rows, columns):
        pass


def view(address):
    memory = cupy.cuda.UnownedMemory(address, 4, None, 0)
    return cupy.ndarray((1,), np.float32, cupy.cuda.MemoryPointer(memory, 0))


def copy(into, out_of, nbytes):
    cupy.cuda.runtime.memcpyAsync(into, out_of, nbytes, cupy.cuda.runtime.memcpyDefault, 0)


class Board:
    """What each thread puts there, all see; none goes on before all have seen it."""

    def __init__(self, size):
        self.places = [0] * size
        self.barrier = threading.Barrier(size, timeout=30)

    def __call__(self, rank, address):
        self.places[rank] = address
        return self

    def __enter__(self):
        self.barrier.wait()
        return list(self.places)

    def __exit__(self, *_):
        self.barrier.wait()


def on(size, way, exchange):
    """Return the energies on each rank, and the whole field, after some steps."""
    board = Board(size)
    rows = ROWS // size

    def slab(rank):
        with bridge.primary_context():
            ends = exchange(size, rank, board) if size > 1 else waves.Alone()
            fields = waves.WAYS[way]((rows + 2, COLUMNS))
            found = waves.Waves(fields, ends, rank * rows, ROWS)
            return found.run(40).get(), found.rows().get()

    with ThreadPoolExecutor(size) as threads:
        energies, fields = zip(*threads.map(slab, range(size)), strict=True)
    return energies, np.concatenate(fields)


@pytest.mark.parametrize("way", ["both libraries", "CuPy alone"])
@pytest.mark.parametrize("size", [2, 4])
def test_waves_in_slabs_are_those_of_one_gpu(way, size):
    [expected], field = on(1, way, None)
    energies, parts = on(size, way, Neighbours)
    np.testing.assert_array_equal(parts, field)
    assert expected.shape == (8,)
    for values in energies:  # each rank has the sum of all
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_without_the_halos_the_waves_are_others():
    [expected], field = on(1, "both libraries", None)
    energies, parts = on(2, "both libraries", Missing)
    assert abs(parts - field).max() > 0.01
    assert not np.allclose(energies[0], expected, rtol=1e-4)


def test_the_waves_are_those_of_numpy():
    y, x = np.ogrid[: ROWS + 2, :COLUMNS]
    before = now = (
        np.sin(np.pi * y / (ROWS + 1)) * np.sin(np.pi * x / (COLUMNS - 1))
        * np.sin(0.06 * y + 0.04 * x)
    )  # fmt: skip
    energies = []
    for number in range(1, 41):
        after = now.copy()
        middle, old = now[1:-1, 1:-1], before[1:-1, 1:-1]
        around = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
        after[1:-1, 1:-1] = 2 * middle - old + 0.25 * (around - 4 * middle)
        before, now = now, after
        if number % 5 == 0:
            slopes = np.diff(now[1:-1], axis=1) ** 2
            energies.append(
                (((now - before)[1:-1] ** 2).sum()
                + 0.25 * (slopes.sum() + (np.diff(now, axis=0)[1:] ** 2).sum())) / 2
            )  # fmt: skip
    [found], field = on(1, "both libraries", None)
    np.testing.assert_allclose(field, now[1:-1], atol=1e-4)
    np.testing.assert_allclose(found, energies, rtol=1e-4)


def test_a_task_says_what_its_cases_gave():
    cases = [waves.Case(64, 32, 2, 5), waves.Case(128, 32, 0, 0)]
    timed, other = waves.work(0, 1, None, cases)
    assert {name: len(taken) for name, taken in timed["seconds"].items()} == {
        "both libraries": 2,
        "CuPy alone": 2,
    }
    ours, theirs = timed["points"].values()
    np.testing.assert_array_equal(ours, theirs)
    assert ours.shape == (8, 4)
    assert list(other["energies"]) == ["CuPy alone"]
    with pytest.raises(ValueError, match="60 rows cannot be cut into 1 slabs of a multiple of 8"):
        waves.work(0, 1, None, [waves.Case(60, 32, 0, 0)])


def test_a_batch_is_the_same_with_both_libraries():
    start = time.perf_counter()
    (ours, first), (theirs, second) = (
        batches.batch([1, 2, 3], way, (24, 32)) for way in batches.WAYS
    )
    assert 0 < first + second < time.perf_counter() - start
    assert ours == theirs
    assert len(set(ours)) == 3
    assert all(0 < spot < 1 for spot in ours)


def test_the_tables_show_what_was_measured(tmp_path):

    def row(ours, theirs, **what):
        ways = {"both libraries": ours, "CuPy alone": theirs}
        seconds = {n: {"median": s, "spread": s / 100, "samples": [s]} for n, s in ways.items()}
        return {**what, "ratio": ours / theirs, "seconds": seconds}

    found = {
        "machine": {"GPU": "2 x Some GPU", "CuPy": "14.2.0", "date": "2026-11-22"},
        "plan": {
            "sides": [64, 128], "weak": [64, 64], "thin": [16], "steps": 5, "rounds": 3,
            "turns": 3, "frames": 40, "shape": [24, 32], "every": 5, "batch": 20,
        },
        "waves": [
            row(8e-3, 4e-3, gpus=1, rows=64, columns=64),
            row(32e-3, 32e-3, gpus=1, rows=128, columns=128),
            row(5e-3, 5e-3, gpus=2, rows=64, columns=64),
            row(16e-3, 16e-3, gpus=2, rows=128, columns=128),
            row(10e-3, 10e-3, gpus=2, rows=128, columns=64),
            row(1e-3, 1e-3, gpus=1, rows=16, columns=128),
            row(2e-3, 2e-3, gpus=2, rows=32, columns=128),
        ],
        "frames": [
            row(1.0, 1.0, gpus=1, frames=40),
            row(0.625, 0.625, gpus=2, frames=40),
            row(1.25, 1.25, gpus=2, frames=80),
        ],
    }  # fmt: skip
    for wave in found["waves"]:
        theirs = wave["seconds"]["CuPy alone"]
        wave["seconds"]["without halos"] = {**theirs, "median": 0.75 * theirs["median"]}
    for frames in found["frames"]:
        frames["tasks"] = row(0.909 * frames["gpus"], 0.9)
    (tmp_path / "scaling.json").write_text(json.dumps(found))
    tables.write(tmp_path)
    page = (tmp_path / "scaling.md").read_text()
    assert "| 2 | 5.000 | 0.050 | 1.60 | 0.80 | 5.000 | 1.000 |" in page  # strong
    assert "| 2 | 10.000 | 0.100 | 1.60 | 0.80 | 10.000 | 1.000 |" in page  # weak: twice the work
    assert "| 2 | 0.625 | 0.006 | 1.60 | 0.80 | 0.625 | 1.000 | 1.818 | 2.020 |" in page
    assert "| 2 | 2.000 | 0.020 | 1.00 | 0.50 | 2.000 | 1.000 | 1.500 |" in page  # thin slabs


def parts_of(rank, **changes):
    """What one of two ranks says of a case."""
    ways = ("both libraries", "CuPy alone")
    return {
        "energies": {way: np.full(4, 3.0, np.float32) for way in ways},
        "points": {way: np.full((1, 4), rank, np.float32) for way in ways},
        "seconds": {way: [1.0 + rank, 4.0 - rank] for way in (*ways, "without halos")},
        **changes,
    }


def test_the_slowest_gpu_counts_and_other_waves_are_refused():
    case = waves.Case(128, 4, 2, 5)
    found = scaling._together(case, [parts_of(0), parts_of(1)])
    assert found["seconds"]["both libraries"].tolist() == [2, 4]
    assert found["seconds"]["without halos"].tolist() == [2, 4]
    expected = {"CuPy alone": np.array([[0.0] * 4, [1.0] * 4])}
    expected = {"energies": {"CuPy alone": [np.full(4, 3.0)]}, "points": expected}
    scaling.compare(found, expected)
    for name in ("energies", "points"):
        spoilt = {way: value.copy() for way, value in parts_of(1)[name].items()}
        spoilt["both libraries"][..., 2] *= 1.001
        other = scaling._together(case, [parts_of(0), parts_of(1, **{name: spoilt})])
        with pytest.raises(AssertionError, match="128 x 4 on 2 GPUs, both libraries"):
            scaling.compare(other, expected)


def test_the_thin_slabs_are_those_of_the_models_gpus():
    side = max(scaling.FULL.sides)
    assert [side // rows for rows in scaling.FULL.thin] == list(model.GPUS)


def test_the_results_of_tasks_or_the_first_error_come_back(package):
    distributed = package("distributed")
    options = {"processes": False, "dashboard_address": None, "n_workers": 1}
    with (
        distributed.LocalCluster(threads_per_worker=2, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        tasks = [client.submit(pow, 2, k) for k in (3, 4)]
        assert scaling.results(client, tasks, 20, "powers") == [8, 16]
        failing = [client.submit(int, "x"), client.submit(time.sleep, 2)]
        with pytest.raises(ValueError, match="invalid literal"):
            scaling.results(client, failing, 10, "a task that fails while another works")
        assert not failing[1].done()
        with pytest.raises(TimeoutError, match=r"long: no end within 0.2 s; .* are pending"):
            scaling.results(client, failing[1:], 0.2, "long")


def test_workers_end_when_the_benchmark_is_told_to_stop(package):
    package("distributed")
    script = f"""if __name__ == "__main__":
    {install().strip()}
    from benchmarks import scaling
    scaling.end_workers_when_told_to_stop()
    with scaling.cluster({2 if GPUS != 1 else 1}):
        print("ready", flush=True)
        scaling.time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **surroundings()
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in said
    assert "leaked" not in said

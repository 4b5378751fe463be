"""Several GPUs, without NCCL: waves in slabs, tasks, the page."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest
from gpus import GPUS, ON_GPU
from processes import install, run_python, surroundings

import bridge
from benchmarks.scale import all_reduce, cluster, exchange, frames, page, waves
from benchmarks.scale.__main__ import FULL

ROWS, COLUMNS = 64, 96


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(waves, "EVERY", 5)
    monkeypatch.setattr(waves, "CHECKED", 20)
    monkeypatch.setattr(waves, "APART", 8)


class Neighbours:
    """An exchange of slabs on threads of one process: plain copies, where NCCL sends."""

    def __init__(self, rank, addresses, barrier):
        self.rank, self.addresses, self.barrier = rank, addresses, barrier

    @contextlib.contextmanager
    def all_addresses(self, address):
        """Yield what each thread gives; none goes on before all have used it."""
        self.addresses[self.rank] = address
        self.barrier.wait()
        yield list(self.addresses)
        self.barrier.wait()

    def halos(self, address, rows, columns):
        row, kind = 4 * columns, cupy.cuda.runtime.memcpyDefault
        with self.all_addresses(address) as addresses:
            for other, theirs, halo in ((self.rank - 1, rows, 0), (self.rank + 1, 1, rows + 1)):
                if 0 <= other < len(addresses):
                    into, out_of = address + halo * row, addresses[other] + theirs * row
                    cupy.cuda.runtime.memcpyAsync(into, out_of, row, kind, 0)

    def total(self, address):
        with self.all_addresses(address) as addresses:
            mine = [view(other).copy() for other in addresses]
        with self.all_addresses(address):
            view(address)[...] = sum(mine)


class Missing(Neighbours):
    """The same, but nothing is copied."""

    halos = exchange.Alone.halos


def view(address):
    memory = cupy.cuda.UnownedMemory(address, 4, None, 0)
    return cupy.ndarray((1,), np.float32, cupy.cuda.MemoryPointer(memory, 0))


def on(size, way, neighbours):
    """Return the energies on each rank, and the whole field, after some steps."""
    rows, shared = ROWS // size, ([0] * size, threading.Barrier(size, timeout=30))

    def slab(rank):
        with bridge.primary_context():
            ends = neighbours(rank, *shared) if size > 1 else exchange.Alone()
            fields = waves.WAYS[way]((rows + 2, COLUMNS))
            found = waves.Waves(fields, ends, rank * rows, ROWS)
            return found.run(40).get(), fields.in_cupy(found.fields[1])[1:-1].get()

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
    for _ in range(40):
        after = now.copy()
        middle, old = now[1:-1, 1:-1], before[1:-1, 1:-1]
        around = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
        after[1:-1, 1:-1] = 2 * middle - old + 0.25 * (around - 4 * middle)
        before, now = now, after
    motion = ((now - before)[1:-1] ** 2).sum()
    slopes = (np.diff(now[1:-1], axis=1) ** 2).sum() + (np.diff(now, axis=0)[1:] ** 2).sum()
    [found], field = on(1, "both libraries", None)
    np.testing.assert_allclose(field, now[1:-1], atol=1e-4)
    assert found[-1] == pytest.approx((motion + slopes / 4) / 2, rel=1e-4)


def test_a_task_returns_what_each_membrane_gave():
    membranes = waves.work(0, 1, None, [(64, 32), (128, 32)], list(waves.WAYS), 2, 5)
    for found, shape in zip(membranes, [(8, 4), (16, 4)], strict=True):
        ours, theirs = found.values()
        np.testing.assert_array_equal(ours.points, theirs.points)
        np.testing.assert_array_equal(ours.energies, theirs.energies)
        assert ours.points.shape == shape
        assert len(ours.seconds) == len(theirs.seconds) == 2
    with pytest.raises(ValueError, match="60 rows cannot be cut into 1 slabs of a multiple of 8"):
        waves.work(0, 1, None, [(60, 32)], ["CuPy alone"], 0, 0)


def test_a_batch_is_the_same_with_both_libraries():
    start = time.perf_counter()
    (ours, first), (theirs, second) = (
        frames.batch([1, 2, 3], way, (24, 32)) for way in frames.WAYS
    )
    assert 0 < first + second < time.perf_counter() - start
    assert ours == theirs
    assert len(set(ours)) == 3
    assert all(0 < spot < 1 for spot in ours)


def parts_of(rank, **changes):
    """What one of two ranks says of a membrane."""
    found = waves.Found(
        np.full(4, 3.0, np.float32), np.full((1, 4), rank, np.float32), [1.0 + rank, 4.0 - rank]
    )
    return {"both libraries": found._replace(**changes), "CuPy alone": found}


def test_the_slowest_gpu_counts_and_other_waves_are_refused():
    found = waves.together((parts_of(0), parts_of(1)))
    assert found["both libraries"].seconds.tolist() == [2, 4]
    expected = waves.Found([np.full(4, 3.0)], np.array([[0.0] * 4, [1.0] * 4]), [])
    waves.compare(found, expected, "a membrane")
    for name in ("energies", "points"):
        spoilt = getattr(parts_of(1)["CuPy alone"], name).copy()
        spoilt[..., 2] *= 1.001
        other = waves.together((parts_of(0), parts_of(1, **{name: spoilt})))
        with pytest.raises(AssertionError, match="of a membrane, both libraries"):
            waves.compare(other, expected, "a membrane")


def test_the_page_shows_what_was_measured():
    def row(gpus, ours, theirs, tasks=None):
        seconds = {"both libraries": [ours] * 3, "CuPy alone": [theirs] * 3}
        return page.Row(gpus, page.timings(seconds), tasks and row(gpus, *tasks).timings)

    strong = page.Curve("128 x 128 in all", False, [row(1, 8e-3, 4e-3), row(2, 5e-3, 5e-3)])
    weak = page.Curve("64 x 64 a GPU", True, [row(1, 8e-3, 8e-3), row(2, 10e-3, 8e-3)])
    tasks = page.Curve("40 frames", False, [row(1, 1, 1, (2, 2)), row(2, 0.625, 0.5, (1.8, 2))])
    taken = {all_reduce.CUPY: 1 << 20, all_reduce.KEPT: 1 << 21, all_reduce.EACH: 1 << 19}  # us
    turns = page.timings({name: [time] for name, time in taken.items()})
    bandwidths = page.all_reduce_table({1 << 30: turns}, 4)
    text = page.page({"GPU": "2 x Some GPU"}, FULL, [strong, weak], [tasks], bandwidths)
    for line in (
        "| GPU | 2 x Some GPU |",
        "### Strong scaling: 128 x 128 in all",
        "| 1 | 8.000 | 0.000 | 1.00 | 1.00 | 4.000 | 2.000 |",
        "| 2 | 5.000 | 0.000 | 1.60 | 0.80 | 5.000 | 1.000 |",
        "### Weak scaling: 64 x 64 a GPU",
        "| 2 | 10.000 | 0.000 | 1.60 | 0.80 | 8.000 | 1.250 |",  # twice the work
        "| 2 | 0.625 | 0.000 | 1.60 | 0.80 | 0.500 | 1.250 | 1.800 | 0.900 |",
        "| 1024 MiB | 1.5 | 0.8 | 0.500 | 3.1 | 2.000 |",  # twice 3/4 of 1.024 GB/s
        "100 steps, in 9 rounds",
        "Frames of 3840 x 2160 float32",
    ):
        assert line in text


def test_one_gpu_is_measured_with_dask(package):
    package("distributed")
    done = run_python(
        """
        from benchmarks.scale import __main__ as main
        if __name__ == "__main__":
            plan = main.Plan((64, 128), (64, 64), 50, 2, 2, 30, (24, 32))
            print(main.measure([1], plan))
        """,
        DASK_DISTRIBUTED__WORKER__PRELOAD=repr([] if ON_GPU else [install()]),
        DASK_LOGGING__DISTRIBUTED="critical",  # on a busy machine, heartbeats fail at the end
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "waves on 1: the energies and heights are those of one GPU",
        "frames on 1: the brightest spots are those of one GPU",
    ]
    rows = [line for line in lines if line.startswith("| 1 | ")]
    assert len(rows) == 5
    assert rows[0] == rows[2] != rows[1]  # a membrane of 64 x 64 is in two tables
    assert rows[3] == rows[4]


def test_the_results_of_tasks_or_the_first_error_come_back(package):
    distributed = package("distributed")
    options = {"processes": False, "dashboard_address": ":0", "n_workers": 1}
    with (
        distributed.LocalCluster(threads_per_worker=2, **options) as local,
        distributed.Client(local) as client,
    ):
        tasks = [client.submit(pow, 2, k) for k in (3, 4)]
        assert cluster.results(client, tasks, 20, "powers") == [8, 16]
        failing = [client.submit(int, "x"), client.submit(time.sleep, 2)]
        with pytest.raises(ValueError, match="invalid literal"):
            cluster.results(client, failing, 10, "a task that fails while another works")
        assert not failing[1].done()
        with pytest.raises(TimeoutError, match=r"long: no end within 0.2 s; .* are pending"):
            cluster.results(client, failing[1:], 0.2, "long")


def test_workers_end_when_the_benchmark_is_told_to_stop(package):
    package("distributed")
    script = f"""if __name__ == "__main__":
    {install().strip()}
    import time
    from benchmarks.scale.cluster import cluster
    with cluster({2 if GPUS != 1 else 1}):
        print("ready", flush=True)
        time.sleep(60)
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

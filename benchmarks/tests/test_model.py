"""The model of several GPUs: its fit, and its tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import model

LINK = (9e-6, 1e-11)  # an exchange, a byte
NOISE = 2e-3  # of a step, as the rounds of a benchmark differ
CELL = 4e-12
SIZES = [(16384, 16384), (32768, 32768)]


def points(link=LINK, noise=0.0, seed=1, thin=(4096, 512, 64)):
    """Return steps that take as long as a link says, written out by hand; or almost so long."""
    rng = np.random.default_rng(seed)
    latency, byte = link
    found = []
    for gpus in (1, 2, 4):
        slabs = [(16384 * gpus, 16384), *((rows * gpus, 32768) for rows in thin)]
        for rows, columns in [*SIZES, *slabs]:
            kernel = seconds = rows * columns / gpus * CELL
            if gpus > 1:
                halos = 1 if gpus == 2 else 2
                levels = {2: 1, 4: 2}[gpus]
                seconds += latency + halos * 4 * columns * byte + levels * latency / 50
            seconds *= 1 + noise * rng.standard_normal()
            found.append(model.Point(gpus, rows, columns, seconds, kernel))
    return found


def test_the_fit_recovers_what_made_the_points():
    np.testing.assert_allclose(model.fit(points()), LINK, rtol=1e-6)


def test_the_fit_bears_noise_and_tells_other_links_apart():
    for link in (LINK, (60e-6, 4e-11)):
        found = [model.fit(points(link, NOISE, seed)) for seed in range(20)]
        np.testing.assert_allclose(found, [link] * 20, rtol=0.3)
    # By the thin slabs: half of their steps is the exchange.
    found = [model.fit(points(LINK, NOISE, seed, thin=())) for seed in range(20)]
    assert (abs(np.array(found) / LINK - 1) > 0.3).any()


def test_the_fit_gives_nothing_negative():
    faster = [p._replace(seconds=0.9 * p.kernel) if p.gpus > 1 else p for p in points()]
    assert model.fit(faster) == (0, 0)
    even = [p._replace(seconds=p.kernel + 9e-6) if p.gpus > 1 else p for p in points()]
    latency, byte = model.fit(even)
    assert latency == pytest.approx(9e-6, rel=0.05)
    assert byte == 0


@pytest.mark.parametrize("gpus", [(1,), (1, 2)])
def test_points_that_do_not_tell_the_terms_apart_are_refused(gpus):
    alike = [p for p in points() if p.gpus in gpus and p.columns == 16384]
    with pytest.raises(ValueError, match="do not tell latency and bandwidth apart"):
        model.fit(alike)


def test_what_an_exchange_takes():
    """By numbers written out: a link that is slower than the network's port, and a faster one."""
    slow, fast = model.Link(10e-6, 1e-10), model.Link(10e-6, 1e-12)
    halo = 4 * 1000
    assert model.exchange(slow, 1, 1000) == 0
    assert model.exchange(slow, 2, 1000) == pytest.approx(10.2e-6 + halo * 1e-10, abs=1e-12)
    assert model.exchange(slow, 8, 1000) == pytest.approx(10.6e-6 + 2 * halo * 1e-10, abs=1e-12)
    beyond = 5e-6 * (1 + 3 / 50)  # the network's latency, and that of 3 levels of the sum
    here = 11.2e-6 + 2 * halo * 1e-10
    assert model.exchange(slow, 64, 1000) == pytest.approx(here + beyond, abs=1e-12)
    here = 11.2e-6 + halo * 1e-12 + halo / 50e9  # one halo goes by the port
    assert model.exchange(fast, 64, 1000) == pytest.approx(here + beyond, abs=1e-12)
    beyond = 20e-6 * (1 + 3 / 50)
    assert model.exchange(fast, 64, 1000, 20e-6) == pytest.approx(here + beyond, abs=1e-12)


def test_the_table_has_what_each_gpu_sends_and_how_efficient_it_is():
    link = model.Link(10e-6, 0.0)
    kernels = {1: 800e-6, 8: 100e-6, 64: 12.5e-6}
    ideals = {1: 800e-6, 8: 100e-6, 64: 12.5e-6}
    one, eight, many = model.table(link, 1000, kernels, ideals)
    assert [line.sent for line in (one, eight, many)] == [0, 8000, 8000]
    assert [round(line.messages, 2) for line in (one, eight, many)] == [0, 2.06, 2.12]
    assert (one.efficiency, one.between) == (1, (1, 1))
    assert eight.efficiency == pytest.approx(100 / 110.6)
    port = 4000 / 50e9 * 1e6
    for latency, found in zip((5, 2, 20), (many.efficiency, *many.between), strict=True):
        assert found == pytest.approx(12.5 / (12.5 + 11.2 + port + latency * 1.06))


def test_the_page_is_written_of_the_measurements(tmp_path):
    def ways(point):
        more = {"without halos": {"median": point.kernel}} if point.gpus > 1 else {}
        return {"both libraries": {"median": point.seconds}, **more}

    found = {
        "machine": {"GPU": "4 x Some GPU", "date": "2026-11-22"},
        "plan": {"sides": [16384, 32768], "weak": [16384, 16384]},
        "waves": [
            {"gpus": p.gpus, "rows": p.rows, "columns": p.columns, "seconds": ways(p)}
            for p in points()
        ],
    }
    (tmp_path / "scaling.json").write_text(json.dumps(found))
    model.write(tmp_path)
    page = (tmp_path / "model.md").read_text()
    assert "| latency of an exchange | 9.0 us |" in page
    assert "| bandwidth of the link | 100 GB/s |" in page
    assert "| 2 | 128 x 32768 | 18.9 | 8.4 | 18.9 | -0.0% |" in page.replace("+0.0%", "-0.0%")
    assert "| 8 | 262,144 | 2.06 | 536.9 | 12.2 | 549.0 | 0.98 | 0.98 and 0.98 |" in page

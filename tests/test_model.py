"""The model of several GPUs: its fit, and its tables."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
from conftest import ROOT

LINK = (3e-12, 12e-6, 4e-12)  # a cell, a message, a byte: about an H200's
SHAPES = [(16384, 16384), (32768, 32768)]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.model")


def points(model, link=LINK, noise=0.0):
    """Return steps that take as long as a link says, written out by hand; or almost so long."""
    rng = np.random.default_rng(1)
    cell, latency, byte = link
    found = []
    for gpus in (1, 2, 4):
        for rows, columns in [*SHAPES, (16384 * gpus, 16384)]:
            seconds = rows * columns / gpus * cell
            if gpus > 1:
                halos = 1 if gpus == 2 else 2
                levels = {2: 1, 4: 2}[gpus]
                seconds += latency + halos * 4 * columns * byte + levels * latency / 50
            seconds *= 1 + noise * rng.standard_normal()
            found.append(model.Point(gpus, rows, columns, seconds))
    return found


def test_the_fit_recovers_what_made_the_points(model):
    np.testing.assert_allclose(model.fit(points(model)), LINK, rtol=1e-6)


def test_the_fit_bears_noise_and_tells_other_links_apart(model):
    np.testing.assert_allclose(model.fit(points(model, noise=1e-4)), LINK, rtol=0.3)
    slow = (3e-12, 60e-6, 4e-11)
    np.testing.assert_allclose(model.fit(points(model, slow, noise=1e-4)), slow, rtol=0.3)
    assert not np.allclose(model.fit(points(model, slow)), LINK, rtol=0.3)  # so that it can fail


def test_the_fit_gives_nothing_negative(model):
    bent = [p._replace(seconds=p.seconds * (1 if p.gpus == 1 else 0.9)) for p in points(model)]
    link = model.fit(bent)  # on several GPUs faster than their share
    assert min(link) == 0
    assert link.cell == pytest.approx(LINK[0], rel=0.1)


def test_points_that_do_not_tell_the_terms_apart_are_refused(model):
    alone = [point for point in points(model) if point.gpus == 1]
    with pytest.raises(ValueError, match="do not tell cell, latency and bandwidth apart"):
        model.fit(alone)


@pytest.mark.parametrize("is_weak", [False, True], ids=["strong", "weak"])
def test_the_table_is_monotone(model, is_weak):
    rows = 16384 if is_weak else 32768
    lines = model.table(model.Link(*LINK), rows, 16384 if is_weak else 32768, is_weak)
    assert [line.gpus for line in lines] == [1, 8, 64, 512]
    efficiency = [line.efficiency for line in lines]
    assert efficiency[0] == 1
    assert efficiency == sorted(efficiency, reverse=True)
    assert len(set(efficiency)) == len(efficiency)
    seconds = [line.seconds for line in lines]
    assert seconds == sorted(seconds, reverse=not is_weak)


def test_what_each_gpu_sends_is_what_its_slab_has(model):
    lines = model.table(model.Link(*LINK), 32768, 32768, False)
    assert [line.sent // (32768 * 4) for line in lines] == [0, 2, 2, 2]
    assert [round(line.messages, 2) for line in lines] == [0, 2.06, 2.12, 2.18]
    assert model.nbytes(2, 32768) == 32768 * 4  # two GPUs have one neighbour each


def test_the_network_joins_beyond_one_machine(model):
    link = model.Link(*LINK)
    inside, beyond = (model.seconds(link, gpus, 4096 * gpus, 16384) for gpus in (8, 16))
    assert beyond - inside > model.NETWORK_LATENCY
    cells, latencies, sent = model.terms(8, 4096 * 8, 16384)
    assert inside == pytest.approx(cells * LINK[0] + latencies * LINK[1] + sent * LINK[2])


def test_the_page_is_written_of_the_measurements(model, tmp_path):
    found = {
        "machine": {"GPU": "4 x Some GPU", "date": "2026-11-22"},
        "plan": {"sides": [16384, 32768], "weak": [16384, 16384]},
        "waves": [
            {**p._asdict(), "seconds": {"both libraries": {"median": p.seconds}}}
            for p in points(model)
        ],
    }
    (tmp_path / "scaling.json").write_text(json.dumps(found))
    model.write(tmp_path)
    page = (tmp_path / "model.md").read_text()
    assert "| a, time of a cell | 3.000 ps |" in page
    assert "| latency of the halos | 12.0 us |" in page
    assert "| bandwidth of the link | 250 GB/s |" in page
    assert "The largest residual is 0.0%; 9 points, 3 numbers." in page

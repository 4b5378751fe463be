"""Random schedules give the serial result, and do not where any one fence is missing."""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys

import cupy
import ordering
import pycuda.driver as drv
import pytest
from conftest import ON_GPU, ROOT

import bridge
from bridge import streams


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_schedules_give_the_serial_result(first):
    assert ordering.run(500, first) == 500


def fences():
    """Return the places in the package where streams are ordered: name, module, function, line."""
    found = {}
    for path in sorted((ROOT / "bridge").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
                if called in ("order", "fence"):  # of nested functions the inner one comes last
                    found[path.stem, node.lineno] = (function.name, called)
    names = {}
    for (module, line), (function, called) in sorted(found.items()):
        name = f"{module}.{function}"
        names[name if name not in names else f"{name}, {len(names)}"] = (module, called, line)
    return names


FENCES = fences()
CAPTURED = FENCES.pop("streams._end")  # only for streams that are being captured


@contextlib.contextmanager
def without(module, called, line, monkeypatch):
    """Queue nothing where one line of the package orders streams."""
    module = importlib.import_module(f"bridge.{module}")
    real = getattr(module, called)

    def unless_there(*args):
        if sys._getframe(1).f_lineno != line:
            return real(*args)
        with monkeypatch.context() as patch:
            patch.setattr(streams, "_record", lambda *args: None)
            patch.setattr(streams, "_wait", lambda *args: None)
            return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, called, unless_there)
        yield


if not ON_GPU:  # there a missing fence is a stale read now and then, here each time

    @pytest.mark.parametrize("fence", FENCES.values(), ids=FENCES)
    def test_without_any_one_fence_they_do_not(fence, monkeypatch):
        with without(*fence, monkeypatch), pytest.raises(AssertionError, match="schedule"):
            ordering.run(3000)


def a_graph_of_two_streams():
    """Capture a stream, and work on another one through a view that goes at once."""
    x, inside, other = cupy.zeros(8), cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    with inside:
        inside.begin_capture()
        try:
            a = bridge.as_pycuda(x, stream=other)
            drv.memset_d32_async(a.gpudata, 0, 16, other)
            del a
        finally:
            inside.end_capture()


def test_the_fence_at_the_end_of_a_view_in_a_capture(monkeypatch):
    a_graph_of_two_streams()
    error = cupy.cuda.runtime.CUDARuntimeError
    with without(*CAPTURED, monkeypatch), pytest.raises(error, match="Unjoined"):
        a_graph_of_two_streams()


def test_every_fence_is_known():
    assert len(FENCES) >= 15

"""Rules 2 and 3 of the guide on each pair of streams, and what happens without `bridge`."""

import cupy
import pytest
import races
from pycuda import gpuarray
from races import CUPY_STREAMS, PYCUDA_STREAMS, UNORDERED, every_pair

import bridge
import bridge.autoinit


def plain_array(x):
    """Return a GPUArray on a CuPy array's memory by PyCUDA's constructor, which orders nothing."""
    return gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x)


TURNS = {  # `bridge`, and what comes without it; the right number, and the stale one
    races.cupy_reads: (bridge.as_cupy, cupy.asarray, 7, 0),
    races.pycuda_reads: (bridge.as_pycuda, plain_array, 7, 0),
    races.cupy_reuses: (bridge.as_pycuda, plain_array, 1, 7),
    races.pycuda_reuses: (bridge.as_cupy, cupy.asarray, 1, 7),
}
every_turn = pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__)


@every_turn
@every_pair
def test_a_turn_is_ordered(turn, cupy_kind, pycuda_kind, latch):
    convert, _, right, _ = TURNS[turn]
    streams = CUPY_STREAMS[cupy_kind](), PYCUDA_STREAMS[pycuda_kind]()
    assert turn(convert, *streams, latch) == {right}


@every_turn
@every_pair
def test_without_bridge_a_turn_is_stale(turn, cupy_kind, pycuda_kind, latch, pycudas_export):
    """By PyCUDA's own export and constructor, on the pairs that CUDA does not order."""
    _, naive, right, stale = TURNS[turn]
    streams = CUPY_STREAMS[cupy_kind](), PYCUDA_STREAMS[pycuda_kind]()
    early = (cupy_kind, pycuda_kind) in UNORDERED
    assert turn(naive, *streams, latch, early) == {stale if early else right}

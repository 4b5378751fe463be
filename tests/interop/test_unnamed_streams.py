"""Rules 2 and 3 of the guide on each pair of streams, and what happens without `bridge`.

Each test is one turn of both libraries, which also a GPU runs; `test_all_programs` has longer ones.
"""

import cupy
import pytest
from races import (
    CUPY_STREAMS,
    UNORDERED,
    as_plain_array,
    every_pair,
    read_through_cupy,
    read_through_pycuda,
    reuse_cupys_block,
    reuse_pycudas_block,
)

import bridge
import bridge.autoinit


def as_cupy(a, _=None):
    return bridge.as_cupy(a)


def as_pycuda(x, _):
    return bridge.as_pycuda(x)


def asarray(a, _=None):
    return cupy.asarray(a)


@every_pair
def test_cupy_reads_what_pycuda_wrote(cupy_stream, pycuda_stream, latch, put):
    assert read_through_cupy(as_cupy, cupy_stream, pycuda_stream, latch, put) == {7}


@every_pair
def test_pycuda_reads_what_cupy_wrote(cupy_stream, pycuda_stream, latch, copy_kernel):
    assert read_through_pycuda(as_pycuda, cupy_stream, pycuda_stream, latch, copy_kernel) == {7}


@every_pair
def test_cupys_block_is_reused_after_pycudas_work(cupy_stream, pycuda_stream, latch, put):
    assert reuse_cupys_block(as_pycuda, cupy_stream, pycuda_stream, latch, put) == {1}


@every_pair
def test_pycudas_block_is_reused_after_cupys_work(cupy_stream, pycuda_stream, latch, put):
    assert reuse_pycudas_block(as_cupy, cupy_stream, latch, put, pycuda_stream) == {1}


# ---- without bridge: the controls ----------------------------------------------------------------


@pytest.fixture
def stale(cupy_kind, pycuda_kind):
    """Tell whether CUDA leaves a pair of streams unordered."""
    return (cupy_kind, pycuda_kind) in UNORDERED


@pytest.fixture
def finishing(stale, cupy_stream, pycuda_stream):
    """Return what lets each library's stream come to its end before the latch opens."""
    if not stale:
        return None, None
    return cupy_stream.synchronize, (pycuda_stream or cupy.cuda.Stream.null).synchronize


@every_pair
def test_pycudas_own_export_is_stale(
    stale, cupy_stream, pycuda_stream, finishing, latch, put, pycudas_export
):
    used = cupy_stream, pycuda_stream, latch, put, finishing[0]
    assert read_through_cupy(asarray, *used) == ({0} if stale else {7})


@every_pair
def test_the_plain_constructor_is_stale(
    stale, cupy_stream, pycuda_stream, finishing, latch, copy_kernel
):
    used = cupy_stream, pycuda_stream, latch, copy_kernel, finishing[1]
    assert read_through_pycuda(as_plain_array, *used) == ({0} if stale else {7})


@every_pair
def test_the_plain_constructor_lets_cupys_block_go_too_early(
    stale, cupy_stream, pycuda_stream, finishing, latch, put
):
    used = cupy_stream, pycuda_stream, latch, put, finishing[0]
    assert reuse_cupys_block(as_plain_array, *used) == ({7} if stale else {1})


def test_cupy_asarray_lets_pycudas_block_go_too_early(latch, put, pycudas_export):
    cupy_stream, finish = CUPY_STREAMS["non-blocking"](), cupy.cuda.Stream.null.synchronize
    assert reuse_pycudas_block(asarray, cupy_stream, latch, put, before_release=finish) == {7}

"""Warp functions with masks, threads that ended, and meetings of lanes."""

import numpy as np
import pytest

LANES = np.arange(32)


def test_shuffles_of_half_a_warp(gpu):
    out = gpu.run(
        "int v = l + 1; if (l < 16) for (int d = 8; d; d >>= 1) v += __shfl_down_sync(0xffff, "
        "v, d);"
        "o[l] = __shfl_sync(~0u, v, 0);"
    )
    assert (out == 136).all()


def test_groups_of_sixteen_with_other_trip_counts(gpu):
    out = gpu.run(
        "int g = l / 16, s = 0; unsigned m = 0xffffu << 16 * g;"
        "for (int r = 0; r < 5 * (g + 1); ++r) s += __shfl_xor_sync(m, 1, 1 + r % 15); o[l] = s;"
    )
    assert (out == np.where(LANES < 16, 5, 10)).all()


def test_ballot_then_a_shuffle_in_the_odd_lanes(gpu):
    out = gpu.run(
        "unsigned odd = __ballot_sync(~0u, l & 1); int v = l;"
        "if (l & 1) v = __shfl_sync(odd, l, 3); o[l] = v;"
    )
    assert (out == np.where(LANES & 1, 3, LANES)).all()


def test_two_branches_use_their_own_masks(gpu):
    out = gpu.run(
        "if (l % 4 == 0) o[l] = __popc(__ballot_sync(0x11111111, 1));"
        "else o[l] = __popc(__ballot_sync(0xeeeeeeee, l & 1));"
    )
    assert (out == np.where(LANES % 4 == 0, 8, 16)).all()


def test_activemask_of_a_branch(gpu):
    out = gpu.run("unsigned m = 0; if (l % 3 == 0) m = __activemask(); o[l] = m;", out=(32, "u4"))
    mask = sum(1 << n for n in range(0, 32, 3))
    assert (out == np.where(LANES % 3 == 0, mask, 0)).all()


def test_activemask_of_a_block_of_sixteen(gpu):
    assert (gpu.run("o[l] = __activemask();", out=(16, "u4"), block=16) == 0xFFFF).all()


def test_activemask_behind_a_branch_is_whole(gpu):
    out = gpu.run("if (l & 1) o[l] = 1; __syncwarp(); o[l] = __activemask();", out=(32, "u4"))
    assert (out == 0xFFFFFFFF).all()


def test_aggregated_atomic(gpu):
    out = gpu.run(
        "if (i % 4 == 3) { unsigned m = __activemask(); int leader = __ffs(m) - 1, old = 0;"
        "if (l == leader) old = atomicAdd(&o[0], __popc(m)); old = __shfl_sync(m, old, leader); }",
        block=128,
        grid=4,
    )
    assert out[0] == 128


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__shfl_xor_sync(~0u, l, 8, 8)", np.where(LANES & 8, LANES - 8, LANES)),
        ("__shfl_sync(~0u, l, -1, 8)", LANES | 7),
        ("__shfl_sync(~0u, l, 33)", 1),
        ("__shfl_up_sync(~0u, l, 3)", np.where(LANES < 3, LANES, LANES - 3)),
        ("__shfl_up_sync(~0u, l, 3, 8)", np.where(LANES % 8 < 3, LANES, LANES - 3)),
        ("__shfl_down_sync(~0u, l, 5)", np.where(LANES > 26, LANES, LANES + 5)),
        ("__shfl_down_sync(~0u, l, 5, 16)", np.where(LANES % 16 > 10, LANES, LANES + 5)),
        ("__shfl_xor_sync(~0u, l, 31)", LANES ^ 31),
        ("__any_sync(~0u, l == 7)", 1),
        ("__all_sync(~0u, l < 32)", 1),
        ("__all_sync(~0u, l < 31)", 0),
        ("__uni_sync(~0u, l < 31)", 0),
        ("__ballot_sync(~0u, l > 29)", 0xC0000000 - (1 << 32)),
        ("__popc(__match_any_sync(~0u, l / 5))", np.where(LANES < 30, 5, 2)),
        ("__reduce_add_sync(~0u, l)", 496),
        ("__reduce_max_sync(~0u, -(int)l)", 0),
        ("__reduce_min_sync(~0u, -(int)l)", -31),
        ("__reduce_max_sync(~0u, l)", 31),
        ("__reduce_and_sync(~0u, l | 64)", 64),
        ("__reduce_or_sync(~0u, l)", 31),
        ("__reduce_xor_sync(~0u, 1u << l)", -1),
    ],
)
def test_functions(gpu, call, expected):
    assert (gpu.run(f"o[l] = {call};") == np.broadcast_to(np.int32(expected), 32)).all()


def test_match_all(gpu):
    out = gpu.run(
        "int p, q; unsigned m = __match_all_sync(~0u, 5, &p), n = __match_all_sync(~0u, l, &q);"
        "o[l] = (m == ~0u) + 2 * p + 4 * (n == 0) + 8 * q;"
    )
    assert (out == 7).all()


def test_shuffles_of_64_bits(gpu):
    out = gpu.run("o[l] = __shfl_sync(~0u, 1.5 * l, 5);", out=(32, "f8"))
    assert (out == 7.5).all()


def test_functions_after_threads_have_ended(gpu):
    body = "if (i >= 40) return; o[i] = %s;"
    assert gpu.run(body % "__ballot_sync(~0u, 1)", out=(40, "u4"), block=64)[39] == 0xFF
    assert gpu.run(body % "__all_sync(~0u, 1)", out=(40, "u4"), block=64)[39] == 1


def test_count_after_threads_have_ended(gpu):
    out = gpu.run("if (i >= 10) return; o[i] = __syncthreads_count(1);", out=(10, "i4"), block=64)
    assert (out == 10).all()


def test_block_functions(gpu):
    out = gpu.run(
        "o[i] = __syncthreads_count(i % 3 == 0) + 1000 * __syncthreads_and(i < 64)"
        "+ 2000 * __syncthreads_or(i == 70) + 4000 * __syncthreads_and(i < 96);",
        out=(96, "i4"),
        block=96,
    )
    assert (out == 32 + 2000 + 4000).all()


def test_code_older_than_volta(gpu):
    out = gpu.run(
        "__shared__ volatile int s[64]; s[i] = i; __syncthreads(); if (i < 32) {"
        "s[i] += s[i + 32]; s[i] += s[i + 16]; s[i] += s[i + 8]; s[i] += s[i + 4]; s[i] += s[i "
        "+ 2];"
        "s[i] += s[i + 1]; } if (!i) o[0] = s[0];",
        block=64,
    )
    assert out[0] == 2016


def test_barriers_with_numbers(gpu):
    out = gpu.run(
        '__shared__ int s[128]; if (i < 64) { s[i] = i; asm volatile("bar.arrive 1, 128;"); }'
        'else { asm volatile("bar.sync 1, 128;"); o[i - 64] = s[127 - i]; }',
        out=(64, "i4"),
        block=128,
    )
    assert (out == np.arange(63, -1, -1)).all()


def test_elect(gpu):
    out = gpu.run(
        'if (l > 7 && l < 16) { unsigned w, p; asm volatile("{ .reg .pred q; elect.sync %0|q, '
        "0xff00;"
        ' selp.u32 %1, 1, 0, q; }" : "=r"(w), "=r"(p)); o[l] = 10 * w + p; }'
    )
    assert (out[8:16] == [81] + [80] * 7).all()


def test_cooperative_groups(gpu):
    out = gpu.run(
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n"
        "namespace cg = cooperative_groups;\n====\n"
        "auto tile = cg::tiled_partition<8>(cg::this_thread_block());"
        "o[i] = cg::reduce(tile, (int)i, cg::plus<int>()) + 1000 * tile.thread_rank();",
        options=_include(),
    )
    sums = np.arange(32).reshape(4, 8).sum(1).repeat(8)
    assert (out == sums + 1000 * (LANES % 8)).all()


def test_coalesced_threads(gpu):
    out = gpu.run(
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n====\n"
        "if (l % 5 == 0) { auto g = cg::coalesced_threads(); o[l] = g.size() * 100 + "
        "g.thread_rank(); }",
        options=_include(),
    )
    assert (out == np.where(LANES % 5 == 0, 700 + LANES // 5, 0)).all()


def _include():
    from hostcuda import _build

    return [f"-I{_build.cuda_include()}", *(f"-I{folder}" for folder in _build.vendor_folders())]

"""Cooperative groups: blocks, tiles, coalesced threads, partitions, reductions, scans, grids.

Source: CUDA C++ Programming Guide, "Cooperative Groups".
"""

from . import Kernel, L, f4, i4, np, u4

HEADERS = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
"""
MORE = """#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
"""
N = np.arange(64)
STEPS = np.arange(128)  # after each step, half as many numbers are sums
for _d in (64, 32, 16, 8, 4, 2, 1):
    STEPS[:_d] += STEPS[_d : 2 * _d]


def group(body, expected, **more):
    return Kernel(
        "auto block = cg::this_thread_block(); auto warp = cg::tiled_partition<32>(block);" + body,
        expected,
        **more,
    )


KERNELS = {
    "thread_block": group(
        """o[block.thread_rank()] = block.size() * 100 + block.thread_rank()
            + block.group_index().x * 10000 + block.thread_index().y * 100000;""",
        i4(6400 + N + N // 16 * 100000),
        block=(16, 4),
    ),
    "thread_block_sync": group(
        "__shared__ int s[64]; s[t] = t; block.sync(); o[t] = s[63 - t];", i4(63 - N), block=64
    ),
    "tile_of_8": group(
        """auto tile = cg::tiled_partition<8>(block);
        o[t] = tile.thread_rank() + 10 * tile.size() + 1000 * tile.meta_group_rank()
            + 100000 * tile.meta_group_size();""",
        i4(N % 8 + 80 + N // 8 * 1000 + 800000),
        block=64,
    ),
    "tile_shuffles": group(
        """auto tile = cg::tiled_partition<4>(block);
        o[t] = tile.shfl(t, 2) + 100 * tile.shfl_down(t, 1) + 10000 * tile.shfl_xor(t, 3);""",
        i4(L // 4 * 4 + 2 + 100 * np.where(L % 4 < 3, L + 1, L) + 10000 * (L ^ 3)),
    ),
    "tile_votes": group(
        """auto tile = cg::tiled_partition<16>(block);
        o[t] = tile.ballot(t % 3 == 0) + (tile.any(t == 20) << 16) + (tile.all(t < 16) << 17);""",
        u4([0x9249 + (1 << 17)] * 16 + [0x4924 + (1 << 16)] * 16),
    ),
    "tile_match": group(
        "auto tile = cg::tiled_partition<8>(block); o[t] = tile.match_any(t & 1);",
        u4(np.where(L & 1, 0xAA, 0x55)),
    ),
    "tile_in_a_branch": group(
        """auto tile = cg::tiled_partition<16>(block);
        int v = t;
        if (t < 16) for (int d = 8; d; d /= 2) v += tile.shfl_down(v, d);
        o[t] = warp.shfl(v, 0);""",
        i4(L * 0 + 120),
    ),
    "tile_of_run_time": group(
        """auto tile = cg::tiled_partition(block, 16);
        o[t] = tile.size() * 100 + tile.thread_rank();""",
        i4(1600 + L % 16),
    ),
    "coalesced_threads": group(
        """o[t] = -1;
        if (t % 3 == 0) {
            auto some = cg::coalesced_threads();
            o[t] = some.size() * 100 + some.thread_rank();
        }""",
        i4(np.where(L % 3, -1, 1100 + L // 3)),
    ),
    "coalesced_shuffles": group(
        """o[t] = -1;
        if (t & 1) {
            auto some = cg::coalesced_threads();
            o[t] = some.shfl(t, 3) + 100 * some.shfl_up(t, 1) + 10000 * some.any(t == 31);
        }""",
        i4(np.where(L & 1, 7 + 100 * np.maximum(L - 2, 1) + 10000, -1)),
    ),
    "aggregated_by_coalesced_threads": group(
        """if (t % 4 == 1) {
            auto some = cg::coalesced_threads();
            int first = 0;
            if (!some.thread_rank()) first = atomicAdd(o, some.size());
            o[1 + some.shfl(first, 0) + some.thread_rank()] = 1;
        }""",
        i4([8] + [1] * 8),
        start=0,
    ),
    "labeled_partition": group(
        """auto some = cg::labeled_partition(warp, t % 3);
        o[t] = some.size() * 100 + some.thread_rank();""",
        i4([(11 - (lane % 3 == 2)) * 100 + lane // 3 for lane in range(32)]),
    ),
    "binary_partition": group(
        """auto some = cg::binary_partition(warp, t < 10);
        o[t] = some.size() * 100 + some.thread_rank();""",
        i4([1000 + n for n in range(10)] + [2200 + n for n in range(22)]),
    ),
    "reduce": group(
        """o[t] = cg::reduce(warp, t, cg::plus<int>()) + 1000 * cg::reduce(warp, t, cg::greater<int>())
            + 100000 * cg::reduce(cg::tiled_partition<8>(block), t, cg::less<int>());""",
        i4(496 + 31000 + 100000 * (L // 8 * 8)),
        headers=MORE,
    ),
    "reduce_of_float_by_a_lambda": group(
        """auto tile = cg::tiled_partition<4>(block);
        o[t] = cg::reduce(tile, t + 1.f, [](float x, float y) { return x * y; });""",
        f4([np.prod(np.arange(1.0, 5) + lane // 4 * 4) for lane in range(32)]),
        headers=MORE,
    ),
    "reduce_of_coalesced_threads": group(
        """o[t] = 0;
        if (t < 20) { auto some = cg::coalesced_threads(); o[t] = cg::reduce(some, t, cg::plus<int>()); }""",
        i4(np.where(L < 20, 190, 0)),
        headers=MORE,
    ),
    "scans": group(
        """o[t] = cg::inclusive_scan(warp, t) + 1000 * cg::exclusive_scan(warp, 1)
            + 100000 * cg::inclusive_scan(cg::tiled_partition<8>(block), 1);""",
        i4(L * (L + 1) // 2 + 1000 * L + 100000 * (L % 8 + 1)),
        headers=MORE,
    ),
    "invoke_one": group(
        """if (warp.thread_rank() == 0) atomicAdd(o, 1);
        cg::invoke_one(block, [&] { atomicAdd(o + 1, 1); });""",
        i4([2, 1]),
        block=64,
        start=0,
    ),
    "block_tile_of_64": group(
        "__shared__ int s[64]; s[t] = t; cg::sync(block); o[t] = s[t ^ 63] + warp.meta_group_rank();",
        i4((N ^ 63) + N // 32),
        block=64,
    ),
    "grid_sync": Kernel(
        """auto grid = cg::this_grid();
        o[i] = i;
        grid.sync();
        int other = ((volatile int *)o)[(i + 32) % 128];
        grid.sync();
        o[i] = other + 1000 * grid.is_valid() + 10000 * grid.num_blocks();""",
        i4((np.arange(128) + 32) % 128 + 41000),
        grid=4,
        cooperative=True,
    ),
    "grid_rank": Kernel(
        "auto grid = cg::this_grid(); o[grid.thread_rank()] = grid.size() + grid.block_rank();",
        i4(64 + np.arange(64) // 16),
        grid=4,
        block=16,
        cooperative=True,
    ),
    "tiles_of_tiles": group(
        """auto half = cg::tiled_partition<16>(warp); auto quarter = cg::tiled_partition<4>(half);
        o[t] = quarter.meta_group_rank() + 10 * quarter.meta_group_size() + 100 * half.meta_group_rank() + 1000 * quarter.shfl(t, 0);""",
        i4(L % 16 // 4 + 40 + 100 * (L // 16) + 1000 * (L // 4 * 4)),
    ),
    "sum_of_any_group": group(
        """__shared__ int s[64];
        int all = sum(block, s, t), some = sum(warp, s + t / 32 * 32, t);
        o[t] = all + 10000 * some;""",
        i4(2016 + 10000 * np.repeat([496, 1520], 32)),
        block=64,
        before="""template <class G> __device__ int sum(G &g, int *s, int v) {
            int lane = g.thread_rank();
            for (int d = g.size() / 2; d; d /= 2) { s[lane] = v; g.sync(); if (lane < d) v += s[lane + d]; g.sync(); }
            if (!lane) s[0] = v;
            g.sync();
            v = s[0];
            g.sync();
            return v;
        }""",
    ),
    "leaders_of_labels": group(
        """auto some = cg::labeled_partition(warp, a[t]);
        int sum = cg::reduce(some, t, cg::plus<int>());
        o[t] = 0;
        if (!some.thread_rank()) o[t] = sum;""",
        i4([sum(range(n, 32, 5)) if n < 5 else 0 for n in range(32)]),
        inputs=(i4(L % 5),),
        headers=MORE,
    ),
    "copy_of_a_group": group(
        """__shared__ __align__(16) int s[64];
        cg::memcpy_async(block, s, a, sizeof s);
        cg::wait(block);
        o[t] = s[63 - t];""",
        i4(3 * (63 - N)),
        inputs=(i4(3 * N),),
        block=64,
        headers="#include <cooperative_groups/memcpy_async.h>\n",
    ),
    "reduce_by_bits": group(
        """auto tile = cg::tiled_partition<16>(block);
        o[t] = cg::reduce(tile, 1u << t, cg::bit_or<unsigned>()) ^ cg::reduce(tile, ~(1u << t), cg::bit_and<unsigned>())
            ^ cg::reduce(tile, (unsigned)t, cg::bit_xor<unsigned>());""",
        u4(
            L * 0 + 0xFFFFFFFF
        ),  # a half of the bits, and all but these; the numbers of a tile cancel
        headers=MORE,
    ),
    "scan_by_a_lambda": group(
        """auto largest = [](int x, int y) { return x > y ? x : y; };
        o[t] = cg::inclusive_scan(warp, a[t], largest);""",
        i4(np.maximum.accumulate(L * 37 % 41)),
        inputs=(i4(L * 37 % 41),),
        headers=MORE,
    ),
    "steps_of_the_grid": Kernel(
        """auto grid = cg::this_grid();
        for (int d = 64; d; d /= 2) {
            int v = i < d ? ((volatile int *)o)[i + d] : 0;
            grid.sync();
            if (i < d) o[i] += v;
            grid.sync();
        }""",
        i4(STEPS),
        start=np.arange(128),
        grid=4,
        cooperative=True,
    ),
}

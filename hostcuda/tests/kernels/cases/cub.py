"""The block and warp primitives of CUB.

Source: CUB's documentation of the class in each kernel; sums and sorts are NumPy's of integers.
"""

from . import Kernel, f4, f8, i4, np, u4

HEADERS = """#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_merge_sort.cuh>
"""
N = np.arange(64)


def cub(body, expected, **more):
    return Kernel(body, expected, block=more.pop("block", 64), **more)


KERNELS = {
    "block_reduce": cub(
        """using R = cub::BlockReduce<int, 64>; __shared__ typename R::TempStorage s;
        int sum = R(s).Sum(t + 1);
        if (!t) o[0] = sum;""",
        i4([2080]),
    ),
    "block_reduce_by_an_operator": cub(
        """using R = cub::BlockReduce<double, 64, cub::BLOCK_REDUCE_RAKING>;
        __shared__ typename R::TempStorage s;
        double most = R(s).Reduce(a[t], [](double x, double y) { return x > y ? x : y; });
        if (!t) o[0] = most;""",
        f8([63]),
        inputs=(f8(N * 29 % 64),),
    ),
    "block_reduce_of_a_part": cub(
        """using R = cub::BlockReduce<int, 64>; __shared__ typename R::TempStorage s;
        int sum = R(s).Sum(t, 10);
        if (!t) o[0] = sum;""",
        i4([45]),
    ),
    "block_scan": cub(
        """using S = cub::BlockScan<int, 64>; __shared__ typename S::TempStorage s;
        int x, total; S(s).ExclusiveSum(t + 1, x, total);
        o[t] = x + 10000 * (total == 2080);""",
        i4(N * (N + 1) // 2 + 10000),
    ),
    "block_scan_of_items": cub(
        """using S = cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS>;
        __shared__ typename S::TempStorage s;
        int x[2] = {2 * t, 2 * t + 1}; S(s).InclusiveSum(x, x);
        o[2 * t] = x[0]; o[2 * t + 1] = x[1];""",
        i4(np.cumsum(np.arange(128))),
    ),
    "block_radix_sort": cub(
        """using S = cub::BlockRadixSort<unsigned, 64, 2>; __shared__ typename S::TempStorage s;
        unsigned x[2] = {a[2 * t], a[2 * t + 1]}; S(s).Sort(x);
        o[2 * t] = x[0]; o[2 * t + 1] = x[1];""",
        np.sort(u4(np.arange(128) * 2654435761 % 2**32)),
        inputs=(u4(np.arange(128) * 2654435761 % 2**32),),
    ),
    "block_radix_sort_of_pairs": cub(
        """using S = cub::BlockRadixSort<float, 64, 1, int>; __shared__ typename S::TempStorage s;
        float key[1] = {a[t]}; int value[1] = {t}; S(s).SortDescending(key, value);
        o[t] = value[0];""",
        i4(np.argsort(-f4((N * 37 % 64) - 31.5))),
        inputs=(f4((N * 37 % 64) - 31.5),),
    ),
    "warp_reduce": cub(
        """using R = cub::WarpReduce<int>; __shared__ typename R::TempStorage s[2];
        int sum = R(s[t / 32]).Sum(t);
        if (t % 32 == 0) o[t / 32] = sum;""",
        i4([496, 496 + 1024]),
    ),
    "warp_reduce_of_8": cub(
        """using R = cub::WarpReduce<float, 8>; __shared__ typename R::TempStorage s[8];
        float sum = R(s[t / 8]).Sum(t * 0.5f);
        if (t % 8 == 0) o[t / 8] = sum;""",
        f4((N[::8] * 8 + 28) / 2),
    ),
    "warp_scan": cub(
        """using S = cub::WarpScan<int>; __shared__ typename S::TempStorage s[2];
        int x; S(s[t / 32]).ExclusiveSum(1, x);
        o[t] = x;""",
        i4(N % 32),
    ),
    "warp_merge_sort": cub(
        """using S = cub::WarpMergeSort<int, 2, 32>; __shared__ typename S::TempStorage s[2];
        int x[2] = {a[2 * t], a[2 * t + 1]};
        S(s[t / 32]).Sort(x, [](int p, int q) { return p > q; });
        o[2 * t] = x[0]; o[2 * t + 1] = x[1];""",
        i4(np.sort((np.arange(128) * 53 % 128).reshape(2, 64), axis=1)[:, ::-1].ravel()),
        inputs=(i4(np.arange(128) * 53 % 128),),
    ),
    "block_load_and_store": cub(
        """using In = cub::BlockLoad<int, 64, 4, cub::BLOCK_LOAD_TRANSPOSE>;
        using Out = cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_TRANSPOSE>;
        __shared__ union { typename In::TempStorage in; typename Out::TempStorage out; } s;
        int x[4]; In(s.in).Load(a, x);
        __syncthreads();
        for (int n = 0; n < 4; n++) x[n] = x[n] * 10 + n;
        Out(s.out).Store(o, x);""",
        i4(np.arange(256) * 10 + np.arange(256) % 4),
        inputs=(i4(range(256)),),
    ),
    "block_discontinuity": cub(
        """using D = cub::BlockDiscontinuity<int, 64>; __shared__ typename D::TempStorage s;
        int x[1] = {t / 5}, head[1];
        D(s).FlagHeads(head, x, [](int p, int q) { return p != q; });
        o[t] = head[0];""",
        i4(N % 5 == 0),
    ),
    "block_exchange": cub(
        """using E = cub::BlockExchange<int, 64, 2>; __shared__ typename E::TempStorage s;
        int x[2] = {2 * t, 2 * t + 1}; E(s).BlockedToStriped(x, x);
        o[2 * t] = x[0]; o[2 * t + 1] = x[1];""",
        i4(np.stack([N, N + 64], axis=1).ravel()),
    ),
    "block_histogram": cub(
        """using H = cub::BlockHistogram<unsigned char, 64, 1, 8>; __shared__ typename H::TempStorage s;
        __shared__ unsigned bins[8];
        unsigned char x[1] = {(unsigned char)(t * t % 8)};
        H(s).Histogram(x, bins);
        __syncthreads();
        if (t < 8) o[t] = bins[t];""",
        u4(np.bincount(N * N % 8, minlength=8)),
    ),
}

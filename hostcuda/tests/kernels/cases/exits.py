"""Threads that have returned, and barriers that count.

Source: CUDA C++ Programming Guide, "Synchronization Functions" and "Independent Thread Scheduling"
(__syncthreads is reached by all threads that have not exited); PTX ISA, "bar, barrier".
"""

from . import Kernel, L, i4, np, u4

KERNELS = {
    "return_then_syncthreads": Kernel(
        """__shared__ int s[64];
        s[t] = t;
        if (t >= 40) return;
        __syncthreads();
        o[t] = s[39 - t];""",
        i4(39 - np.arange(40)),
        block=64,
    ),
    "a_warp_returns_then_syncthreads": Kernel(
        """__shared__ int s[96];
        if (t >= 32 && t < 64) return;
        s[t] = t;
        __syncthreads();
        o[t] = s[95 - t];""",
        i4([*range(95, 63, -1), *[5] * 32, *range(31, -1, -1)]),
        block=96,
        start=5,
    ),
    "return_then_ballot": Kernel(
        "if (t >= 8) return; o[t] = __ballot_sync(0xff, 1);", u4([0xFF] * 8 + [3] * 24), start=3
    ),
    "return_then_activemask": Kernel(
        "if (t >= 8) return; __syncwarp(0xff); o[t] = __activemask();", u4([0xFF] * 8)
    ),
    "return_then_all": Kernel("if (t >= 8) return; o[t] = __all_sync(0xff, t < 8);", i4([1] * 8)),
    "return_then_shuffle": Kernel(
        "if (t & 1) return; o[t] = __shfl_down_sync(0x55555555, t, 2);",
        i4(np.where(L & 1, -1, np.minimum(L + 2, 30))),
        start=-1,
    ),
    "return_of_the_last_block": Kernel(
        "if (i >= 40) return; o[i] = __popc(__ballot_sync(i < 32 ? ~0u : 0xffu, 1));",
        i4([32] * 32 + [8] * 8),
        grid=2,
    ),
    "count": Kernel("o[t] = __syncthreads_count(t % 3 == 0);", i4([22] * 64), block=64),
    "count_after_return": Kernel(
        "if (t >= 10) return; o[t] = __syncthreads_count(1);", i4([10] * 10), block=64
    ),
    "count_of_values_but_0": Kernel("o[t] = __syncthreads_count(t - 3);", i4([39] * 40), block=40),
    "and_or": Kernel(
        """int a = __syncthreads_and(t < 64) != 0, b = __syncthreads_and(t < 63) != 0;
        int c = __syncthreads_or(t == 63) != 0, d = __syncthreads_or(t > 63) != 0;
        o[t] = a + 2 * b + 4 * c + 8 * d;""",
        i4([5] * 64),
        block=64,
    ),
    "and_after_return": Kernel(
        "if (t >= 50) return; o[t] = __syncthreads_and(t < 50) != 0;", i4([1] * 50), block=64
    ),
    "or_after_return": Kernel(
        "if (t == 63) return; o[t] = __syncthreads_or(t == 63) != 0;",
        i4([0] * 63),
        block=64,
    ),
    "barrier_in_a_loop": Kernel(
        """__shared__ int s[64];
        s[t] = t;
        for (int d = 32; d; d /= 2) {
            __syncthreads();
            if (t < d) s[t] += s[t + d];
        }
        if (!t) o[0] = s[0];""",
        i4([2016]),
        block=64,
    ),
    "return_from_a_loop_of_barriers": Kernel(
        """__shared__ int s;
        if (!t) s = 0;
        __syncthreads();
        for (int n = 0; n < 64; n++) {
            if (t == n) { atomicAdd(&s, t); return; }
            __syncthreads();
            if (t == 63) o[n] = s;
            __syncthreads();
        }""",
        # After step n, threads 0 to n have added their numbers; thread 63 writes until it returns.
        i4([n * (n + 1) // 2 for n in range(63)]),
        block=64,
    ),
    "barriers_of_both_branches": Kernel(
        """__shared__ int s[64];
        s[t] = t + 1;
        if (t < 32) { __syncthreads(); o[t] = s[t + 32]; }
        else { __syncthreads(); o[t] = s[t - 32]; }""",
        # The branches are uniform in each warp, and bar.sync counts warps wherever they arrive.
        i4([*range(33, 65), *range(1, 33)]),
        block=64,
    ),
    "exit_by_inline_ptx": Kernel(
        """o[t] = 1; if (t > 9) asm volatile("exit;"); o[t] = 2;""", i4(np.where(L > 9, 1, 2))
    ),
    "empty_kernel": Kernel("", i4([7, 7]), start=7),
    "return_in_a_device_function": Kernel(
        "o[t] = f(t); if (o[t] < 0) return; o[t] += 100;",
        i4(np.where(L < 5, -1, L + 100)),
        before="__device__ int f(int n) { if (n < 5) return -1; return n; }",
    ),
    "barrier_of_3_dimensions": Kernel(
        """__shared__ int s[4][4][4];
        int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
        s[z][y][x] = x + 10 * y + 100 * z;
        __syncthreads();
        o[x + 4 * y + 16 * z] = s[x][y][z];""",
        i4([z + 10 * y + 100 * x for z in range(4) for y in range(4) for x in range(4)]),
        block=(4, 4, 4),
    ),
    "grid_of_3_dimensions": Kernel(
        """dim3 b = blockIdx, g = gridDim;
        o[b.x + g.x * (b.y + g.y * b.z)] = b.x + 10 * b.y + 100 * b.z + 1000 * (g.x + g.y + g.z);""",
        i4([x + 10 * y + 100 * z + 9000 for z in range(4) for y in range(3) for x in range(2)]),
        grid=(2, 3, 4),
        block=1,
    ),
    "early_exits_and_a_block_sum": Kernel(
        """__shared__ int s;
        if (!t) s = 0;
        __syncthreads();
        if (i >= b) return;
        for (int n = 0; n < 3; n++) { if (a[i] < n * 10) return; atomicAdd(&s, 1); __syncthreads(); }
        if (a[i] == 49) o[blockIdx.x] = s;""",
        # 14 zeros of the first block are counted once, those of the second are beyond the end.
        i4([120 + 14, 120]),
        inputs=(i4([*range(50), *[0] * 14] * 2), np.int32(114)),
        grid=2,
        block=64,
    ),
}

"""Threads and blocks that wait for each other: spins, named barriers, fences, clocks.

Source: CUDA C++ Programming Guide, "Independent Thread Scheduling" (since Volta, threads of a warp
that wait for each other make progress) and "Memory Fence Functions"; PTX ISA, "bar, barrier".
Blocks of small grids are resident at once, so that one may wait for another.
"""

from . import Kernel, L, i4, i8, np, u4

_SYNC = 'asm volatile("bar.sync {0}, {1};" ::: "memory");'
_ARRIVE = 'asm volatile("bar.arrive {0}, {1};" ::: "memory");'

KERNELS = {
    "block_0_waits_for_block_1": Kernel(
        """volatile int *flag = o;
        if (!blockIdx.x) { while (!flag[0]); o[1] = flag[2] + 1; }
        else { flag[2] = 41; __threadfence(); flag[0] = 1; }""",
        i4([1, 42, 41]),
        grid=2,
        block=1,
        start=0,
    ),
    "block_1_waits_for_block_0": Kernel(
        """volatile int *flag = o;
        if (blockIdx.x) { while (!flag[0]); o[1] = flag[2] + 1; }
        else { flag[2] = 41; __threadfence(); flag[0] = 1; }""",
        i4([1, 42, 41]),
        grid=2,
        block=1,
        start=0,
    ),
    "chain_of_blocks": Kernel(
        """volatile int *turn = o;
        int n = gridDim.x - 1 - blockIdx.x;
        while (*turn != n);
        o[1 + n] = blockIdx.x;
        __threadfence();
        *turn = n + 1;""",
        i4([8, *range(7, -1, -1)]),
        grid=8,
        block=1,
        start=0,
    ),
    "barrier_of_the_grid_by_atomics": Kernel(
        """o[1 + i] = i;
        __threadfence();
        __syncthreads();
        if (!t) { atomicAdd(o, 1); while (atomicAdd(o, 0) < gridDim.x); }
        __syncthreads();
        __threadfence();
        int other = ((volatile int *)o)[1 + (i + blockDim.x) % 128];
        o[129 + i] = other;""",
        i4([4, *range(128), *((np.arange(128) + 32) % 128)]),
        grid=4,
        start=0,
    ),
    "a_warp_waits_for_another": Kernel(
        """__shared__ volatile int flag, value;
        if (!t) flag = 0;
        __syncthreads();
        if (!t) { while (!flag); o[0] = value; }
        if (t == 32) { value = 7; __threadfence_block(); flag = 1; }""",
        i4([7]),
        block=64,
    ),
    "a_thread_waits_for_its_warp": Kernel(
        """__shared__ volatile int flag;
        flag = 0;
        __syncwarp();
        if (t == 0) { while (!flag); o[0] = flag; }
        else if (t == 9) { flag = 5; __threadfence_block(); }""",
        i4([5]),
    ),
    "a_warp_passes_a_turn": Kernel(
        """__shared__ volatile int turn;
        turn = 0;
        __syncwarp();
        while (turn != 31 - t);
        o[turn] = t;
        __threadfence_block();
        turn = turn + 1;""",
        i4(31 - L),
    ),
    "nanosleep_in_a_spin": Kernel(
        """__shared__ volatile int flag;
        if (!t) flag = 0;
        __syncthreads();
        if (t == 63) flag = 3;
        while (!flag) __nanosleep(100);
        o[t] = flag;""",
        i4([3] * 64),
        block=64,
    ),
    "producer_and_consumer": Kernel(
        """__shared__ int s[32]; __shared__ volatile int full;
        if (!t) full = 0;
        __syncthreads();
        int sum = 0;
        for (int round = 0; round < 4; round++) {
            if (t >= 32) {
                while (full);
                s[t - 32] = round * 100 + t;
                __threadfence_block();
                __syncwarp();
                if (t == 32) full = 1;
            } else {
                while (!full);
                sum += s[31 - t];
                __threadfence_block();
                __syncwarp();
                if (!t) full = 0;
            }
            __syncwarp();
        }
        if (t < 32) o[t] = sum;""",
        i4(600 + 4 * (63 - L)),
        block=64,
    ),
    "mutex_of_one_warp": Kernel(
        """__shared__ int lock; __shared__ volatile int n;
        lock = n = 0;
        __syncwarp();
        while (atomicCAS(&lock, 0, 1));
        n = n + t;
        __threadfence_block();
        atomicExch(&lock, 0);
        __syncwarp();
        o[t] = n;""",
        i4(L * 0 + 496),
    ),
    "named_barriers": Kernel(
        f"""__shared__ int s[128];
        s[t] = t;
        if (t < 64) {{ {_SYNC.format(1, 64)} o[t] = s[63 - t]; }}
        else {{ {_SYNC.format(2, 64)} o[t] = s[191 - t]; }}""",
        i4([*range(63, -1, -1), *range(127, 63, -1)]),
        block=128,
    ),
    "arrive_and_sync": Kernel(
        f"""__shared__ int s[32];
        if (t < 32) {{ s[t] = t * 3; {_ARRIVE.format(3, 64)} }}
        else {{ {_SYNC.format(3, 64)} o[t - 32] = s[63 - t]; }}""",
        i4((31 - L) * 3),
        block=64,
    ),
    "ping_pong_of_named_barriers": Kernel(
        f"""__shared__ int s[32];
        int sum = 0;
        for (int n = 0; n < 5; n++)
            if (t < 32) {{ s[t] = n * t; {_ARRIVE.format(1, 64)} {_SYNC.format(2, 64)} }}
            else {{ {_SYNC.format(1, 64)} sum += s[t - 32]; {_ARRIVE.format(2, 64)} }}
        if (t >= 32) o[t - 32] = sum;""",
        i4(10 * L),
        block=64,
    ),
    "barrier_numbers_from_registers": Kernel(
        """__shared__ int s[64];
        s[t] = t;
        int id = 1 + t / 32, n = 32;
        asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory");
        o[t] = s[t ^ 31];""",
        i4(np.arange(64) ^ 31),
        block=64,
    ),
    "reducing_barriers": Kernel(
        """unsigned n, all, any;
        asm volatile("{.reg .pred p; setp.lt.u32 p, %1, 40; barrier.red.popc.u32 %0, 0, p;}"
            : "=r"(n) : "r"(t));
        asm volatile("{.reg .pred p, q; setp.lt.u32 p, %1, 63; bar.red.and.pred q, 0, p;"
            "selp.u32 %0, 1, 0, q;}" : "=r"(all) : "r"(t));
        asm volatile("{.reg .pred p, q; setp.lt.u32 p, %1, 1; bar.red.or.pred q, 0, p;"
            "selp.u32 %0, 1, 0, q;}" : "=r"(any) : "r"(t));
        o[t] = n + 100 * all + 1000 * any;""",
        u4([1040] * 64),
        block=64,
    ),
    "fences": Kernel(
        """__shared__ int s;
        if (!t) s = 4;
        __threadfence_block(); __threadfence(); __threadfence_system();
        __syncthreads();
        o[t] = s;""",
        i4(L * 0 + 4),
    ),
    "clock_goes_on": Kernel(
        """clock_t a0 = clock(); long long b0 = clock64(); unsigned long long g0, g1;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g0) :: "memory");
        for (int n = 0; n < 100; n++) __nanosleep(1);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g1) :: "memory");
        long long b1 = clock64(); clock_t a1 = clock();
        o[t] = (b1 > b0) + 2 * ((unsigned)a1 - (unsigned)a0 < 0x80000000u) + 4 * (g1 >= g0);""",
        i8(L * 0 + 7),
    ),
    "wait_by_the_clock": Kernel(
        "long long n = clock64(); while (clock64() - n < 2000); o[t] = t;", i4(L)
    ),
    "stages_of_a_pipeline": Kernel(
        f"""__shared__ int s[2][32];
        int sum = 0;
        for (int n = 0; n < 7; n++) {{
            int k = n & 1;
            if (t < 32) {{ if (n > 1) {{ if (k) {_SYNC.format(4, 64)} else {_SYNC.format(3, 64)} }} s[k][t] = n * 10 + t; if (k) {_ARRIVE.format(2, 64)} else {_ARRIVE.format(1, 64)} }}
            else {{ if (k) {_SYNC.format(2, 64)} else {_SYNC.format(1, 64)} sum += s[k][63 - t]; if (n < 5) {{ if (k) {_ARRIVE.format(4, 64)} else {_ARRIVE.format(3, 64)} }} }}
        }}
        if (t >= 32) o[t - 32] = sum;""",
        i4(210 + 7 * (31 - L)),
        block=64,
    ),
    "waves_through_blocks": Kernel(
        """volatile int *flag = o + 64;
        for (int n = 0; n < 3; n++) {
            if (!t) { if (blockIdx.x) while (flag[blockIdx.x - 1] <= n); }
            __syncthreads();
            o[i] += blockIdx.x ? ((volatile int *)o)[i - 16] : 1;
            __threadfence();
            __syncthreads();
            if (!t) { flag[blockIdx.x] = n + 1; if (blockIdx.x < 3) while (flag[blockIdx.x + 1] <= n); }
            __syncthreads();
        }""",
        # Each waits for the next, too: 1, 2, 3; then its sums, 1, 3, 6; their sums, 1, 4, 10; and 1, 5, 15
        i4([*np.repeat([3, 6, 10, 15], 16), 3, 3, 3, 3]),
        grid=4,
        block=16,
        start=0,
    ),
}

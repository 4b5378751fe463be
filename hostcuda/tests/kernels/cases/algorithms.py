"""Whole algorithms, as programs have them: reductions, scans, sorts, stencils, products, graphs.

Expected numbers come from NumPy, the standard library or a loop in Python, mostly by another way than
the kernel's. Floats are such that their sums are exact.
"""

import hashlib
import itertools
import math
import zlib

from . import Kernel, L, f4, f8, i4, np, u1, u4, u8

X = np.arange(256) * 167 % 257  # no number is there twice
SMALL = np.arange(128) * 37 % 11
TEXT = b"the cat sat on the mat; that is that"
M = 2**32 - 1


def distances(source, target):
    """Return the edit distance of two texts."""
    row = list(range(len(target) + 1))
    for n, letter in enumerate(source, 1):
        last, row[0] = row[0], n
        for m, other in enumerate(target, 1):
            last, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, last + (letter != other))
    return row[-1]


def shortest_paths(weights):
    paths = weights.copy()
    for k in range(len(paths)):
        paths = np.minimum(paths, paths[:, k, None] + paths[k])
    return paths


def collatz(n):
    steps = 0
    while n > 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def filled(weights, values, capacity):
    """Return the greatest value of things that fit into each capacity."""
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values, strict=True):
        best = [
            max(best[n], best[n - weight] + value) if n >= weight else best[n]
            for n in range(capacity + 1)
        ]
    return best


def escapes(limit=50):
    """Iterate z * z + c in whole numbers, 12 bits of which are a fraction."""
    counts = []
    for lane in range(128):
        cx, cy = (lane % 16) * 768 - 8192, (lane // 16) * 1024 - 4096
        x = y = n = 0
        while n < limit and x * x + y * y < 4 << 24:
            x, y, n = (x * x - y * y >> 12) + cx, (2 * x * y >> 12) + cy, n + 1
        counts.append(n)
    return counts


def xorshift(seed, steps):
    for _ in range(steps):
        seed ^= seed << 13 & M
        seed ^= seed >> 17
        seed ^= seed << 5 & M
    return seed


def levels(walls, start):
    """Return each cell's steps from the start of a maze, -1 where there is a wall or no way."""
    found = np.full(walls.shape, -1)
    queue = [start]
    found[start] = 0
    for y, x in queue:
        for p in ((y, x + 1), (y + 1, x), (y, x - 1), (y - 1, x)):
            if min(p) >= 0 and max(p) < 8 and not walls[p] and found[p] < 0:
                found[p] = found[y, x] + 1
                queue.append(p)
    return found


def roots_of_primes(count):
    """Return SHA-256's constants: 32 bits of the fractions of the cube roots of primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, n))][:count]
    found = []
    for prime in primes:
        low, high = 0, 1 << 40
        while low < high:  # the greatest root with root ** 3 <= prime << 96
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**3 <= prime << 96 else (low, middle - 1)
        found.append(low & M)
    return found


A, B = np.arange(19 * 23).reshape(19, 23) % 7 - 3, np.arange(23 * 17).reshape(23, 17) % 5 - 2
C, D = np.arange(16 * 12).reshape(16, 12) % 9, np.arange(12 * 16).reshape(12, 16) % 8
PLANE = np.arange(256).reshape(16, 16) * 29 % 64
CUBE = np.arange(6 * 8 * 8).reshape(6, 8, 8) * 17 % 23
GLIDER = np.zeros((16, 16), np.uint8)
GLIDER[[1, 2, 3, 3, 3], [2, 3, 1, 2, 3]] = 1
ROWS = [0, 2, 2, 5, 6, 10, 11, 13, 16]  # of a sparse matrix of 8 rows
COLUMNS = [1, 4, 0, 3, 7, 2, 1, 2, 5, 6, 7, 0, 3, 4, 5, 6]
PATHS = np.where(
    (np.add.outer(L[:16] * 3, L[:16] * 5) % 4) == 1, np.arange(256).reshape(16, 16) % 13 + 1, 1000
)
np.fill_diagonal(PATHS, 0)
WALLS = np.array([[c == "#" for c in row] for row in (
    "...#....", ".#.#.##.", ".#...#..", ".#####.#", "......#.", "####.#..", "...#...#", ".#.###..",
)])  # fmt: skip
SYSTEM = (np.arange(64).reshape(8, 8) ** 2 * 31 + 7 * np.eye(8, dtype=int)) % 257
SOLUTION = np.arange(8) * 100 % 257
EDGES = np.array(
    [(0, 9), (9, 20), (20, 31), (3, 4), (5, 4), (5, 6), (30, 12), (12, 14), (14, 30), (7, 8)]
)
LABELS = np.arange(32)
for _ in EDGES:
    for p, q in EDGES:
        LABELS[[p, q]] = min(LABELS[p], LABELS[q])
RUNS = np.repeat([5, 2, 5, 9, 1, 7], [3, 1, 20, 8, 31, 1])
CENTRES = np.array([[2, 3], [12, 4], [7, 13]])
PLACES = np.array([(n % 16, n // 16) for n in range(256)])
NEAREST = ((PLACES[:, None] - CENTRES) ** 2).sum(2).argmin(1)
FIBONACCI = [0, 1]
while len(FIBONACCI) < 94:
    FIBONACCI.append(sum(FIBONACCI[-2:]))

KERNELS = {
    # ---- reductions
    "sum_by_interleaved_pairs": Kernel(
        """__shared__ int s[256];
        s[t] = a[t];
        __syncthreads();
        for (int d = 1; d < 256; d *= 2) {
            if (t % (2 * d) == 0) s[t] += s[t + d];
            __syncthreads();
        }
        if (!t) o[0] = s[0];""",
        i4([X.sum()]),
        inputs=(i4(X),),
        block=256,
    ),
    "sum_by_strides_of_the_grid": Kernel(
        """__shared__ float s[64];
        float sum = 0;
        for (int n = i; n < b; n += gridDim.x * blockDim.x) sum += a[n];
        s[t] = sum;
        for (int d = 32; d; d /= 2) { __syncthreads(); if (t < d) s[t] += s[t + d]; }
        if (!t) atomicAdd(o, s[0]);""",
        f4([(np.arange(1000) % 50 / 4).sum()]),
        inputs=(f4(np.arange(1000) % 50 / 4), np.int32(1000)),
        grid=3,
        block=64,
        start=0,
    ),
    "sum_by_warps_of_a_block": Kernel(
        """__shared__ int s[8];
        int v = a[t];
        for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
        if (t % 32 == 0) s[t / 32] = v;
        __syncthreads();
        if (t < 32) {
            v = t < 8 ? s[t] : 0;
            for (int d = 4; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
            if (!t) o[0] = v;
        }""",
        i4([X.sum()]),
        inputs=(i4(X),),
        block=256,
    ),
    "sum_of_a_template": Kernel(
        "o[t] = sum<double, 128>(a[t]);",
        f8([SMALL.sum() / 8] * 128),
        inputs=(f8(SMALL / 8),),
        block=128,
        before="""template <class T, int N> __device__ T sum(T v) {
            __shared__ T s[N];
            const int t = threadIdx.x;
            s[t] = v;
            __syncthreads();
            #pragma unroll
            for (int d = N / 2; d; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
            return s[0];
        }""",
    ),
    "largest_with_its_place": Kernel(
        """int v = a[t], at = t;
        for (int d = 16; d; d /= 2) {
            int w = __shfl_xor_sync(~0u, v, d), n = __shfl_xor_sync(~0u, at, d);
            if (w > v || (w == v && n < at)) { v = w; at = n; }
        }
        o[t] = v * 100 + at;""",
        i4(L * 0 + 10 * 100 + int(np.argmax(SMALL[:32]))),
        inputs=(i4(SMALL[:32]),),
    ),
    "largest_with_its_place_by_atomics": Kernel(
        "atomicMax(o, (unsigned long long)a[i] << 32 | (0xffffffffu - i));",
        u8([10 << 32 | (M - int(np.argmax(SMALL)))]),
        inputs=(u4(SMALL),),
        grid=4,
        start=0,
    ),
    "compensated_sum": Kernel(
        """float s = 0, c = 0;
        for (int n = 0; n < 101; n++) {
            float y = a[n] - c, sum = s + y;
            c = (sum - s) - y;
            s = sum;
        }
        o[0] = s;""",
        f4([1e8 + 96]),
        inputs=(f4([1e8] + [0.96] * 100),),
        block=1,
    ),
    # ---- scans
    "scan_in_two_buffers": Kernel(
        """extern __shared__ int two_buffers[];
        int from = 0;
        two_buffers[t] = a[t];
        __syncthreads();
        for (int d = 1; d < 128; d *= 2) {
            int v = two_buffers[from + t] + (t >= d ? two_buffers[from + t - d] : 0);
            from = 128 - from;
            two_buffers[from + t] = v;
            __syncthreads();
        }
        o[t] = two_buffers[from + t];""",
        i4(SMALL.cumsum()),
        inputs=(i4(SMALL),),
        block=128,
        shared=1024,
    ),
    "scan_up_and_down": Kernel(
        """__shared__ int s[128];
        s[2 * t] = a[2 * t]; s[2 * t + 1] = a[2 * t + 1];
        int d = 1;
        for (int n = 64; n; n /= 2, d *= 2) {
            __syncthreads();
            if (t < n) s[d * (2 * t + 2) - 1] += s[d * (2 * t + 1) - 1];
        }
        if (!t) s[127] = 0;
        for (int n = 1; n < 128; n *= 2) {
            d /= 2;
            __syncthreads();
            if (t < n) {
                int p = d * (2 * t + 1) - 1, q = d * (2 * t + 2) - 1, v = s[p];
                s[p] = s[q]; s[q] += v;
            }
        }
        __syncthreads();
        o[2 * t] = s[2 * t]; o[2 * t + 1] = s[2 * t + 1];""",
        i4(SMALL.cumsum() - SMALL),
        inputs=(i4(SMALL),),
        block=64,
    ),
    "scan_of_segments": Kernel(
        """int v = a[t]; bool head = t % b == 0;
        for (int d = 1; d < 32; d *= 2) {
            int w = __shfl_up_sync(~0u, v, d); bool h = __shfl_up_sync(~0u, head, d);
            if (t >= d) { if (!head) v += w; head |= h; }
        }
        o[t] = v;""",
        i4([SMALL[n // 5 * 5 : n + 1].sum() for n in range(32)]),
        inputs=(i4(SMALL), np.int32(5)),
    ),
    "scan_of_blocks_that_look_back": Kernel(
        """__shared__ int ticket;
        volatile int *state = o + 257;
        if (!t) ticket = atomicAdd(o + 256, 1);
        __syncthreads();
        int v = a[ticket * 32 + t], before = 0;
        for (int d = 1; d < 32; d *= 2) { int w = __shfl_up_sync(~0u, v, d); if (t >= d) v += w; }
        if (t == 31) {
            if (ticket) { while (!(before = state[ticket - 1])); before--; }
            state[ticket] = before + v + 1;
        }
        before = __shfl_sync(~0u, before, 31);
        o[ticket * 32 + t] = v + before;""",
        i4([*X.cumsum(), 8, *(X.cumsum()[31::32] + 1)]),
        inputs=(i4(X),),
        grid=8,
        start=0,
    ),
    "areas_by_two_scans": Kernel(
        """__shared__ int s[16][17];
        for (int y = 0; y < 16; y++) s[y][t] = a[y * 16 + t];
        __syncthreads();
        for (int n = 1; n < 16; n++) s[t][n] += s[t][n - 1];
        __syncthreads();
        for (int n = 1; n < 16; n++) s[n][t] += s[n - 1][t];
        __syncthreads();
        for (int y = 0; y < 16; y++) o[y * 16 + t] = s[y][t];""",
        i4(PLANE.cumsum(0).cumsum(1).ravel()),
        inputs=(i4(PLANE.ravel()),),
        block=16,
    ),
    "compaction": Kernel(
        """__shared__ int s[4];
        bool keep = a[t] % 3 == 0;
        unsigned m = __ballot_sync(~0u, keep);
        if (t % 32 == 0) s[t / 32] = __popc(m);
        __syncthreads();
        int at = __popc(m & ((1u << t % 32) - 1));
        for (int n = 0; n < t / 32; n++) at += s[n];
        if (keep) o[at] = a[t];""",
        i4([n for n in X[:128] if n % 3 == 0]),
        inputs=(i4(X[:128]),),
        block=128,
    ),
    "run_lengths": Kernel(
        """__shared__ int at[66], heads[2];
        bool head = !t || a[t] != a[t - 1];
        unsigned m = __ballot_sync(~0u, head);
        if (t % 32 == 0) heads[t / 32] = __popc(m);
        __syncthreads();
        int n = __popc(m & ((1u << t % 32) - 1)) + (t < 32 ? 0 : heads[0]), all = heads[0] + heads[1];
        if (head) at[n] = t;
        if (!t) at[all] = 64;
        __syncthreads();
        if (t < all) { o[2 * t] = a[at[t]]; o[2 * t + 1] = at[t + 1] - at[t]; }""",
        i4([5, 3, 2, 1, 5, 20, 9, 8, 1, 31, 7, 1]),
        inputs=(i4(RUNS),),
        block=64,
    ),
    # ---- histograms
    "histogram_of_bytes": Kernel(
        """__shared__ unsigned s[16];
        if (t < 16) s[t] = 0;
        __syncthreads();
        uchar4 v = ((const uchar4 *)a)[i];
        atomicAdd(s + v.x % 16, 1u); atomicAdd(s + v.y % 16, 1u);
        atomicAdd(s + v.z % 16, 1u); atomicAdd(s + v.w % 16, 1u);
        __syncthreads();
        if (t < 16) atomicAdd(o + t, s[t]);""",
        u4(np.bincount(np.arange(1024) ** 2 % 251 % 16, minlength=16)),
        inputs=(u1(np.arange(1024) ** 2 % 251),),
        grid=4,
        block=64,
        start=0,
    ),
    "histogram_of_weights": Kernel(
        "atomicAdd(o + a[i], b[i]);",
        f4(np.bincount(SMALL, np.arange(128) / 8)),
        inputs=(i4(SMALL), f4(np.arange(128) / 8)),
        grid=2,
        block=64,
        start=0,
    ),
    "histogram_by_matches": Kernel(
        "unsigned m = __match_any_sync(~0u, a[t]); if (t == __ffs(m) - 1) o[a[t]] = __popc(m);",
        i4(np.bincount(SMALL[:32])),
        inputs=(i4(SMALL[:32]),),
        start=0,
    ),
    # ---- stencils and images
    "stencil_of_a_line": Kernel(
        """__shared__ int s[68];
        s[t + 2] = i < 100 ? a[i] : 0;
        if (t < 2) { s[t] = i >= 2 ? a[i - 2] : 0; s[t + 66] = i + 64 < 100 ? a[i + 64] : 0; }
        __syncthreads();
        if (i < 100) o[i] = s[t] - 4 * s[t + 1] + 6 * s[t + 2] - 4 * s[t + 3] + s[t + 4];""",
        i4(np.convolve(X[:100], [1, -4, 6, -4, 1], "same")),
        inputs=(i4(X[:100]),),
        grid=2,
        block=64,
    ),
    "stencil_of_a_plane": Kernel(
        """__shared__ float s[10][10];
        int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
        int x = blockIdx.x * 8 + tx - 1, y = blockIdx.y * 8 + ty - 1;
        auto at = [&](int y, int x) { return a[min(max(y, 0), 15) * 16 + min(max(x, 0), 15)]; };
        s[ty][tx] = at(y, x);
        if (tx == 1) { s[ty][0] = at(y, x - 1); s[ty][9] = at(y, x + 8); }
        if (ty == 1) { s[0][tx] = at(y - 1, x); s[9][tx] = at(y + 8, x); }
        __syncthreads();
        o[y * 16 + x] = s[ty][tx] * 0.5f
            + 0.125f * (s[ty][tx - 1] + s[ty][tx + 1] + s[ty - 1][tx] + s[ty + 1][tx]);""",
        f4(
            PLANE / 2
            + (
                np.pad(PLANE, ((0, 0), (1, 1)), "edge")[:, :-2]
                + np.pad(PLANE, ((0, 0), (1, 1)), "edge")[:, 2:]
                + np.pad(PLANE, ((1, 1), (0, 0)), "edge")[:-2]
                + np.pad(PLANE, ((1, 1), (0, 0)), "edge")[2:]
            )
            / 8
        ).ravel(),
        inputs=(f4(PLANE.ravel()),),
        grid=(2, 2),
        block=(8, 8),
    ),
    "stencil_of_a_cube": Kernel(
        """int x = threadIdx.x, y = threadIdx.y, at = y * 8 + x;
        int below, here = a[at], above = a[64 + at];
        o[at] = here; o[5 * 64 + at] = a[5 * 64 + at];
        for (int z = 1; z < 5; z++) {
            at += 64;
            below = here; here = above; above = a[at + 64];
            bool inner = x > 0 && x < 7 && y > 0 && y < 7;
            o[at] = inner ? below + above + a[at - 1] + a[at + 1] + a[at - 8] + a[at + 8] - 6 * here : here;
        }""",
        i4(
            [
                CUBE[z, y, x]
                if min(z, y, x) == 0 or z == 5 or max(y, x) == 7
                else CUBE[z - 1 : z + 2, y, x].sum()
                + CUBE[z, y - 1 : y + 2, x].sum()
                + CUBE[z, y, x - 1 : x + 2].sum()
                - 9 * CUBE[z, y, x]
                for z, y, x in np.ndindex(6, 8, 8)
            ]
        ),
        inputs=(i4(CUBE.ravel()),),
        block=(8, 8),
    ),
    "game_of_life": Kernel(
        """__shared__ unsigned char s[2][16][16];
        int x = threadIdx.x, y = threadIdx.y;
        s[0][y][x] = a[y * 16 + x];
        __syncthreads();
        for (int n = 0; n < 64; n++) {
            int count = 0;
            for (int dy = -1; dy < 2; dy++)
                for (int dx = -1; dx < 2; dx++) if (dx || dy) count += s[n & 1][(y + dy) & 15][(x + dx) & 15];
            s[~n & 1][y][x] = count == 3 || (count == 2 && s[n & 1][y][x]);
            __syncthreads();
        }
        o[y * 16 + x] = s[0][y][x];""",
        # A glider moves one cell down and right in four steps: in 64, once around.
        u1(GLIDER.ravel()),
        inputs=(u1(GLIDER.ravel()),),
        block=(16, 16),
    ),
    "heat_of_a_rod": Kernel(
        """__shared__ float s[18];
        s[t] = t == 5 ? 256.f : 0.f;
        for (int n = 0; n < 8; n++) {
            __syncthreads();
            float v = t && t < 17 ? (s[t - 1] + s[t + 1]) / 2 : 0.f;
            __syncthreads();
            s[t] = v;
        }
        o[t] = s[t];""",
        # The ends are cold: the ways from 5 in 8 steps that do not meet 0, of 256 in all
        f4([0, 20, 0, 55, 0, 70, 0, 56, 0, 28, 0, 8, 0, 1, 0, 0, 0, 0]),
        block=18,
    ),
    "convolution_with_a_constant_mask": Kernel(
        """int x = threadIdx.x, y = threadIdx.y, sum = 0;
        for (int dy = 0; dy < 3; dy++)
            for (int dx = 0; dx < 3; dx++) {
                int u = x + dx - 1, v = y + dy - 1;
                if (u >= 0 && u < 16 && v >= 0 && v < 16) sum += a[v * 16 + u] * c_mask[dy * 3 + dx];
            }
        o[y * 16 + x] = sum;""",
        i4(
            sum(
                np.pad(PLANE, 1)[n // 3 : n // 3 + 16, n % 3 : n % 3 + 16]
                * (1, 2, 0, -3, 5, -1, 0, 4, -2)[n]
                for n in range(9)
            ).ravel()
        ),
        inputs=(i4(PLANE.ravel()),),
        block=(16, 16),
        before='extern "C" __constant__ int c_mask[9];',
        fill={"c_mask": i4([1, 2, 0, -3, 5, -1, 0, 4, -2])},
    ),
    "median_of_nine": Kernel(
        """int x = threadIdx.x, y = threadIdx.y, v[9], n = 0;
        for (int dy = 0; dy < 3; dy++) for (int dx = 0; dx < 3; dx++) v[n++] = a[(y + dy) * 16 + x + dx];
        #pragma unroll
        for (int end = 8; end > 3; end--)
            #pragma unroll
            for (int m = 0; m < end; m++) {
                int low = min(v[m], v[m + 1]); v[m + 1] = max(v[m], v[m + 1]); v[m] = low;
            }
        o[y * 14 + x] = v[4];""",
        i4([np.median(PLANE[y : y + 3, x : x + 3]) for y, x in np.ndindex(14, 14)]),
        inputs=(i4(PLANE.ravel()),),
        block=(14, 14),
    ),
    "edges_of_bytes": Kernel(
        """int x = threadIdx.x, y = threadIdx.y;
        const unsigned char *p = a + y * 16 + x;
        int h = p[2] - p[0] + 2 * (p[18] - p[16]) + p[34] - p[32];
        int v = p[32] - p[0] + 2 * (p[33] - p[1]) + p[34] - p[2];
        o[y * 14 + x] = min(abs(h) + abs(v), 255);""",
        u1(
            [
                min(
                    255,
                    abs(((p := PLANE[y : y + 3, x : x + 3] * 3)[:, 2] - p[:, 0]) @ [1, 2, 1])
                    + abs((p[2] - p[0]) @ [1, 2, 1]),
                )
                for y, x in np.ndindex(14, 14)
            ]
        ),
        inputs=(u1(PLANE.ravel() * 3),),
        block=(14, 14),
    ),
    "grey_of_colours": Kernel(
        """uchar4 p = ((const uchar4 *)a)[t];
        p.x = (77 * p.x + 150 * p.y + 29 * p.z) >> 8;
        ((uchar2 *)o)[t] = make_uchar2(p.x, p.w);""",
        u1(
            [
                (int(p[:3] @ [77, 150, 29]) >> 8, p[3])[n]
                for p in np.arange(128).reshape(32, 4) * 59 % 256
                for n in (0, 1)
            ]
        ),
        inputs=(u1(np.arange(128) * 59 % 256),),
    ),
    # ---- matrices
    "transpose_of_tiles": Kernel(
        """__shared__ float tile[16][17];
        int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
        for (int n = 0; n < 16; n += 4) if (x < 29 && y + n < 37) tile[threadIdx.y + n][t] = a[(y + n) * 29 + x];
        __syncthreads();
        x = blockIdx.y * 16 + threadIdx.x; y = blockIdx.x * 16 + threadIdx.y;
        for (int n = 0; n < 16; n += 4) if (x < 37 && y + n < 29) o[(y + n) * 37 + x] = tile[t][threadIdx.y + n];""",
        f4(np.arange(37 * 29).reshape(37, 29).T.ravel()),
        inputs=(f4(np.arange(37 * 29)),),
        grid=(2, 3),
        block=(16, 4),
    ),
    "transpose_of_bits": Kernel(
        """unsigned r = 0;
        for (int n = 0; n < 32; n++) { unsigned m = __ballot_sync(~0u, a[t] >> n & 1); if (t == n) r = m; }
        o[t] = r;""",
        u4(
            [
                sum(((lane * 0x9E3779B1 & M) >> bit & 1) << lane for lane in range(32))
                for bit in range(32)
            ]
        ),
        inputs=(u4(L * 0x9E3779B1 & M),),
    ),
    "product_of_tiles": Kernel(
        """__shared__ float x[8][8], y[8][8];
        int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 8 + ty, column = blockIdx.x * 8 + tx;
        float sum = 0;
        for (int k = 0; k < 23; k += 8) {
            x[ty][tx] = row < 19 && k + tx < 23 ? a[row * 23 + k + tx] : 0;
            y[ty][tx] = k + ty < 23 && column < 17 ? b[(k + ty) * 17 + column] : 0;
            __syncthreads();
            for (int n = 0; n < 8; n++) sum += x[ty][n] * y[n][tx];
            __syncthreads();
        }
        if (row < 19 && column < 17) o[row * 17 + column] = sum;""",
        f4((A @ B).ravel()),
        inputs=(f4(A.ravel()), f4(B.ravel())),
        grid=(3, 3),
        block=(8, 8),
    ),
    "product_with_registers": Kernel(
        """__shared__ double x[16][4], y[4][16];
        int tx = threadIdx.x, ty = threadIdx.y, n = ty * 8 + tx;
        double sum[2][2] = {};
        for (int k = 0; k < 12; k += 4) {
            x[n / 4][n % 4] = a[n / 4 * 12 + k + n % 4]; y[n / 16][n % 16] = b[(k + n / 16) * 16 + n % 16];
            __syncthreads();
            #pragma unroll
            for (int m = 0; m < 4; m++)
                for (int r = 0; r < 2; r++) for (int c = 0; c < 2; c++) sum[r][c] += x[ty + 8 * r][m] * y[m][tx + 8 * c];
            __syncthreads();
        }
        for (int r = 0; r < 2; r++) for (int c = 0; c < 2; c++) o[(ty + 8 * r) * 16 + tx + 8 * c] = sum[r][c];""",
        f8((C @ D).ravel()),
        inputs=(f8(C.ravel()), f8(D.ravel())),
        block=(8, 8),
    ),
    "matrix_times_vector_by_warps": Kernel(
        """int row = i / 32, lane = t % 32;
        float sum = 0;
        for (int n = lane; n < 100; n += 32) sum = fmaf(a[row * 100 + n], b[n], sum);
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (!lane) o[row] = sum;""",
        f4((np.arange(800).reshape(8, 100) % 13 - 6) @ (np.arange(100) % 5)),
        inputs=(f4(np.arange(800) % 13 - 6), f4(np.arange(100) % 5)),
        grid=2,
        block=128,
    ),
    "sparse_rows_times_vector": Kernel(
        "int sum = 0; for (int n = a[t]; n < a[t + 1]; n++) sum += (n + 1) * c[b[n]]; o[t] = sum;",
        i4(
            [
                sum((n + 1) * (COLUMNS[n] ** 2 + 1) for n in range(ROWS[row], ROWS[row + 1]))
                for row in range(8)
            ]
        ),
        inputs=(i4(ROWS), i4(COLUMNS), i4(np.arange(8) ** 2 + 1)),
        block=8,
    ),
    "sparse_entries_times_vector": Kernel(
        "if (t < 16) atomicAdd(o + b[t], (t + 1.f) * a[t]);",
        f4(np.bincount(COLUMNS, (np.arange(16) + 1) * np.arange(16) / 2)),
        inputs=(f4(np.arange(16) / 2), i4(COLUMNS)),
        start=0,
    ),
    "linear_system_in_a_field": Kernel(
        """__shared__ int m[8][9], pivot;
        for (int n = 0; n < 8; n++) m[t][n] = a[t * 8 + n];
        m[t][8] = b[t];
        __syncwarp(0xff);
        for (int k = 0; k < 8; k++) {
            if (!t) for (pivot = k; !m[pivot][k];) pivot++;
            __syncwarp(0xff);
            for (int n = t; n < 9; n += 8) { int v = m[k][n]; m[k][n] = m[pivot][n]; m[pivot][n] = v; }
            __syncwarp(0xff);
            int inverse = power(m[k][k], 255), factor = m[t][k] * inverse % 257;
            __syncwarp(0xff);
            if (t != k) for (int n = k; n < 9; n++) m[t][n] = (m[t][n] + (257 - factor) * m[k][n]) % 257;
            __syncwarp(0xff);
        }
        o[t] = m[t][8] * power(m[t][t], 255) % 257;""",
        i4(SOLUTION),
        inputs=(i4(SYSTEM.ravel()), i4(SYSTEM @ SOLUTION % 257)),
        block=8,
        before="""__device__ int power(int x, int n) {
            int r = 1;
            for (; n; n >>= 1, x = x * x % 257) if (n & 1) r = r * x % 257;
            return r;
        }""",
    ),
    "walsh_transform": Kernel(
        """int v = a[t];
        for (int d = 1; d < 32; d *= 2) { int w = __shfl_xor_sync(~0u, v, d); v = t & d ? w - v : v + w; }
        o[t] = v;""",
        i4(
            [
                sum(int(SMALL[n]) * (-1) ** (n & lane).bit_count() for n in range(32))
                for lane in range(32)
            ]
        ),
        inputs=(i4(SMALL[:32]),),
    ),
    "transform_of_whole_numbers": Kernel(
        """__shared__ int s[64];
        s[__brev(t) >> 26] = a[t]; s[__brev(t + 32) >> 26] = a[t + 32];
        for (int half = 1, stage = 0; half < 64; half *= 2, stage++) {
            __syncthreads();
            int n = t / half * 2 * half + t % half, w = 1;
            for (int k = 0; k < t % half; k++) w = w * b[stage] % 257;
            int p = s[n], q = s[n + half] * w % 257;
            s[n] = (p + q) % 257; s[n + half] = (p - q + 257) % 257;
        }
        __syncthreads();
        o[t] = s[t]; o[t + 32] = s[t + 32];""",
        i4([sum(int(X[n]) * pow(81, n * k, 257) for n in range(64)) % 257 for k in range(64)]),
        inputs=(i4(X[:64]), i4([pow(81, 32 >> n, 257) for n in range(6)])),
    ),
    # ---- sorts and searches
    "bitonic_sort": Kernel(
        """__shared__ int s[256];
        s[t] = a[t];
        for (int size = 2; size <= 256; size *= 2)
            for (int d = size / 2; d; d /= 2) {
                __syncthreads();
                int other = t ^ d;
                if (other > t && (s[t] > s[other]) == !(t & size)) { int v = s[t]; s[t] = s[other]; s[other] = v; }
            }
        __syncthreads();
        o[t] = s[t];""",
        i4(np.sort(X)),
        inputs=(i4(X),),
        block=256,
    ),
    "sort_by_neighbours": Kernel(
        """extern __shared__ float neighbours[];
        neighbours[t] = a[t];
        for (int n = 0; n < 33; n++) {
            __syncthreads();
            if (t % 2 == n % 2 && t < 32 && neighbours[t] > neighbours[t + 1]) {
                float v = neighbours[t]; neighbours[t] = neighbours[t + 1]; neighbours[t + 1] = v;
            }
        }
        __syncthreads();
        o[t] = neighbours[t];""",
        f4(np.sort(X[:33]) - 100),
        inputs=(f4(X[:33]) - 100,),
        block=33,
        shared=132,
    ),
    "sort_of_a_warp_by_shuffles": Kernel(
        """int v = a[t];
        for (int size = 2; size <= 32; size *= 2)
            for (int d = size / 2; d; d /= 2) {
                int w = __shfl_xor_sync(~0u, v, d);
                v = !(t & d) == !(t & size) ? min(v, w) : max(v, w);
            }
        o[t] = v;""",
        i4(np.sort(X[:32])),
        inputs=(i4(X[:32]),),
    ),
    "radix_sort": Kernel(
        """__shared__ unsigned s[64], zeros[2];
        unsigned v = a[t];
        for (int bit = 0; bit < 9; bit++) {
            bool one = v >> bit & 1;
            unsigned m = __ballot_sync(~0u, !one);
            if (t % 32 == 0) zeros[t / 32] = __popc(m);
            __syncthreads();
            int before = __popc(m & ((1u << t % 32) - 1)) + (t < 32 ? 0 : zeros[0]);
            s[one ? zeros[0] + zeros[1] + t - before : before] = v;
            __syncthreads();
            v = s[t];
        }
        o[t] = v;""",
        u4(np.sort(X[:64])),
        inputs=(u4(X[:64]),),
        block=64,
    ),
    "sort_by_ranks_is_stable": Kernel(
        """int rank = 0;
        for (int n = 0; n < 64; n++) rank += a[n] < a[t] || (a[n] == a[t] && n < t);
        o[rank] = t;""",
        i4(np.argsort(SMALL[:64], kind="stable")),
        inputs=(i4(SMALL[:64]),),
        block=64,
    ),
    "merge_by_searches": Kernel(
        """int from_b = t >= 40, v = from_b ? b[t - 40] : a[t], low = 0, high = from_b ? 40 : 24;
        while (low < high) {
            int middle = (low + high) / 2, w = from_b ? a[middle] : b[middle];
            if (w < v || (from_b && w == v)) low = middle + 1; else high = middle;
        }
        o[(from_b ? t - 40 : t) + low] = v;""",
        i4(np.sort([*np.sort(X[:40] % 50), *np.sort(X[40:64] % 50)])),
        inputs=(i4(np.sort(X[:40] % 50)), i4(np.sort(X[40:64] % 50))),
        block=64,
    ),
    "lower_bounds": Kernel(
        """int low = 0, high = 100;
        while (low < high) { int middle = low + (high - low >> 1); if (a[middle] < t * 10) low = middle + 1; else high = middle; }
        o[t] = low;""",
        i4(np.searchsorted(np.sort(X[:100]), L * 10)),
        inputs=(i4(np.sort(X[:100])),),
    ),
    "quick_sort_with_a_stack": Kernel(
        """int v[24], stack[64], top = 0;
        for (int n = 0; n < 24; n++) v[n] = (n * 13 + t * 7) % 29;
        stack[top++] = 0; stack[top++] = 23;
        while (top) {
            int high = stack[--top], low = stack[--top], at = low;
            if (low >= high) continue;
            for (int n = low; n < high; n++) if (v[n] < v[high]) { int w = v[n]; v[n] = v[at]; v[at++] = w; }
            int w = v[at]; v[at] = v[high]; v[high] = w;
            stack[top++] = low; stack[top++] = at - 1; stack[top++] = at + 1; stack[top++] = high;
        }
        int sum = 0;
        for (int n = 0; n < 24; n++) sum += v[n] * (n + 1);
        o[t] = sum;""",
        i4(
            [
                np.sort((np.arange(24) * 13 + lane * 7) % 29) @ (np.arange(24) + 1)
                for lane in range(32)
            ]
        ),
    ),
    "heap_sort": Kernel(
        """short v[20];
        for (int n = 0; n < 20; n++) v[n] = (n * 11 + t) % 23 - 10;
        auto sink = [&](int n, int size) {
            for (int m; (m = 2 * n + 1) < size; n = m) {
                if (m + 1 < size && v[m] < v[m + 1]) m++;
                if (v[n] >= v[m]) return;
                short w = v[n]; v[n] = v[m]; v[m] = w;
            }
        };
        for (int n = 9; n >= 0; n--) sink(n, 20);
        for (int n = 19; n; n--) { short w = v[0]; v[0] = v[n]; v[n] = w; sink(0, n); }
        for (int n = 0; n < 4; n++) o[4 * t + n] = v[6 * n];""",
        i4(
            [np.sort((np.arange(20) * 11 + lane) % 23 - 10)[[0, 6, 12, 18]] for lane in range(32)]
        ).ravel(),
    ),
    "greatest_four": Kernel(
        """int v = a[t];
        for (int n = 0; n < 4; n++) {
            int best = __reduce_max_sync(~0u, v);
            if (v == best) { o[n] = best; v = -1; }
        }""",
        i4(np.sort(X[:32])[:-5:-1]),
        inputs=(i4(X[:32]),),
    ),
    "places_of_a_word": Kernel(
        """bool same = t + 3 <= b;
        for (int n = 0; same && n < 3; n++) same = a[t + n] == "tha"[n];
        if (same) atomicOr(o + t / 32, 1u << t % 32);""",
        u4([sum(1 << n for n in range(32) if TEXT[n : n + 3] == b"tha"), TEXT[32:35] == b"tha"]),
        inputs=(u1(list(TEXT)), np.int32(len(TEXT))),
        block=64,
        start=0,
    ),
    # ---- graphs, tables, and what goes step by step
    "shortest_paths": Kernel(
        """__shared__ int s[16][16];
        int x = threadIdx.x, y = threadIdx.y;
        s[y][x] = a[y * 16 + x];
        for (int k = 0; k < 16; k++) {
            __syncthreads();
            int v = s[y][k] + s[k][x];
            __syncthreads();
            if (v < s[y][x]) s[y][x] = v;
        }
        o[y * 16 + x] = s[y][x];""",
        i4(shortest_paths(PATHS).ravel()),
        inputs=(i4(PATHS.ravel()),),
        block=(16, 16),
    ),
    "breadth_first_search": Kernel(
        """__shared__ int s[64];
        s[t] = t ? -1 : 0;
        int x = t % 8, y = t / 8, step = 0;
        __syncthreads();
        bool more = true;
        while (more) {
            bool reached = s[t] < 0 && !a[t]
                && ((x && s[t - 1] == step) || (x < 7 && s[t + 1] == step) || (y && s[t - 8] == step) || (y < 7 && s[t + 8] == step));
            step++;
            more = __syncthreads_or(reached);
            if (reached) s[t] = step;
            __syncthreads();
        }
        o[t] = s[t];""",
        i4(levels(WALLS, (0, 0)).ravel()),
        inputs=(u1(WALLS.ravel()),),
        block=64,
    ),
    "labels_of_components": Kernel(
        """__shared__ int s[32];
        s[t] = t;
        bool changed;
        do {
            __syncthreads();
            changed = false;
            if (t < 10) {
                int p = a[2 * t], q = a[2 * t + 1], x = atomicMin(s + p, 32), y = atomicMin(s + q, x);
                changed = x != y;
                atomicMin(s + p, y);
            }
        } while (__syncthreads_or(changed));
        o[t] = s[t];""",
        i4(LABELS),
        inputs=(i4(EDGES.ravel()),),
    ),
    "hash_table": Kernel(
        """__shared__ int keys[64], values[64];
        for (int n = t; n < 64; n += 32) { keys[n] = -1; values[n] = 0; }
        __syncthreads();
        int key = a[t], slot = key * 7 % 64;
        for (int old; (old = atomicCAS(keys + slot, -1, key)) != -1 && old != key;) slot = (slot + 1) % 64;
        atomicAdd(values + slot, t);
        __syncthreads();
        slot = key * 7 % 64;
        while (keys[slot] != key) slot = (slot + 1) % 64;
        o[t] = values[slot];""",
        i4([sum(n for n in range(32) if n % 9 == lane % 9) for lane in range(32)]),
        inputs=(i4(L % 9 * 64 + 3),),
    ),
    "linked_list": Kernel(
        """__shared__ unsigned long long head;
        if (!t) head = 0;
        __syncthreads();
        Node *node = new Node{t, nullptr};
        for (unsigned long long old = atomicAdd(&head, 0ull), seen;; old = seen) {
            node->next = (Node *)old;
            __threadfence();
            if ((seen = atomicCAS(&head, old, (unsigned long long)node)) == old) break;
        }
        __syncthreads();
        if (!t) {
            int sum = 0, count = 0;
            for (Node *n = (Node *)head; n;) { Node *next = n->next; sum += n->value; count++; delete n; n = next; }
            o[0] = sum; o[1] = count;
        }""",
        i4([2016, 64]),
        block=64,
        before="struct Node { int value; Node *next; };",
    ),
    "queue_of_work": Kernel(
        """for (int n; (n = atomicAdd(o, 1)) < 100;) {
            int steps = 0;
            for (long long x = n + 1; x > 1; steps++) x = x % 2 ? 3 * x + 1 : x / 2;
            o[1 + n] = steps;
        }""",
        # Each of 96 threads takes one that is too large.
        i4([196, *[collatz(n + 1) for n in range(100)]]),
        grid=3,
        start=0,
    ),
    "edit_distance": Kernel(
        """__shared__ int s[3][33];
        for (int d = 0; d <= b + c; d++) {
            for (int n = t; n <= b; n += 32) {
                int m = d - n;
                if (m < 0 || m > c) continue;
                int *now = s[d % 3], *last = s[(d + 2) % 3], *before = s[(d + 1) % 3];
                now[n] = !n ? m : !m ? n : min(min(last[n - 1], last[n]) + 1, before[n - 1] + (a[n - 1] != a[b + m - 1]));
            }
            __syncwarp();
        }
        if (!t) o[0] = s[(b + c) % 3][b];""",
        i4([distances("gpu programs of strangers", "a program by somebody else")]),
        inputs=(
            u1(list(b"gpu programs of strangersa program by somebody else")),
            np.int32(25),
            np.int32(26),
        ),
    ),
    "filled_bag": Kernel(
        """__shared__ int s[64];
        s[t] = 0;
        for (int n = 0; n < 6; n++) {
            __syncthreads();
            int v = t >= a[n] ? max(s[t], s[t - a[n]] + b[n]) : s[t];
            __syncthreads();
            s[t] = v;
        }
        o[t] = s[t];""",
        i4(filled([5, 11, 7, 20, 16, 9], [8, 20, 11, 40, 28, 16], 63)),
        inputs=(i4([5, 11, 7, 20, 16, 9]), i4([8, 20, 11, 40, 28, 16])),
        block=64,
    ),
    "sieve": Kernel(
        """__shared__ unsigned s[8];
        if (t < 8) s[t] = t ? 0 : 3;
        __syncthreads();
        if (t > 1) for (int n = t * t; n < 256; n += t) atomicOr(s + n / 32, 1u << n % 32);
        __syncthreads();
        if (t < 8) o[t] = ~s[t];""",
        u4(
            [
                sum(
                    1 << n
                    for n in range(32)
                    if (p := 32 * w + n) > 1 and all(p % d for d in range(2, p))
                )
                for w in range(8)
            ]
        ),
    ),
    "pascals_triangle": Kernel(
        "int v = !t; for (int n = 0; n < 31; n++) { int w = __shfl_up_sync(~0u, v, 1); if (t) v += w; } o[t] = v;",
        i4([math.comb(31, lane) for lane in range(32)]),
    ),
    "queens": Kernel(
        """int count = 0, stack[8], row = 1;
        auto free = [&](int r) {
            for (int n = 0; n < r; n++) if (stack[n] == stack[r] || abs(stack[n] - stack[r]) == r - n) return false;
            return true;
        };
        stack[0] = t; stack[1] = -1;
        while (row) {
            if (++stack[row] == 8) { row--; continue; }
            if (!free(row)) continue;
            if (row == 7) count++; else stack[++row] = -1;
        }
        o[t] = count;""",
        i4([4, 8, 16, 18, 18, 16, 8, 4]),  # 92 in all
        block=8,
    ),
    "permutations_by_number": Kernel(
        """int left[5] = {0, 1, 2, 3, 4}, n = i, d = 24, r = 0;
        for (int k = 5; k; k--) {
            int at = n / d; n %= d; if (k > 1) d /= k - 1;
            r = r * 10 + left[at];
            for (int m = at; m < k - 1; m++) left[m] = left[m + 1];
        }
        o[i] = r;""",
        i4([int("".join(map(str, p))) for p in itertools.permutations(range(5))]),
        grid=4,
        block=30,
    ),
    "power_of_a_matrix": Kernel(
        "o[t] = power({1, 1, 1, 0}, t * 3).b;",
        u8(FIBONACCI[:94:3]),
        before="""struct M { unsigned long long a, b, c, d; };
        __device__ M operator*(M x, M y) {
            return {x.a * y.a + x.b * y.c, x.a * y.b + x.b * y.d, x.c * y.a + x.d * y.c, x.c * y.b + x.d * y.d};
        }
        __device__ __noinline__ M power(M x, int n) {
            if (!n) return {1, 0, 0, 1};
            M half = power(x, n / 2);
            return n % 2 ? half * half * x : half * half;
        }""",
    ),
    "escape_times": Kernel(
        """int cx = t % 16 * 768 - 8192, cy = t / 16 * 1024 - 4096, n = 0;
        long long x = 0, y = 0;
        while (n < 50 && x * x + y * y < 4ll << 24) {
            long long next = (x * x - y * y >> 12) + cx;
            y = (2 * x * y >> 12) + cy; x = next; n++;
        }
        o[t] = n;""",
        i4(escapes()),
        block=128,
    ),
    "nearest_centres": Kernel(
        """__shared__ int sums[3][3];
        if (t < 9) sums[t / 3][t % 3] = 0;
        __syncthreads();
        int2 p = make_int2(t % 16, t / 16); int best = 0, least = 1 << 30;
        for (int n = 0; n < 3; n++) {
            int2 c = ((const int2 *)a)[n]; int d = (p.x - c.x) * (p.x - c.x) + (p.y - c.y) * (p.y - c.y);
            if (d < least) { least = d; best = n; }
        }
        atomicAdd(&sums[best][0], p.x); atomicAdd(&sums[best][1], p.y); atomicAdd(&sums[best][2], 1);
        __syncthreads();
        if (t < 9) o[t] = sums[t / 3][t % 3];""",
        i4([[*PLACES[n == NEAREST].sum(0), (n == NEAREST).sum()] for n in range(3)]).ravel(),
        inputs=(i4(CENTRES.ravel()),),
        block=256,
    ),
    # ---- random numbers, checksums
    "philox": Kernel(
        """unsigned x[4] = {a, a, a, a}, k0 = a, k1 = a;
        for (int n = 0; n < 10; n++) {
            unsigned h0 = __umulhi(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
            unsigned h1 = __umulhi(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
            x[0] = h1 ^ x[1] ^ k0; x[1] = l1; x[2] = h0 ^ x[3] ^ k1; x[3] = l0;
            k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
        }
        for (int n = 0; n < 4; n++) o[n] = x[n];""",
        # The answer that Random123 publishes for ten rounds
        u4([0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        inputs=(np.uint32(M),),
        block=1,
    ),
    "xorshift": Kernel(
        "unsigned x = t + 1; for (int n = 0; n < 20; n++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; } o[t] = x;",
        u4([xorshift(lane + 1, 20) for lane in range(32)]),
    ),
    "crc32": Kernel(
        """__shared__ unsigned table[256];
        unsigned c = t;
        for (int n = 0; n < 8; n++) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
        table[t] = c;
        __syncthreads();
        if (!t) {
            c = ~0u;
            for (int n = 0; n < b; n++) c = table[(c ^ a[n]) & 255] ^ c >> 8;
            o[0] = ~c;
        }""",
        u4([zlib.crc32(TEXT)]),
        inputs=(u1(list(TEXT)), np.int32(len(TEXT))),
        block=256,
    ),
    "sha256": Kernel(
        """unsigned w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, v[8];
        auto turn = [](unsigned x, int n) { return __funnelshift_r(x, x, n); };
        for (int n = 0; n < 16; n++) w[n] = __byte_perm(((const unsigned *)a)[n], 0, 0x0123);
        for (int n = 16; n < 64; n++)
            w[n] = w[n - 16] + (turn(w[n - 15], 7) ^ turn(w[n - 15], 18) ^ w[n - 15] >> 3) + w[n - 7]
                + (turn(w[n - 2], 17) ^ turn(w[n - 2], 19) ^ w[n - 2] >> 10);
        for (int n = 0; n < 8; n++) v[n] = h[n];
        for (int n = 0; n < 64; n++) {
            unsigned p = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + b[n] + w[n];
            unsigned q = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            for (int m = 7; m; m--) v[m] = v[m - 1];
            v[4] += p; v[0] = p + q;
        }
        for (int n = 0; n < 8; n++) o[n] = h[n] + v[n];""",
        u4(np.frombuffer(hashlib.sha256(TEXT).digest(), ">u4")),
        inputs=(
            u1([*TEXT, 0x80, *[0] * (55 - len(TEXT)), *(8 * len(TEXT)).to_bytes(8, "big")]),
            u4(roots_of_primes(64)),
        ),
        block=1,
    ),
}

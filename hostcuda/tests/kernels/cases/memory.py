"""Shared, local, constant and global memory: layouts, alignment, vectors, warps of before Volta.

Source: CUDA C++ Programming Guide, "Variable Memory Space Specifiers", "Device Memory Accesses",
"Built-in Vector Types" (alignments), and for volatile warps the Volta Tuning Guide: code without
`__syncwarp` relies on threads that run in step, which compilers for sm_70 and later do not promise.
It works where all threads of the warp take each step, which is how such code is found in programs.
"""

from . import Kernel, L, f4, f8, i4, i8, np, u4

KERNELS = {
    "static_shared": Kernel(
        "__shared__ int s[32]; s[31 - t] = t; __syncthreads(); o[t] = s[t];", i4(31 - L)
    ),
    "shared_of_2_dimensions": Kernel(
        """__shared__ float s[8][9];
        int x = threadIdx.x, y = threadIdx.y;
        s[y][x] = a[8 * y + x];
        __syncthreads();
        o[8 * y + x] = s[x][y];""",
        f4(np.arange(64).reshape(8, 8).T.ravel()),
        inputs=(f4(range(64)),),
        block=(8, 8),
    ),
    "shared_is_per_block": Kernel(
        """__shared__ int s;
        if (!t) s = blockIdx.x;
        __syncthreads();
        o[i] = s;""",
        i4(np.repeat(np.arange(5), 8)),
        grid=5,
        block=8,
    ),
    "dynamic_shared": Kernel(
        "extern __shared__ int d1[]; d1[t] = t * 2; __syncthreads(); o[t] = d1[31 - t];",
        i4((31 - L) * 2),
        shared=128,
    ),
    "dynamic_shared_cut_in_parts": Kernel(
        """extern __shared__ double d[];
        float *f = (float *)(d + 32); char *c = (char *)(f + 32);
        d[t] = t / 2.; f[t] = t / 4.f; c[t] = t;
        __syncthreads();
        o[t] = d[31 - t] + f[31 - t] + c[31 - t];""",
        f8((31 - L) * 1.75),
        shared=32 * 13,
    ),
    "dynamic_shared_aligned": Kernel(
        """extern __shared__ __align__(16) unsigned char d2[];
        float4 *v = (float4 *)d2;
        v[t] = make_float4(t, 1, 2, 3);
        __syncthreads();
        o[t] = v[31 - t].x + v[t].w + (unsigned)((size_t)d2 % 16);""",
        f4(31 - L + 3),
        shared=512,
    ),
    "dynamic_shared_beside_static": Kernel(
        """__shared__ int a1[32]; extern __shared__ int d3[];
        a1[t] = t; d3[t] = 100 + t;
        __syncthreads();
        o[t] = a1[31 - t] + d3[31 - t];""",
        i4(100 + 2 * (31 - L)),
        shared=128,
    ),
    "dynamic_shared_of_a_template": Kernel(
        "o[t] = twice(t);",
        i4(L * 2),
        shared=128,
        before="""template <class T> __device__ T twice(T x) {
            extern __shared__ __align__(8) char d4[];
            T *s = reinterpret_cast<T *>(d4);
            s[threadIdx.x] = x;
            __syncthreads();
            return 2 * s[threadIdx.x];
        }""",
    ),
    "shared_structs": Kernel(
        """struct P { char c; double d; short s; };
        __shared__ P p[4];
        if (t < 4) p[t] = {(char)t, t * 0.5, (short)-t};
        __syncthreads();
        P &q = p[t % 4];
        o[t] = q.c + q.d + q.s + sizeof(P) + offsetof_d(q);""",
        f8(L % 4 * 0.5 + 24 + 8),
        before="""template <class P> __device__ int offsetof_d(P &p) { return (char *)&p.d - (char *)&p; }""",
    ),
    "shared_unions": Kernel(
        """__shared__ union { int n[2]; float f[2]; unsigned char b[8]; } u;
        if (!t) { u.f[0] = 1; u.n[1] = 0x01020304; }
        __syncthreads();
        if (t < 4) o[t] = u.b[t + 4];
        if (t == 4) o[4] = u.n[0];""",
        i4([4, 3, 2, 1, 0x3F800000]),
    ),
    "shared_of_a_device_function": Kernel(
        "o[t] = f(t) + g(t);",
        i4(62 - 2 * L),
        before="""__device__ int f(int t) {
            __shared__ int s[32]; s[t] = t; __syncthreads(); return s[31 - t];
        }
        __device__ int g(int t) {
            __shared__ int s[32]; s[t] = t; __syncthreads(); return s[31 - t];
        }""",
    ),
    "shared_at_namespace_scope": Kernel(
        "s[t] = t + 1; __syncthreads(); o[t] = s[31 - t];",
        i4(32 - L),
        before="__shared__ int s[32];",
    ),
    "shared_of_48_kib": Kernel(
        """__shared__ int s[12288];
        for (int n = t; n < 12288; n += 256) s[n] = n;
        __syncthreads();
        if (t < 32) o[t] = s[12287 - t];""",
        i4(12287 - L),
        block=256,
    ),
    "volatile_warp_sum": Kernel(
        """__shared__ volatile int s[64];
        s[t] = t;
        __syncthreads();
        if (t < 32) {
            s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8];
            s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1];
        }
        if (!t) o[0] = s[0];""",
        i4([2016]),
        block=64,
    ),
    "volatile_warp_sum_by_pointer": Kernel(
        """__shared__ float s[64];
        s[t] = t;
        __syncthreads();
        if (t < 32) tail(s, t);
        if (!t) o[0] = s[0];""",
        f4([2016]),
        block=64,
        before="""__device__ void tail(volatile float *p, int n) {
            p[n] = p[n] + p[n + 32]; p[n] = p[n] + p[n + 16]; p[n] = p[n] + p[n + 8];
            p[n] = p[n] + p[n + 4]; p[n] = p[n] + p[n + 2]; p[n] = p[n] + p[n + 1];
        }""",
    ),
    "volatile_warp_maximum": Kernel(
        """__shared__ int s[64];
        volatile int *v = s;
        v[t] = a[t]; v[t + 32] = 0;
        for (int d = 16; d; d /= 2) v[t] = max(v[t], v[t + d]);
        if (!t) o[0] = v[0];""",
        i4([max(L * 37 % 101)]),
        inputs=(i4(L * 37 % 101),),
    ),
    "volatile_flag": Kernel(
        """__shared__ int n; volatile int *p = &n;
        *p = 0; __syncwarp();
        if (t == 5) *p = 9;
        __syncwarp();
        o[t] = *p;""",
        i4(L * 0 + 9),
    ),
    "local_array": Kernel(
        """int x[100];
        for (int n = 0; n < 100; n++) x[n] = n * t;
        o[t] = x[a[t]];""",
        i4(L * (L * 7 % 100)),
        inputs=(i4(L * 7 % 100),),
    ),
    "local_array_of_32_kib": Kernel(
        """int x[8192];
        for (int n = 0; n < 8192; n++) x[n] = n ^ t;
        int sum = 0;
        for (int n = 0; n < 8192; n += a[0]) sum += x[n];
        o[t] = sum;""",
        i4([sum(n ^ t for n in range(0, 8192, 64)) for t in range(32)]),
        inputs=(i4([64]),),
    ),
    "local_array_sorted": Kernel(
        """int x[16];
        for (int n = 0; n < 16; n++) x[n] = (n * 7 + t) % 16;
        for (int n = 1; n < 16; n++)
            for (int m = n; m && x[m - 1] > x[m]; m--) { int y = x[m]; x[m] = x[m - 1]; x[m - 1] = y; }
        o[t] = x[5] * 100 + x[15];""",
        i4(L * 0 + 515),
    ),
    "constant_from_the_host": Kernel(
        "o[t] = c_host[t % 4] + c_host[3];",
        i4([11, 12, 13, 20] * 8),
        before='extern "C" __constant__ int c_host[4] = {9, 9, 9, 9};',
        fill={"c_host": i4([1, 2, 3, 10])},
    ),
    "constant_with_initial_values": Kernel(
        "o[t] = c[t % 3].n + c[t % 3].s[1] + d;",
        i4(L % 3 * 10 + ord("b") + 7),
        before="""struct S { int n; char s[4]; };
        __constant__ S c[3] = {{0, "ab"}, {10, "cb"}, {20, "db"}};
        static __constant__ int d = 7;""",
    ),
    "device_global": Kernel(
        "o[t] = table[t % 3]; if (!t) o[32] = sizeof(table) + (pointer == table);",
        f4([*np.resize([0.5, 1.5, 2.5], 32), 13]),
        before="""__device__ float table[3] = {0.5f, 1.5f, 2.5f};
        __device__ float *pointer = table;""",
    ),
    "device_global_from_the_host": Kernel(
        "o[t] = g_host; __syncwarp(); if (!t) g_host = 7;",
        f8(L * 0 + 2.25),
        before='extern "C" __device__ double g_host;',
        fill={"g_host": f8([2.25])},
    ),
    "vector_loads": Kernel(
        """const float4 *v = (const float4 *)a;
        float4 x = v[t];
        o[t] = x.x + 2 * x.y + 3 * x.z + 4 * x.w;""",
        f4(L * 40 + 20),
        inputs=(f4(range(128)),),
    ),
    "vector_stores": Kernel(
        "((int4 *)o)[t] = make_int4(t, t + 1, t + 2, t + 3);",
        i4((L[:, None] + np.arange(4)).ravel()),
    ),
    "vector_sizes": Kernel(
        """o[0] = sizeof(float3) * 100 + alignof(float3); o[1] = sizeof(double2) * 100 + alignof(double2);
        o[2] = sizeof(char4) * 100 + alignof(char4); o[3] = sizeof(short3) * 100 + alignof(short3);
        o[4] = sizeof(longlong2) * 100 + alignof(longlong2); o[5] = sizeof(uchar3) * 100 + alignof(uchar3);
        o[6] = sizeof(dim3) * 100 + alignof(dim3); o[7] = sizeof(long) + sizeof(void *) + sizeof(wchar_t);""",
        i4([1204, 1616, 404, 602, 1616, 301, 1204, 20]),
        block=1,
    ),
    "structs_by_value": Kernel(
        "S s = make(t); o[t] = s.a + s.b[1] + s.c.y;",
        f8(L * 3.75),
        before="""struct S { char a; float b[2]; double2 c; };
        __device__ __noinline__ S make(int t) {
            S s; s.a = t; s.b[0] = 0; s.b[1] = t / 4.f; s.c.x = 9; s.c.y = 2.5 * t; return s;
        }""",
    ),
    "bit_fields": Kernel(
        """struct { unsigned a : 3; int b : 5; unsigned c : 24; } x;
        x.a = 9; x.b = 17; x.c = 0x1ffffff;
        o[0] = x.a; o[1] = x.b; o[2] = x.c; o[3] = sizeof(x);""",
        i4([1, -15, 0xFFFFFF, 4]),
        block=1,
    ),
    "const_loads": Kernel(
        "o[t] = __ldg(a + t) + __ldcg(a + t) + __ldcs(a + t);",
        i4(L * 9),
        inputs=(i4(L * 3),),
    ),
    "restrict": Kernel(
        "o[t] = add(a, b, t);",
        i4(L * 3),
        inputs=(i4(L), i4(L * 2)),
        before="""__device__ int add(const int *__restrict__ x, const int *__restrict__ y, int n) {
            return x[n] + y[n];
        }""",
    ),
    "pointers_of_all_spaces": Kernel(
        """__shared__ int s; int local = 5;
        if (!t) s = 3;
        __syncthreads();
        const int *p[4] = {&s, &local, a, &c};
        o[t] = *p[t % 4];""",
        i4(np.resize([3, 5, 77, 11], 32)),
        inputs=(i4([77]),),
        before="__constant__ int c = 11;",
    ),
    "memcpy_memset": Kernel(
        """char x[20];
        memset(x, 3, 20); memcpy(x + 5, a, 7);
        int sum = 0;
        for (int n = 0; n < 20; n++) sum += x[n];
        o[t] = sum;""",
        i4([13 * 3 + 2 * 4 + 3]),
        inputs=(i4([0x02020202, 0x01010100 + 1, 9]),),
        block=1,
    ),
    "malloc_and_new": Kernel(
        """int *p = (int *)malloc(40);
        for (int n = 0; n < 10; n++) p[n] = n * t;
        int *q = new int[3]{t, 2, 3};
        o[t] = p[9] + q[0] + q[2];
        delete[] q;
        free(p);""",
        i4(L * 10 + 3),
    ),
    "large_grid": Kernel(
        "if (i == 99999 * 32 + 31) o[0] = i; if (i == 64) o[1] = blockIdx.x;",
        i4([3199999, 2]),
        grid=100000,
    ),
    "address_arithmetic_of_64_bits": Kernel(
        "const char *p = (const char *)a + (1ll << 40); o[t] = *(const int *)(p - (1ll << 40) + 4 * t);",
        i8(L + 5),
        inputs=(i4(L + 5),),
    ),
    "unsigned_char_buffers": Kernel(
        "o[t] = a[t] + (a[t + 1] << 8);",
        u4(L + (L + 1) * 256),
        inputs=(np.arange(33, dtype=np.uint8),),
    ),
    "vectors_of_all_types": Kernel(
        """short2 p = ((const short2 *)a)[t]; char4 q = ((const char4 *)a)[t]; double2 r = make_double2(p.x, q.w);
        longlong2 s = make_longlong2(p.y, q.x); ushort4 u = make_ushort4(1, 2, 3, p.x); uint2 v = {(unsigned)q.y, 7};
        o[t] = r.x + r.y * 3 + s.x * 5 + s.y * 7 + u.w * 11 + (int)v.x * 13;""",
        f8(
            [
                x
                + (n >> 24) * 3
                + (n >> 16) * 5
                + ((n & 255) ^ 128) * 7
                - 128 * 7
                + (x & 65535) * 11
                + ((n >> 8 & 255) ^ 128) * 13
                - 128 * 13
                for n in [0x01020304, -0x01020304, 0x7F80FF01, -1]
                for x in [((n & 65535) ^ 32768) - 32768]
            ]
        ),
        inputs=(i4([0x01020304, -0x01020304, 0x7F80FF01, -1]),),
        block=4,
    ),
    "dynamic_shared_of_four_types": Kernel(
        """extern __shared__ __align__(16) char d5[];
        double2 *d = (double2 *)d5; float *f = (float *)(d + blockDim.x); short *s = (short *)(f + blockDim.x); char *c = (char *)(s + blockDim.x);
        d[t] = make_double2(t, -t); f[t] = t * .5f; s[t] = -t; c[t] = t;
        __syncthreads();
        int n = blockDim.x - 1 - t;
        o[t] = d[n].x + 2 * d[n].y + 4 * f[n] + 8 * s[n] + 16 * c[n];""",
        f8((23 - np.arange(24)) * (1 - 2 + 2 - 8 + 16.0)),
        block=24,
        shared=24 * 23,
    ),
    "rows_with_a_pitch": Kernel(
        """const float *row = (const float *)((const char *)a + threadIdx.y * 48);
        o[threadIdx.y * 8 + t] = row[t] * 2;""",
        f4([2 * (n // 8 * 12 + n % 8) for n in range(32)]),
        inputs=(f4(range(48)),),
        block=(8, 4),
    ),
    "structures_of_arrays": Kernel(
        """Bodies s = {o, o + 8, o + 16}; const Body *from = (const Body *)a;
        if (t < 8) { Body p = from[t]; s.x[t] = p.x; s.mass[t] = p.mass; s.y[t] = p.y; }""",
        f4(np.arange(24).reshape(8, 3).T.ravel()),
        inputs=(f4(range(24)),),
        before="struct Body { float x, y, mass; }; struct Bodies { float *x, *y, *mass; };",
    ),
    "heap_of_a_block": Kernel(
        """__shared__ int *p;
        if (!t) p = (int *)malloc(64 * sizeof *p);
        __syncthreads();
        p[t] = t * t;
        __syncthreads();
        o[t] = p[63 - t] + ((size_t)p % 16);
        __syncthreads();
        if (!t) free(p);""",
        i4((63 - np.arange(64)) ** 2),
        block=64,
    ),
    "loads_with_hints": Kernel(
        """float4 v = __ldg((const float4 *)a + t); __stcs(o + t, v.x + v.w); __stwt(o + 8 + t, __ldca(a + t));
        __stcg(o + 16 + t, __ldcv(a + t) + __ldlu(a + t)); __stwb(o + 24 + t, (float)__ldcg((const int *)a + t));""",
        f4([*(8 * np.arange(8) + 3), *range(8), *range(0, 16, 2), *f4(range(8)).view("i4")]),
        inputs=(f4(range(32)),),
        block=8,
    ),
    "ring_in_a_local_array": Kernel(
        """int ring[8] = {}, sum = 0;
        for (int n = 0; n < 20; n++) { sum += n * t - ring[n & 7]; ring[n & 7] = n * t; }
        o[t] = sum;""",
        i4(sum(range(12, 20)) * L),
    ),
}

"""Memory: shared, local, constant, variables, parameters, generic addresses, textures."""

import numpy as np
import pytest


def test_shared_memory_of_both_kinds(gpu):
    out = gpu.run(
        "extern __shared__ __align__(16) int d[]; __shared__ short s[32]; __shared__ double e[2];"
        "s[l] = l; d[l] = 2 * l; if (l < 2) e[l] = 1.5; __syncthreads();"
        "o[l] = s[31 - l] + d[31 - l] + e[l % 2] * 2;",
        shared=128,
    )
    assert (out == 3 * np.arange(31, -1, -1) + 3).all()


def test_most_dynamic_shared_memory(gpu):
    out = gpu.run("extern __shared__ int d[]; d[12287 - i] = i; o[i] = d[12287 - i];", shared=49152)
    assert (out == np.arange(32)).all()


def test_generic_pointers(gpu):
    out = gpu.run(
        "__device__ __noinline__ int get(const int *p) { return *p; } __device__ int g = 7;\n"
        "__constant__ int c = 9;\n====\n"
        "__shared__ int s; if (!l) s = 5; __syncthreads(); int local[2] = {3, 4};"
        "const int *p = l % 4 == 0 ? &s : l % 4 == 1 ? &g : l % 4 == 2 ? &local[l / 4 % 2] : o + l;"
        "o[l] = 100; __syncthreads(); o[l] = get(p) + 1000 * (__isShared(p) + 2 * __isGlobal(p)"
        "+ 4 * __isLocal(p));"
    )
    expected = [1005, 2007, 4003, 2100, 1005, 2007, 4004, 2100]
    assert out[:8].tolist() == expected


def test_local_arrays(gpu):
    out = gpu.run(
        "int x[40]; for (int j = 0; j < 40; ++j) x[j] = j * a; int s = 0;"
        "for (int j = 0; j < 40; ++j) s += x[(j * 7 + l) % 40] * (j & 1); o[l] = s;",
        np.int32(2),
    )
    j = np.arange(40)
    assert out.tolist() == [int((((j * 7 + lane) % 40) * 2 * (j & 1)).sum()) for lane in range(32)]


def test_large_local_arrays(gpu):
    out = gpu.run(
        "volatile int x[73000]; for (int j = 0; j < 73000; j += 999) x[j] = j + a; o[l] = x[999 "
        "* (l + 40)];",
        np.int32(2),
    )
    assert (out == 999 * (np.arange(32) + 40) + 2).all()


def test_variables_start_as_written(gpu):
    import pycuda.driver as cuda

    out = gpu.run(
        "struct S { char c; double d; short s[3]; };\n__device__ S s = {1, 2.5, {3, 4, 5}};\n"
        "__constant__ float table[4] = {1, 2, 3, 4}; __device__ int *p = 0; __device__ int v = 6;\n"
        "__device__ int *q = &v; namespace n { __device__ long long w = -7; }\n====\n"
        "o[l] = s.c + s.d + s.s[l % 3] + table[l % 4] + (p == 0) + *q + n::w;",
        out=(32, "f8"),
    )
    lane = np.arange(32)
    assert (out == 1 + 2.5 + 3 + lane % 3 + 1 + lane % 4 + 1 + 6 - 7).all()
    address, size = gpu.module.get_global("table")
    back = np.zeros(4, "f4")
    cuda.memcpy_dtoh(back, address)
    assert size == 16
    assert back.tolist() == [1, 2, 3, 4]
    assert gpu.module.get_global("_ZN1n1wE")[1] == 8


@pytest.mark.parametrize(
    "name", ["variables", "_init", "_fini", "end", "environ", "sites", "functions", "files"]
)
@pytest.mark.parametrize("kind", ["__device__", "static __device__"])
def test_names_of_variables_are_free(gpu, name, kind):
    body = f"{kind} int {name}[3] = {{1, 2, 3}};\n====\n{name}[2] += 1; o[0] = {name}[l + 2];"
    assert gpu.run(body, block=1)[0] == 4


def test_constants_are_set_from_the_host(gpu):
    import pycuda.driver as cuda

    import hostcuda

    source = """__constant__ int c[4];
    extern "C" __global__ void k(int *o) { o[threadIdx.x] = c[threadIdx.x]; }"""
    module = cuda.module_from_buffer(hostcuda.compile(source))
    cuda.memcpy_htod(module.get_global("c")[0], np.array([4, 3, 2, 1], "i4"))
    target = cuda.mem_alloc(16)
    module.get_function("k")(target, grid=(1, 1, 1), block=(4, 1, 1))
    back = np.zeros(4, "i4")
    cuda.memcpy_dtoh(back, target)
    assert back.tolist() == [4, 3, 2, 1]


def test_parameters_by_value():
    source = """
    struct P { char c; int n[5]; double d; };
    extern "C" __global__
    void k(double *o, char c, P p, short s, const __grid_constant__ P q, int i) {
      o[threadIdx.x] = c + p.c + p.n[threadIdx.x % 5] + p.d + s + q.n[(threadIdx.x + i) % 5];
    }"""
    kind = np.dtype([("c", "i1"), ("n", "i4", 5), ("d", "f8")], align=True)
    p = np.array((1, (10, 20, 30, 40, 50), 0.5), kind)
    import cupy

    back = cupy.zeros(5)
    cupy.RawKernel(source, "k")((1,), (5,), (back, np.int8(2), p, np.int16(3), p, np.int32(1)))
    back = back.get()
    n = np.array([10, 20, 30, 40, 50])
    assert (back == 2 + 1 + n + 0.5 + 3 + np.roll(n, -1)).all()


def test_vectors(gpu):
    a = np.arange(128, dtype="f4")
    out = gpu.run(
        "float4 v = ((float4 *)a)[i]; double2 d = make_double2(v.x + v.y, v.z + v.w);"
        "uchar4 c = make_uchar4(l, 1, 2, 3); ((float4 *)o)[i] = make_float4(d.x, d.y, c.x + "
        "c.w, v.w);",
        a,
        out=(128, "f4"),
    ).reshape(32, 4)
    v = a.reshape(32, 4)
    assert (out[:, 0] == v[:, 0] + v[:, 1]).all()
    assert (out[:, 1] == v[:, 2] + v[:, 3]).all()
    assert (out[:, 2] == np.arange(32) + 3).all()
    assert (out[:, 3] == v[:, 3]).all()


def test_small_integers_keep_their_sign(gpu):
    a = np.arange(-16, 16, dtype="i1")
    out = gpu.run("o[i] = a[i] * 2 + (unsigned char)a[i] * 1000;", a)
    assert (out == a.astype("i4") * 2 + a.view("u1").astype("i4") * 1000).all()


def test_asynchronous_copies(gpu):
    out = gpu.run(
        "#include <cuda_pipeline.h>\n====\n"
        "__shared__ int s[32]; __pipeline_memcpy_async(&s[l], &a[31 - l], 4); __pipeline_commit();"
        "__pipeline_wait_prior(0); __syncthreads(); o[l] = s[l];",
        np.arange(32, dtype="i4"),
        options=_include(),
    )
    assert (out == np.arange(31, -1, -1)).all()


@pytest.mark.parametrize(
    ("kind", "prepare", "expected"),
    [
        ("u32", "mov.u32 n, %2;", [1, 2, 0, 0]),
        ("pred", "setp.ne.u32 n, %2, 0;", [0, 0, 0, 0]),
        ("pred", "setp.eq.u32 n, %2, 0;", [1, 2, 3, 4]),
        ("b64", "mov.b64 n, 8;", [1, 2, 3, 4]),
    ],
    ids=["size", "ignored", "not ignored", "policy"],
)
def test_asynchronous_copies_of_a_part(gpu, kind, prepare, expected):
    hint = ".L2::cache_hint" if kind == "b64" else ""
    out = gpu.run(
        "__shared__ __align__(16) int s[4]; unsigned to = (unsigned)__cvta_generic_to_shared(s);"
        f'asm volatile("{{.reg .{kind} n; {prepare}'
        f'cp.async.cg.shared.global{hint} [%0], [%1], 16, n;}}"'
        '"cp.async.wait_all;" :: "r"(to), "l"(a), "r"(b) : "memory");'
        "for (int j = 0; j < 4; ++j) o[j] = s[j];",
        np.arange(1, 5, dtype="i4"),
        np.int32(8),
        out=(4, "i4"),
        block=1,
    )
    assert out.tolist() == expected


def test_cub(gpu):
    folder = next(iter(_find("cupy/_core/include/cupy/_cccl/cub/cub")))
    root = str(folder).removesuffix("/cub/cub")
    out = gpu.run(
        "#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_scan.cuh>\n"
        "#include <cub/block/block_radix_sort.cuh>\n====\n"
        "using Sum = cub::BlockReduce<int, 64>; using Scan = cub::BlockScan<int, 64>;"
        "using Sort = cub::BlockRadixSort<int, 64, 1>; __shared__ Sum::TempStorage a_;"
        "__shared__ Scan::TempStorage b_; __shared__ Sort::TempStorage c_;"
        "int sum = Sum(a_).Sum(i), before; Scan(b_).ExclusiveSum(i, before); int key[1] = "
        "{int(i * 37 % 64)};"
        "Sort(c_).Sort(key); o[i] = before + (i ? 0 : 100000 * sum); o[64 + i] = key[0];",
        out=(128, "i4"),
        block=64,
        options=[
            *_include(),
            f"-I{root}/cub",
            f"-I{root}/thrust",
            f"-I{root}/libcudacxx",
            "-std=c++17",
        ],
    )
    n = np.arange(64)
    assert out[0] == 201600000
    assert (out[1:64] == (np.cumsum(n) - n)[1:]).all()
    assert (out[64:] == n).all()


def _find(pattern):
    from hostcuda import _nvrtc

    package, _, rest = pattern.partition("/")
    return _nvrtc.find_files(package, rest)


def _include():
    from hostcuda import _build

    return [f"-I{_build.cuda_include()}", *(f"-I{folder}" for folder in _build.vendor_folders())]


@pytest.mark.parametrize("linear", [False, True])
def test_textures(linear):
    import cupy as cp
    from cupy.cuda import runtime as rt, texture as tx

    image = cp.arange(12, dtype="f4").reshape(3, 4)
    array = tx.CUDAarray(
        tx.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat), 4, 3
    )
    array.copy_from(image)
    how = tx.TextureDescriptor(
        (rt.cudaAddressModeClamp,) * 2,
        rt.cudaFilterModeLinear if linear else rt.cudaFilterModePoint,
        rt.cudaReadModeElementType,
    )
    texture = tx.TextureObject(tx.ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=array), how)
    k = cp.RawKernel(
        'extern "C" __global__ void k(float *o, cudaTextureObject_t t) {'
        "o[threadIdx.x] = tex2D<float>(t, threadIdx.x % 4 + 1.f, threadIdx.x / 4 + .5f); }",
        "k",
    )
    out = cp.zeros(12, "f4")
    k((1,), (12,), (out, texture))
    near = np.minimum(np.arange(4) + 1, 3) + 4 * np.arange(3)[:, None]
    expected = (near + image.get()) / 2 if linear else near
    assert (out.get().reshape(3, 4) == expected).all()

"""What a device says of itself: attributes, properties, memory, priorities, occupancy."""

import os
import subprocess
import sys

import cupy
import pycuda.driver as drv
import pytest
from cupy.cuda import driver, runtime

# What CuPy asks cudaGetDeviceProperties for
KEYS = """
    name totalGlobalMem sharedMemPerBlock regsPerBlock warpSize maxThreadsPerBlock maxThreadsDim
    maxGridSize clockRate totalConstMem major minor textureAlignment texturePitchAlignment
    multiProcessorCount kernelExecTimeoutEnabled integrated canMapHostMemory computeMode
    maxTexture1D maxTexture2D maxTexture3D concurrentKernels ECCEnabled pciBusID pciDeviceID
    pciDomainID tccDriver memoryClockRate memoryBusWidth l2CacheSize maxThreadsPerMultiProcessor
    isMultiGpuBoard cooperativeLaunch cooperativeMultiDeviceLaunch maxTexture1DMipmap
    maxTexture1DLayered maxTexture2DMipmap maxTexture2DLinear maxTexture2DLayered
    maxTexture2DGather maxTexture3DAlt maxTextureCubemap maxTextureCubemapLayered maxSurface1D
    maxSurface1DLayered maxSurface2D maxSurface2DLayered maxSurface3D maxSurfaceCubemap
    maxSurfaceCubemapLayered surfaceAlignment asyncEngineCount unifiedAddressing
    streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported
    sharedMemPerMultiprocessor regsPerMultiprocessor managedMemory multiGpuBoardGroupID
    hostNativeAtomicSupported pageableMemoryAccess concurrentManagedAccess
    computePreemptionSupported canUseHostPointerForRegisteredMem sharedMemPerBlockOptin
    pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost uuid luid
    luidDeviceNodeMask persistingL2CacheMaxSize maxBlocksPerMultiProcessor
    accessPolicyMaxWindowSize reservedSharedMemPerBlock deviceOverlap maxTexture1DLinear
    singleToDoublePrecisionPerfRatio
"""


def test_properties_are_an_h100s_but_for_what_is_true_here():
    told = runtime.getDeviceProperties(0)
    assert sorted(told) == sorted(KEYS.split())
    h100 = {
        "clockRate": 1980000,
        "memoryBusWidth": 5120,
        "l2CacheSize": 50 << 20,
        "asyncEngineCount": 3,
        "maxBlocksPerMultiProcessor": 32,
        "sharedMemPerBlockOptin": 227 << 10,
        "maxTexture2DLinear": (131072, 65000, 2097120),
        "maxSurface3D": (16384, 16384, 16384),
    }
    assert {key: told[key] for key in h100} == h100
    assert (told["name"], told["multiProcessorCount"]) == (b"host memory (no GPU)", 2)
    assert told["totalGlobalMem"] == cupy.cuda.Device().mem_info[1] == 1 << 30


def test_attributes_are_the_same_in_both_libraries():
    told = drv.Device(0).get_attributes()
    assert told[drv.device_attribute.MAX_REGISTERS_PER_MULTIPROCESSOR] == 65536
    attributes = cupy.cuda.Device(0).attributes
    assert {name: attributes[name] for name in ("WarpSize", "L2CacheSize", "PciDeviceId")} == {
        "WarpSize": 32,
        "L2CacheSize": told[drv.device_attribute.L2_CACHE_SIZE],
        "PciDeviceId": 0,
    }
    assert runtime.deviceGetAttribute(120, 0) == 0  # clusters of blocks, which are not supported
    for number in (0, 9999):
        with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
            runtime.deviceGetAttribute(number, 0)


PRINT = "import cupy; print(cupy.cuda.runtime.memGetInfo()[1] >> 20)"


@pytest.mark.parametrize(("size", "mebibytes"), [("4GiB", 4096), ("512 MiB", 512), ("300", 300)])
def test_memory_is_as_large_as_asked(size, mebibytes, tmp_path):
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {PRINT}")
    (tmp_path / "program.py").write_text(PRINT)

    def printed(*command, **variables):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("hostcuda", "--memory", size, "program.py") == f"{mebibytes}\n"
    assert printed("hostcuda", "program.py", HOSTCUDA_MEMORY=size) == f"{mebibytes}\n"
    suite = printed("pytest", "-s", "--hostcuda", "--hostcuda-memory", size, "test_it.py")
    assert f"{mebibytes}\n" in suite


@pytest.mark.skipif(not hasattr(runtime, "streamCreateWithPriority"), reason="new in CuPy 14")
@pytest.mark.parametrize(("asked", "given"), [(0, 0), (3, 0), (-3, -3), (-100, -5)])
def test_priorities_are_clamped(asked, given):
    stream = runtime.streamCreateWithPriority(runtime.streamNonBlocking, asked)
    assert runtime.streamGetPriority(stream) == given
    runtime.streamDestroy(stream)


@pytest.fixture(scope="module")
def kernel():
    """A kernel without shared memory, and with few registers."""
    kernel = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[threadIdx.x] = 1; }', "f")
    assert kernel.num_regs <= 16
    return kernel.kernel.ptr


# As an H100 answers, for a kernel of 14 registers
@pytest.mark.parametrize(
    ("shared", "blocks"),
    [
        (0, [32, 32, 21, 9, 4, 2]),
        (20000, [11, 11, 11, 9, 4, 2]),
        (49152, [4, 4, 4, 4, 4, 2]),
        (300000, [0] * 6),
    ],
)
def test_blocks_of_a_multiprocessor(shared, blocks, kernel):
    ask = driver.occupancyMaxActiveBlocksPerMultiprocessor
    assert [ask(kernel, n, shared) for n in (1, 64, 96, 224, 512, 1024)] == blocks


# Blocks of a GPU with two multiprocessors, not 132
@pytest.mark.parametrize(
    ("shared", "limit", "grid", "block"),
    [
        (0, 0, 4, 1024),
        (0, 500, 16, 256),
        (20000, 100, 22, 100),
        (49152, 500, 8, 500),
        (300000, 0, 0, 0),
    ],
)
def test_the_block_with_most_resident_threads(shared, limit, grid, block, kernel):
    assert driver.occupancyMaxPotentialBlockSize(kernel, shared, limit) == (grid, block)


@pytest.mark.parametrize(
    ("registers", "blocks"), [(48, [20, 10, 5, 4, 2, 1]), (96, [10, 5, 2, 2, 1, 0])]
)
def test_registers_limit_the_blocks(registers, blocks):
    """As an H100 answers: a warp's registers lie in one of four parts of a multiprocessor."""
    n = registers - 9
    source = f"""extern "C" __global__ void f(volatile float *x) {{
        float v[{n}];
        #pragma unroll
        for (int i = 0; i < {n}; ++i) v[i] = x[i];
        #pragma unroll
        for (int i = 0; i < {n}; ++i) x[i] = v[{n} - 1 - i];
    }}"""
    kernel = cupy.RawKernel(source, "f")
    assert registers - 8 < kernel.num_regs <= registers
    ask = driver.occupancyMaxActiveBlocksPerMultiprocessor
    assert [ask(kernel.kernel.ptr, n, 0) for n in (64, 128, 224, 288, 512, 1024)] == blocks

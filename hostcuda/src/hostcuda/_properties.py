"""What CuPy's `getDeviceProperties` answers, from the device's attributes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

# The attributes of each property, after "cudaDevAttr"; several are a tuple.
_ATTRIBUTES = {
    "sharedMemPerBlock": "MaxSharedMemoryPerBlock",
    "sharedMemPerBlockOptin": "MaxSharedMemoryPerBlockOptin",
    "sharedMemPerMultiprocessor": "MaxSharedMemoryPerMultiprocessor",
    "reservedSharedMemPerBlock": "ReservedSharedMemoryPerBlock",
    "regsPerBlock": "MaxRegistersPerBlock",
    "regsPerMultiprocessor": "MaxRegistersPerMultiprocessor",
    "maxBlocksPerMultiProcessor": "MaxBlocksPerMultiprocessor",
    "maxThreadsDim": "MaxBlockDimX MaxBlockDimY MaxBlockDimZ",
    "maxGridSize": "MaxGridDimX MaxGridDimY MaxGridDimZ",
    "totalConstMem": "TotalConstantMemory",
    "memoryBusWidth": "GlobalMemoryBusWidth",
    "kernelExecTimeoutEnabled": "KernelExecTimeout",
    "deviceOverlap": "GpuOverlap",
    "ECCEnabled": "EccEnabled",
    "pciBusID": "PciBusId",
    "pciDeviceID": "PciDeviceId",
    "pciDomainID": "PciDomainId",
    "maxTexture1D": "MaxTexture1DWidth",
    "maxTexture1DLinear": "MaxTexture1DLinearWidth",
    "maxTexture1DMipmap": "MaxTexture1DMipmappedWidth",
    "maxTexture1DLayered": "MaxTexture1DLayeredWidth MaxTexture1DLayeredLayers",
    "maxTexture2D": "MaxTexture2DWidth MaxTexture2DHeight",
    "maxTexture2DLinear": "MaxTexture2DLinearWidth MaxTexture2DLinearHeight "
    "MaxTexture2DLinearPitch",
    "maxTexture2DMipmap": "MaxTexture2DMipmappedWidth MaxTexture2DMipmappedHeight",
    "maxTexture2DLayered": "MaxTexture2DLayeredWidth MaxTexture2DLayeredHeight "
    "MaxTexture2DLayeredLayers",
    "maxTexture2DGather": "MaxTexture2DGatherWidth MaxTexture2DGatherHeight",
    "maxTexture3D": "MaxTexture3DWidth MaxTexture3DHeight MaxTexture3DDepth",
    "maxTexture3DAlt": "MaxTexture3DWidthAlt MaxTexture3DHeightAlt MaxTexture3DDepthAlt",
    "maxTextureCubemap": "MaxTextureCubemapWidth",
    "maxTextureCubemapLayered": "MaxTextureCubemapLayeredWidth MaxTextureCubemapLayeredLayers",
    "maxSurface1D": "MaxSurface1DWidth",
    "maxSurface1DLayered": "MaxSurface1DLayeredWidth MaxSurface1DLayeredLayers",
    "maxSurface2D": "MaxSurface2DWidth MaxSurface2DHeight",
    "maxSurface2DLayered": "MaxSurface2DLayeredWidth MaxSurface2DLayeredHeight "
    "MaxSurface2DLayeredLayers",
    "maxSurface3D": "MaxSurface3DWidth MaxSurface3DHeight MaxSurface3DDepth",
    "maxSurfaceCubemap": "MaxSurfaceCubemapWidth",
    "maxSurfaceCubemapLayered": "MaxSurfaceCubemapLayeredWidth MaxSurfaceCubemapLayeredLayers",
}
# Those with the attribute's own name
_SAME_NAME = """
    warpSize maxThreadsPerBlock maxThreadsPerMultiProcessor multiProcessorCount clockRate
    memoryClockRate l2CacheSize textureAlignment texturePitchAlignment surfaceAlignment integrated
    canMapHostMemory computeMode concurrentKernels tccDriver isMultiGpuBoard multiGpuBoardGroupID
    cooperativeLaunch cooperativeMultiDeviceLaunch asyncEngineCount unifiedAddressing managedMemory
    streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported pageableMemoryAccess
    hostNativeAtomicSupported concurrentManagedAccess computePreemptionSupported
    canUseHostPointerForRegisteredMem pageableMemoryAccessUsesHostPageTables
    directManagedMemAccessFromHost singleToDoublePrecisionPerfRatio
"""


def answering(runtime: ModuleType) -> Any:
    """Answer the function that answers the dict of a device's properties."""

    def properties(device: int) -> dict[str, Any]:
        def ask(name: str) -> int:
            return runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), device)

        told: dict[str, Any] = {key: ask(key[0].upper() + key[1:]) for key in _SAME_NAME.split()}
        for key, names in _ATTRIBUTES.items():
            one, *more = [ask(name) for name in names.split()]
            told[key] = (one, *more) if more else one
        return told | {
            "name": b"host memory (no GPU)",
            "totalGlobalMem": runtime.memGetInfo()[1],
            "major": 9,
            "minor": 0,
            # CuPy has no names of these two
            "persistingL2CacheMaxSize": runtime.deviceGetAttribute(108, device),
            "accessPolicyMaxWindowSize": runtime.deviceGetAttribute(109, device),
            "uuid": b"host memory".ljust(15) + bytes([device]),
            "luid": b"",
            "luidDeviceNodeMask": 0,
        }

    return properties

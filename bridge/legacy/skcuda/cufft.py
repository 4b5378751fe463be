"""``skcuda.cufft``: plans and transforms of cuFFT, called as scikit-cuda's are.

Pointers are ``GPUArray.gpudata`` or addresses.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

from cupy.cuda import cufft as _cufft

import bridge

from . import address, on_stream, raise_missing

CUFFT_C2C, CUFFT_R2C, CUFFT_C2R = _cufft.CUFFT_C2C, _cufft.CUFFT_R2C, _cufft.CUFFT_C2R
CUFFT_Z2Z, CUFFT_D2Z, CUFFT_Z2D = _cufft.CUFFT_Z2Z, _cufft.CUFFT_D2Z, _cufft.CUFFT_Z2D
CUFFT_FORWARD, CUFFT_INVERSE = _cufft.CUFFT_FORWARD, _cufft.CUFFT_INVERSE
cufftError, cufftGetVersion = _cufft.CuFFTError, _cufft.getVersion  # noqa: N816 (cuFFT's names)


class PlanHandle(int):
    """The number of a plan, which keeps it; and its stream, of PyCUDA or by its handle."""

    plan: Any
    stream: Any = None


def make_plan(
    shape: Any, fft_type: int, batch: int = 1, strides: Any = (None, 1, 0) * 2
) -> PlanHandle:
    """Return a plan; `strides` are those of cufftPlanMany, with tuples for pointers."""
    plan = _cufft.PlanNd(shape, *strides, fft_type, batch, "C", -1, None)
    handle = PlanHandle(plan.handle)
    handle.plan = plan
    return handle


def cufftPlan1d(nx: int, fft_type: int, batch: int) -> PlanHandle:  # noqa: N802
    """Return a plan of one dimension."""
    return make_plan((nx,), fft_type, batch)


def cufftPlan2d(nx: int, ny: int, fft_type: int) -> PlanHandle:  # noqa: N802
    """Return a plan of two dimensions."""
    return make_plan((nx, ny), fft_type)


def cufftPlan3d(nx: int, ny: int, nz: int, fft_type: int) -> PlanHandle:  # noqa: N802
    """Return a plan of three dimensions."""
    return make_plan((nx, ny, nz), fft_type)


def cufftPlanMany(  # noqa: N802
    rank: int, n: Any, inembed: Any, istride: int, idist: int, onembed: Any, ostride: int,
    odist: int, fft_type: int, batch: int,
) -> PlanHandle:  # fmt: skip
    """Return a plan; `n` and both `embed` are pointers to C's ints, or None."""
    sizes = (ctypes.c_int * rank).from_address
    shape, inembed, onembed = (p and tuple(sizes(address(p))) for p in (n, inembed, onembed))
    strides = inembed, istride, idist, onembed, ostride, odist
    return make_plan(shape, fft_type, batch, strides)


def cufftDestroy(plan: PlanHandle) -> None:  # noqa: N802
    """Drop a plan."""
    plan.plan = None


def cufftSetStream(plan: PlanHandle, stream: int) -> None:  # noqa: N802
    """Set the stream of a plan, by the stream's own handle; CuPy's current stream otherwise."""
    plan.stream = int(stream)


def cufftExecC2C(  # noqa: N802
    plan: PlanHandle, idata: Any, odata: Any, direction: int = CUFFT_FORWARD
) -> None:
    """Transform what is at an address as the plan says; `direction` is for complex data."""
    data = (SimpleNamespace(data=SimpleNamespace(ptr=address(p))) for p in (idata, odata))
    with on_stream(plan.stream), bridge.ordered():
        plan.plan.fft(*data, direction)


cufftExecR2C = cufftExecC2R = cufftExecC2C  # noqa: N816
cufftExecZ2Z = cufftExecD2Z = cufftExecZ2D = cufftExecC2C  # noqa: N816
__getattr__ = functools.partial(raise_missing, __name__)

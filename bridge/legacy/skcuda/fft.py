"""``skcuda.fft``: plans, and transforms between GPUArrays."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from . import cufft, on_cupy, on_stream, raise_missing

_TYPES = {"fF": "R2C", "Ff": "C2R", "FF": "C2C", "dD": "D2Z", "Dd": "Z2D", "DD": "Z2Z"}


class Plan:
    """A plan for FFTs of up to three dimensions: the parameters of scikit-cuda's.

    `mode` and `auto_allocate` are accepted and not needed: the work area is in CuPy's pool.
    """

    def __init__(
        self, shape: Any, in_dtype: Any, out_dtype: Any, batch: int = 1, stream: Any = None,
        mode: int = 1, inembed: Any = None, istride: int = 1, idist: int = 0, onembed: Any = None,
        ostride: int = 1, odist: int = 0, auto_allocate: bool = True,
    ) -> None:  # fmt: skip
        self.shape = tuple(shape) if np.ndim(shape) else (shape,)
        self.in_dtype, self.out_dtype, self.batch = in_dtype, out_dtype, batch
        kind = _TYPES.get(np.dtype(in_dtype).char + np.dtype(out_dtype).char)
        if kind is None:
            raise ValueError(f"skcuda.fft.Plan: no FFT takes {in_dtype} to {out_dtype}")
        if batch <= 0 or not self.shape:
            raise ValueError(f"skcuda.fft.Plan: batch is {batch}, shape is {self.shape}")
        self.fft_type = getattr(cufft, f"CUFFT_{kind}")
        half, is_real = (*self.shape[:-1], self.shape[-1] // 2 + 1), kind[::2] not in ("CC", "ZZ")
        shapes = [half if is_real and letter in "CZ" else self.shape for letter in kind[::2]]
        # How many items each side has at least; not known for other strides than the usual ones.
        embedded = inembed, onembed
        self._sizes = [
            0 if e is not None else batch * prod(s) for e, s in zip(embedded, shapes, strict=True)
        ]
        inembed, onembed = (None if e is None else [int(n) for n in e] for e in embedded)
        strides = inembed, istride, idist, onembed, ostride, odist
        self.handle = cufft.make_plan(self.shape, self.fft_type, batch, strides)
        self.handle.stream, self.worksize = stream, self.handle.plan.work_area.mem.size

    def set_work_area(self, work_area: Any) -> None:
        """Accept a work area, which is not needed."""


@on_cupy
def _transform(x: Any, y: Any, plan: Plan, direction: int, scale: float | None) -> None:
    dtypes = plan.in_dtype, plan.out_dtype
    for array, dtype, size, name in zip((x, y), dtypes, plan._sizes, "xy", strict=True):
        if array.dtype != dtype or array.size < size:
            raise ValueError(
                f"skcuda.fft: {name} has {array.size} items of {array.dtype}; the plan takes "
                f"{size} of {np.dtype(dtype)} there"
            )
    plan.handle.plan.fft(x, y, direction)
    if scale is not None:
        y /= y.dtype.type(scale)


def _run(x: Any, y: Any, plan: Plan, direction: int, scale: float | None, wrong: str) -> None:
    if np.dtype(plan.in_dtype).kind + np.dtype(plan.out_dtype).kind == wrong:
        raise ValueError(f"skcuda.fft: this plan is for the other direction ({plan.in_dtype} in)")
    if int(x.gpudata) == int(y.gpudata) and plan.in_dtype != plan.out_dtype:
        raise ValueError("skcuda.fft: only complex data can be transformed in place")
    with on_stream(plan.handle.stream):
        _transform(x, y, plan, direction, scale)


def fft(x_gpu: Any, y_gpu: Any, plan: Plan, scale: bool = False) -> None:
    """Write the FFT of `x_gpu` into `y_gpu`; `scale` divides by the number of items."""
    count = x_gpu.size / plan.batch if scale else None
    _run(x_gpu, y_gpu, plan, cufft.CUFFT_FORWARD, count, "cf")


def ifft(x_gpu: Any, y_gpu: Any, plan: Plan, scale: bool = False) -> None:
    """Write the inverse FFT of `x_gpu` into `y_gpu`; `scale` divides by the number of items."""
    count = y_gpu.size / plan.batch if scale else None
    _run(x_gpu, y_gpu, plan, cufft.CUFFT_INVERSE, count, "fc")


__getattr__ = functools.partial(raise_missing, __name__)

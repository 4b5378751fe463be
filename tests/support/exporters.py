"""Arrays and memory as other libraries have them."""

from types import SimpleNamespace

import cupy
import pycuda.driver as drv
import pytest

import bridge

BOTH = pytest.mark.parametrize(
    "convert", [bridge.as_cupy, bridge.as_pycuda], ids=["cupy", "pycuda"]
)


def pointer_of(view):
    return view.data.ptr if isinstance(view, cupy.ndarray) else int(view.gpudata)


def answering(answer):
    """Return a stream whose ``__cuda_stream__`` answers this."""
    return SimpleNamespace(__cuda_stream__=lambda: answer)


class Exporter:
    """A library's array that speaks the CUDA Array Interface only."""

    def __init__(self, array, **entries):
        self.array = array
        self.interface = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.data.ptr, False),
            "version": 3,
            "strides": array.strides,
            **entries,
        }

    @property
    def __cuda_array_interface__(self):
        return self.interface


class DLPackExporter:
    """A library's array that speaks DLPack only, and remembers what it was asked for."""

    def __init__(self, array, device=None):
        self.array = array
        self.device = device or array.__dlpack_device__()
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        return self.array.__dlpack__(**keywords)


class Plain(drv.PointerHolderBase):
    """The allocator that one would write by hand: PyCUDA's interface over CuPy's pool."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.gpudata = memory, memory.ptr

    def get_pointer(self):
        return self.memory.ptr

    def __int__(self):
        return self.memory.ptr

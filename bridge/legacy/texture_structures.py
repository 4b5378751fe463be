"""Structures of CUDA's driver API for textures, and a reference as ``textures.h`` lays it out."""

from __future__ import annotations

import ctypes


class MemoryDesc(ctypes.Structure):
    """Linear memory, or rows of this size."""

    _fields_ = [("pointer", ctypes.c_uint64), ("format", ctypes.c_int), ("channels", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_size_t) for name in ("size", "height", "pitch")]


class _ArrayOrMemory(ctypes.Union):
    _fields_ = [("array", ctypes.c_void_p), ("memory", MemoryDesc), ("all", ctypes.c_int * 32)]


class ResourceDesc(ctypes.Structure):
    """CUDA_RESOURCE_DESC: what is bound."""

    _anonymous_ = ("bound",)
    _fields_ = [("kind", ctypes.c_int), ("bound", _ArrayOrMemory), ("flags", ctypes.c_uint)]


class TextureDesc(ctypes.Structure):
    """CUDA_TEXTURE_DESC: how it is read."""

    _fields_ = [("modes", ctypes.c_int * 3), ("filter", ctypes.c_int), ("flags", ctypes.c_uint)]
    _fields_ += [("unused", ctypes.c_int * 21)]  # of mipmaps; the border is 0


class Declaration(ctypes.Structure):
    """A variable of textures.h, as it lies in memory."""

    _fields_ = [("object", ctypes.c_uint64), ("magic", ctypes.c_int), ("dimensions", ctypes.c_int)]
    # Of a texel: how many channels; of a channel: its bytes, and "f", "i" or "u".
    _fields_ += [(name, ctypes.c_int) for name in ("channels", "bytes", "kind")]
    _fields_ += [("is_fraction", ctypes.c_int)]  # cudaReadModeNormalizedFloat

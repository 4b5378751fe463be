"""Texture and surface references, which CUDA 12 removed: over texture and surface objects.

``include/bridge/textures.h`` makes a reference a variable of the module: the object, and what its
declaration says.  CUDA bound references at the launch.  Here a kernel reads the variable while it
runs: a new object is written after all kernels that may read the old one, and before those that are
launched later.  Source: CUDA driver API, "Texture Object Management".
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import cupy
import pycuda.driver as drv
from cupy.cuda import driver, runtime
from cupy.cuda.texture import CUDAarray, TextureObject
from pycuda.gpuarray import GPUArray

from ..errors import named
from ..hooks import (
    LaunchReference,
    check_device,
    cuda_device,
    cuda_refusal,
    is_capturing,
    libcuda,
    shared_device,
)
from .texture_structures import Declaration, MemoryDesc, ResourceDesc, TextureDesc

_ARRAY, _LINEAR, _PITCHED = 0, 2, 3  # CUresourcetype
_TEXTURE_OBJECT = -1  # in place of a resource
_FORMATS = {
    (kind, size): getattr(drv.array_format, f"{name}{8 * size}")
    for kind, name in (("u", "UNSIGNED_INT"), ("i", "SIGNED_INT"))
    for size in (1, 2, 4)
} | {("f", 2): drv.array_format.HALF, ("f", 4): drv.array_format.FLOAT}
_CHANNELS = {int(value): key for key, value in _FORMATS.items()}
_OF_CUPY = cupy.ndarray, CUDAarray, TextureObject


class Reference(LaunchReference):
    """What the references of a module have in common."""

    _what = _accepted = _advice = ""
    _creator: Any
    _destroyer: Any

    def __init__(self, name: str, pointer: int, declared: Declaration) -> None:
        self._name, self._pointer, self._declared = f"{self._what} {name!r}", pointer, declared
        self._resource: Any = None
        self._bound: Any = None  # keeps its memory alive
        self._is_new = False
        self._object, self._in_use = 0, None  # what kernels read, and what that is bound to

    def set_array(self, array: Any, flags: int = 0) -> None:
        """Bind a ``pycuda.driver.Array`` or a `cupy.cuda.texture.CUDAarray`."""
        if not isinstance(array, drv.Array | CUDAarray):
            raise self._array_error(array)
        handle = array.handle if isinstance(array, drv.Array) else array.ptr
        self._bind(ResourceDesc(_ARRAY, array=int(handle)), array)

    def get_array(self) -> Any:
        """Return the array that is bound; raise LogicError if none is."""
        if self._resource is None or self._resource.kind != _ARRAY:
            raise drv.LogicError(f"{self._name}: no array is bound")
        return self._bound

    def _bind(self, resource: ResourceDesc, bound: Any) -> None:
        self._resource, self._bound, self._is_new = resource, bound, True

    def _array_error(self, array: Any, accepted: str = "") -> TypeError:
        text = named(array)
        if isinstance(array, GPUArray | cupy.ndarray):
            text += f" of {array.dtype} and shape {array.shape}"
        accepted = accepted or self._accepted
        return TypeError(f"{self._name}: set_array: the argument is {text}; {accepted}")

    def _create(self, *sampling: Any) -> int:
        """Return a new object for what is bound; raise if CUDA refuses it."""
        made = ctypes.c_uint64()
        status = self._creator(ctypes.byref(made), ctypes.byref(self._resource), *sampling)
        try:
            driver.check_status(status)
        except driver.CUDADriverError as error:
            reason = f"CUDA refuses what is bound ({error}); {self._advice}"
            if self._resource.kind == _PITCHED:
                reason += (
                    f"; rows, here {self._resource.memory.pitch} bytes apart, need a multiple of "
                    "the device's TEXTURE_PITCH_ALIGNMENT, as mem_alloc_pitch gives"
                )
            raise cuda_refusal(self._name, reason) from error
        return made.value


class SurfaceReference(Reference):
    """A surface reference of a module: has the methods of ``pycuda.driver.SurfaceReference``.

    What is set takes effect at the next launch of a kernel of the module.
    *Ownership:* a reference keeps the array alive.
    """

    _what = "surface"
    _creator, _destroyer = libcuda.cuSurfObjectCreate, libcuda.cuSurfObjectDestroy
    _accepted = "a pycuda.driver.Array or a cupy.cuda.texture.CUDAarray is accepted"
    _advice = "a surface needs an array made with array3d_flags.SURFACE_LDST"


class TextureReference(Reference):
    """A texture reference of a module: has the methods of ``pycuda.driver.TextureReference``.

    What is set takes effect at the next launch of a kernel of the module.  Before anything is set,
    the address mode is CLAMP, the filter POINT, coordinates count texels, and memory has the format
    of the declaration.  Integers are read as such unless the declaration says
    ``cudaReadModeNormalizedFloat``; ``TRSF_READ_AS_INTEGER`` is not needed.

    Notes
    -----
    *Ownership:* a reference keeps arrays and allocations alive.  For a part of an array, PyCUDA's
    ``bind_to_texref_ext`` gives it an address only: keep the array.
    *Ordering:* what is bound is ordered as a kernel's arguments are.  A change raises while a
    stream is captured, and from then on: a graph reads the textures whenever it runs.
    *Cost:* some microseconds for each launch of the module's kernels.
    """

    _what = "texture"
    _creator, _destroyer = libcuda.cuTexObjectCreate, libcuda.cuTexObjectDestroy
    _accepted = (
        "a pycuda.driver.Array, CUDAarray or TextureObject of cupy.cuda.texture, or an array in C "
        "order of integers or floating-point numbers of 1, 2 or 4 bytes is accepted"
    )
    _advice = "a linear filter needs floating-point texels; was the memory freed?"

    def __init__(self, name: str, pointer: int, declared: Declaration) -> None:
        super().__init__(name, pointer, declared)
        key = chr(declared.kind), declared.bytes
        self._format, self._channels = _FORMATS.get(key, drv.array_format.FLOAT), declared.channels
        self._modes, self._filter = [drv.address_mode.CLAMP] * 3, drv.filter_mode.POINT
        self._flags = 0

    def set_array(self, array: Any, flags: int = 0) -> None:
        """Bind an array or texture object, or memory: an array of PyCUDA or CuPy in C order.

        Memory is linear for a texture of one dimension, and rows for one of two dimensions.  Its
        format is that of the array's dtype.
        """
        if isinstance(array, TextureObject):
            self._bind(ResourceDesc(_TEXTURE_OBJECT), array)
        elif isinstance(array, GPUArray | cupy.ndarray):
            self._bind_memory(array)
        else:
            super().set_array(array)
            if isinstance(array, drv.Array):
                found = array.get_descriptor_3d()
                self._format, self._channels = found.format, found.num_channels
            else:
                found = array.desc.get_channel_format()
                bits = [found[axis] for axis in "xyzw" if found[axis]]
                self._format = _FORMATS["iuf"[found["f"]], bits[0] // 8]
                self._channels = len(bits)

    def _bind_memory(self, array: Any) -> None:
        key, dimensions = (array.dtype.kind, array.dtype.itemsize), self._declared.dimensions
        if key not in _FORMATS or not array.flags.c_contiguous:
            raise self._array_error(array)
        if dimensions > 2:
            accepted = (
                f"the texture has {dimensions & 15} dimensions, copy it into a pycuda.driver.Array "
                "or a cupy.cuda.texture.CUDAarray"
            )
            raise self._array_error(array, accepted)
        pointer = int(array.gpudata if isinstance(array, GPUArray) else array.data.ptr)
        channels, shape = self._declared.channels, array.shape
        if dimensions == 2:
            fits = shape[-1] == channels if len(shape) == 3 else len(shape) == 2
            if not fits or array.size % (shape[0] * channels):
                wanted = "rows" if channels == 1 else f"rows of texels of {channels} numbers"
                accepted = f"{wanted} are accepted: (height, width, {channels})"
                raise self._array_error(array, accepted)
            width = array.size // (shape[0] * channels)
            self._bind_rows(pointer, array, width, shape[0], array.nbytes // shape[0])
        else:
            self.set_address(pointer, array.nbytes)
            self._bound = array
        self.set_format(_FORMATS[key], channels)

    def set_address(self, devptr: Any, bytes: int, allow_offset: bool = False) -> int:
        """Bind linear memory, for ``tex1Dfetch``; return the offset of `devptr` in bytes.

        Linear memory starts at a multiple of the device's ``TEXTURE_ALIGNMENT``.  If `devptr` is
        elsewhere, the kernel has to add the offset: without `allow_offset`, a LogicError is raised.
        """
        if hasattr(devptr, "shape"):
            raise TypeError(
                f"{self._name}: set_address: devptr is {named(devptr)}; an address is accepted, "
                "a.gpudata of PyCUDA or x.data.ptr of CuPy, and the number of bytes"
            )
        pointer = int(devptr)
        check_device(pointer, f"{self._name}: set_address", shared_device())
        device = drv.Context.get_device()
        alignment = device.get_attribute(drv.device_attribute.TEXTURE_ALIGNMENT)
        offset: int = pointer % alignment
        if offset and not allow_offset:
            raise drv.LogicError(
                f"{self._name}: set_address: the address is {offset} bytes behind a multiple of "
                f"{alignment}; pass allow_offset=True, and add the returned offset in the kernel"
            )
        memory = MemoryDesc(pointer - offset, size=int(bytes) + offset)
        self._bind(ResourceDesc(_LINEAR, memory=memory), devptr)
        return offset

    def set_address_2d(self, devptr: Any, descr: Any, pitch: int) -> None:
        """Bind rows of memory: `descr` is a ``pycuda.driver.ArrayDescriptor``, `pitch` in bytes."""
        self._bind_rows(int(devptr), devptr, descr.width, descr.height, pitch)
        self.set_format(descr.format, descr.num_channels)

    def _bind_rows(self, pointer: int, bound: Any, width: int, height: int, pitch: int) -> None:
        check_device(pointer, self._name, shared_device())
        memory = MemoryDesc(pointer, size=width, height=height, pitch=pitch)
        self._bind(ResourceDesc(_PITCHED, memory=memory), bound)

    def get_address(self) -> int:
        """Return the address of the memory that is bound; raise LogicError if none is."""
        if self._resource is None or self._resource.kind not in (_LINEAR, _PITCHED):
            raise drv.LogicError(f"{self._name}: no memory is bound")
        return int(self._resource.memory.pointer)

    def set_format(self, format: Any, num_components: int) -> None:
        """Set the ``pycuda.driver.array_format`` and the number of channels of bound memory."""
        self._format = _enum_value(drv.array_format, format, self._name)
        if num_components not in (1, 2, 4):
            raise ValueError(f"{self._name}: a texel has 1, 2 or 4 channels, not {num_components}")
        self._channels, self._is_new = int(num_components), True

    def get_format(self) -> tuple[Any, int]:
        """Return the ``pycuda.driver.array_format`` and the number of channels."""
        return self._format, self._channels

    def set_address_mode(self, dim: int, mode: Any) -> None:
        """Set the ``pycuda.driver.address_mode`` of a dimension."""
        if dim not in (0, 1, 2):
            raise ValueError(f"{self._name}: set_address_mode: dim is {named(dim)}; 0, 1 or 2")
        self._modes[dim] = _enum_value(drv.address_mode, mode, self._name)
        self._is_new = True

    def get_address_mode(self, dim: int) -> Any:
        """Return the ``pycuda.driver.address_mode`` of a dimension."""
        return self._modes[dim]

    def set_filter_mode(self, mode: Any) -> None:
        """Set the ``pycuda.driver.filter_mode``."""
        self._filter = _enum_value(drv.filter_mode, mode, self._name)
        self._is_new = True

    def get_filter_mode(self) -> Any:
        """Return the ``pycuda.driver.filter_mode``."""
        return self._filter

    def set_flags(self, flags: int) -> None:
        """Set ``TRSF_READ_AS_INTEGER`` and ``TRSF_NORMALIZED_COORDINATES`` of pycuda.driver."""
        self._flags, self._is_new = int(flags), True

    def get_flags(self) -> int:
        """Return the flags."""
        return self._flags

    def _create(self, *sampling: Any) -> int:
        if isinstance(self._bound, TextureObject):
            return int(self._bound.ptr)
        kind, size = _CHANNELS[int(self._format)]
        flags, wanted = self._flags, chr(self._declared.kind)
        if self._declared.is_fraction:
            wanted = "f"
        elif wanted != "f":
            flags |= drv.TRSF_READ_AS_INTEGER
        fetched = "f" if size < 4 and not flags & drv.TRSF_READ_AS_INTEGER else kind
        misread = (fetched == "f") != (wanted == "f") or self._channels < self._declared.channels
        if misread or (wanted != "f" and size != self._declared.bytes):
            raise TypeError(
                f"{self._name}: a texel has {self._channels} x {kind}{size}, and the kernel reads "
                f"{self._declared.channels} x {chr(self._declared.kind)}{self._declared.bytes}; "
                "bind another array, or set_format for bound memory"
            )
        memory = self._resource.memory
        if self._resource.kind != _ARRAY:
            memory.format, memory.channels = int(self._format), self._channels
        modes = TextureDesc(tuple(map(int, self._modes)), int(self._filter), flags)
        return super()._create(ctypes.byref(modes), None)


def _enum_value(kind: Any, value: Any, caller: str) -> Any:
    if value not in kind.values:
        names = ", ".join(kind.names)
        raise TypeError(
            f"{caller}: {named(value)} is no pycuda.driver.{kind.__name__}; {names} are accepted"
        )
    return kind.values[value]


def reference_of(module: Any, name: str, kind: str, caller: str) -> Reference:
    """Return a reference of a `bridge.SourceModule` on the current device."""
    found = module._global(name, caller)
    references: References = module._resources.setdefault(cuda_device(), References())
    return references.get(name, found, kind, caller)


_CLASSES = {0x74786574: TextureReference, 0x66727573: SurfaceReference}  # `magic`

# Objects that queued kernels may still read: the device, the events after these kernels, how to
# destroy it, the object, and what it is bound to.  Other threads take entries out as well.
_to_destroy: deque[tuple[int, list[Any], Any, int, Any]] = deque()


def _destroy_unused() -> None:
    """Destroy the objects that no queued kernel reads any more."""
    for _ in range(len(_to_destroy)):
        with suppress(IndexError):  # another thread was here
            device_id, events, destroy, made, bound = entry = _to_destroy.popleft()
            if not all(event.done for event in events):
                _to_destroy.append(entry)
            elif made and not isinstance(bound, TextureObject):  # CuPy destroys its own
                with cupy.cuda.Device(device_id):  # an object belongs to a context
                    destroy(ctypes.c_uint64(made))


class References:
    """The references of one module on one device that the program has asked for.

    A launch of the module's kernels asks `memory` what it must order, and queues the kernel within
    `launching`.
    """

    def __init__(self) -> None:
        self._references: dict[str, Reference] = {}
        self._device_id = cuda_device()
        self._lock = threading.RLock()  # from the write until the kernel is queued
        self._written: Any = None  # an event
        # By the stream's handle: an event after the last kernel.
        self._readers: dict[int, Any] = {}
        self._is_captured = False

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._destroy_later(self._references.values())

    def _destroy_later(self, references: Iterable[Reference]) -> None:
        of_all = self._device_id, list(self._readers.values())
        _to_destroy.extend((*of_all, r._destroyer, r._object, r._in_use) for r in references)
        _destroy_unused()

    def get(self, name: str, found: tuple[int, int], kind: str, caller: str) -> Reference:
        """Return the reference at a variable; raise LogicError if it is none of that kind."""
        pointer, size = found
        if name not in self._references:
            declared = Declaration()
            if size == ctypes.sizeof(declared):
                drv.memcpy_dtoh(declared, pointer)
            if declared.magic not in _CLASSES:
                raise cuda_refusal(
                    caller, f"the variable {name!r} is no texture or surface reference"
                )
            self._references[name] = _CLASSES[declared.magic](name, pointer, declared)
        reference = self._references[name]
        if reference._what != kind:
            raise cuda_refusal(caller, f"{reference._name} is no {kind} reference")
        return reference

    def memory(self) -> tuple[bool, bool]:
        """Tell whether references are bound to memory of PyCUDA, and to CuPy's."""
        bound = [r._bound for r in self._references.values() if r._bound is not None]
        of_cupy = {isinstance(one, _OF_CUPY) for one in bound}
        return False in of_cupy, True in of_cupy

    @contextmanager
    def launching(self, stream: int, needed: Sequence[Reference]) -> Iterator[tuple[Any, ...]]:
        """Launch a kernel in the block, on this stream, then record the events that are given.

        It reads what is bound now.
        """
        for reference in needed:
            if reference not in self._references.values():
                raise ValueError(f"texrefs: {reference._name} is of another module or device")
            if reference._resource is None:
                raise drv.LogicError(f"{reference._name} is not bound; call its set_array(...)")
        with self._lock:
            new = [r for r in self._references.values() if r._is_new and r._resource is not None]
            captures = is_capturing(stream)
            if new and (captures or self._is_captured):
                raise ValueError(
                    f"{new[0]._name} is changed, but a kernel of its module is being captured into "
                    "a graph, or was: from then on the module's textures stay; bind and launch "
                    "once before the capture, and use a second module for other textures"
                )
            if new:
                self._write_objects(new, stream)
            elif self._written is not None and not captures:
                runtime.streamWaitEvent(stream, self._written.ptr)
            self._is_captured = self._is_captured or captures
            if captures:
                yield ()
                return
            if stream in self._readers:  # its handle may have meant another stream
                runtime.streamWaitEvent(stream, self._readers[stream].ptr)
            else:
                self._readers[stream] = cupy.cuda.Event(disable_timing=True)
            yield (self._readers[stream],)

    def _write_objects(self, new: list[Reference], stream: int) -> None:
        """Write new objects, after the kernels that may read the old ones."""
        made: list[tuple[Reference, int, Any]] = []
        try:
            for r in new:
                r._is_new, bound = False, r._bound  # it may be set again from here on
                made.append((r, r._create(), bound))
        except BaseException:
            for r in new:
                r._is_new = True
            device_id = self._device_id
            _to_destroy.extend((device_id, [], r._destroyer, x, bound) for r, x, bound in made)
            raise
        for event in self._readers.values():
            runtime.streamWaitEvent(stream, event.ptr)
        for r, new_object, _ in made:
            for place, word in (0, new_object & 0xFFFFFFFF), (4, new_object >> 32):
                status = libcuda.cuMemsetD32Async(
                    ctypes.c_uint64(r._pointer + place),
                    ctypes.c_uint(word),
                    ctypes.c_size_t(1),
                    ctypes.c_void_p(stream),
                )
                driver.check_status(status)
        self._destroy_later(new)
        self._written, self._readers = cupy.cuda.Event(disable_timing=True), {}
        runtime.eventRecord(self._written.ptr, stream)
        for r, new_object, bound in made:
            r._object, r._in_use = new_object, bound

"""SourceModule: pycuda.compiler's, compiled by NVRTC, for arrays of both libraries."""

from __future__ import annotations

import ctypes
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import pycuda.compiler
import pycuda.driver as drv

from . import context, nvrtc
from .function import Function
from .launching import no_texture_references
from .parameters import libcuda
from .signature import read_parameters


class Request(NamedTuple):
    """What to compile: the arguments of ``pycuda.compiler.compile``, in their order."""

    source: str
    nvcc: str
    options: list[str]
    keep: bool
    no_extern_c: bool
    arch: str | None
    code: str | None
    cache_dir: Any
    include_dirs: Sequence[str] | None


class Global(tuple[int, int]):
    """A global of a module: ``(pointer, size in bytes)``, and a device array of bytes.

    ``pycuda.driver.memcpy_htod(pointer, array)`` writes it, and so does CuPy through
    ``bridge.as_cupy(g).view(numpy.float32)``.
    """

    _module: Any  # keeps the memory alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as bytes (CAI, version 3)."""
        pointer, size = self
        return {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class _Module(cupy.cuda.function.Module):  # type: ignore[misc]
    """A loaded module, which a forked child does not unload: CUDA would refuse, and CuPy say so."""

    def __del__(
        self,
        keep_for_ever: Callable[[Any], None] = ctypes.pythonapi.Py_IncRef,
        py_object: Any = ctypes.py_object,
    ) -> None:
        if context.forked:
            keep_for_ever(py_object(self))


class SourceModule:
    """Compile CUDA C and load it: ``pycuda.compiler.SourceModule`` for arrays of both libraries.

    Parameters
    ----------
    source : str
        CUDA C.  Wrapped in ``extern "C" { }`` unless `no_extern_c`.
    nvcc : str
        The compiler's path, for ``backend="nvcc"``.
    options : list of str, optional
        nvcc's options; by default those of ``PYCUDA_DEFAULT_NVCC_FLAGS``.
    keep : bool
        Keep the source and the code in a folder, and print which.
    no_extern_c : bool
        The source is C++; kernels that are to be found by name are ``extern "C"`` in it.
    arch, code : str, optional
        ``"sm_90"``, or ``"compute_90"`` for PTX; by default the current device's.
    cache_dir : str or False, optional
        Where compiled code is kept; CuPy's cache (``CUPY_CACHE_DIR``) if omitted, False: nowhere.
    include_dirs : list of str, optional
        Folders of headers; PyCUDA's own is always one.
    backend : {"nvrtc", "nvcc"}
        NVRTC needs no toolkit and takes a tenth of nvcc's time.

    Raises
    ------
    pycuda.driver.CompileError
        If the source is wrong, with the lines of `source`.
    ValueError
        If an option means nothing to NVRTC.
    ContextError
        If CUDA's current context is not the primary one.

    Examples
    --------
    >>> import cupy, bridge
    >>> module = bridge.SourceModule('''
    ... __global__ void add(float *x, float a) { x[threadIdx.x] += a; }
    ... ''')
    >>> x = cupy.zeros(3, 'f')
    >>> module.get_function("add")(x, 2, block=3)
    >>> x
    array([2., 2., 2.], dtype=float32)

    Notes
    -----
    *Ownership:* functions and globals keep their module alive.
    *Ordering:* none in compiling and loading; a function's call runs as if on CuPy's current
    stream (rule: `bridge.streams`).
    *Cost:* 30 ms for a small kernel that is new, under 1 ms for one in the cache.
    """

    def __init__(
        self,
        source: str,
        nvcc: str = "nvcc",
        options: Sequence[str] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: Any = None,
        include_dirs: Sequence[str] | None = None,
        *,
        backend: str = "nvrtc",
    ) -> None:
        if backend not in ("nvrtc", "nvcc"):
            raise ValueError(
                f"SourceModule: backend is {backend!r}; 'nvrtc' and 'nvcc' are accepted"
            )
        for name, value in (("options", options), ("include_dirs", include_dirs)):
            if isinstance(value, str):
                raise TypeError(f"SourceModule: {name} is the str {value!r}; a list is accepted")
        options = pycuda.compiler.DEFAULT_NVCC_FLAGS if options is None else list(options)
        source = str(source)  # of cgen's objects, for example
        self._backend = backend
        self._request = Request(
            source, nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs
        )
        self._modules: dict[int, Any] = {}  # device id -> the module there
        self._lock = threading.Lock()
        self._module(context.cuda_device())

    def _module(self, device_id: int) -> Any:
        """Return the module on the current device, compiled for it if that is the first time."""
        with self._lock:
            module = self._modules.get(device_id)
            if module is None:
                module = _Module()
                request, default = self._request, nvrtc.architecture(device_id)
                if self._backend == "nvcc":
                    image = pycuda.compiler.compile(*request._replace(arch=request.arch or default))
                else:
                    image = compile(request, default)
                try:
                    module.load(image)
                except cupy.cuda.driver.CUDADriverError as error:
                    raise drv.LogicError(
                        f"SourceModule: the code cannot be loaded on device {device_id}, whose own "
                        f"architecture is {default}: {error}"
                    ) from error
                self._modules[device_id] = module
        return module

    def get_function(self, name: str) -> Function:
        """Return a kernel by its name (of C++ without ``extern "C"``: its mangled name).

        Raises
        ------
        pycuda.driver.LogicError
            If there is none of that name.
        """

        def load(device_id: int) -> int:
            try:
                return int(self._module(device_id).get_function(name).ptr)
            except cupy.cuda.driver.CUDADriverError as error:
                raise drv.LogicError(
                    f"SourceModule: there is no kernel {name!r} in the module ({error}); the names "
                    'of C++ are mangled unless extern "C" stands before the kernel'
                ) from None

        return Function(
            name, load, read_parameters(self._request.source, name, self._request.options)
        )

    def get_global(self, name: str) -> Global:
        """Return a ``__constant__`` or ``__device__`` variable on the current device.

        Returns
        -------
        Global
            ``(pointer, size in bytes)``, and a device array of bytes for `as_cupy`.

        Raises
        ------
        pycuda.driver.LogicError
            If there is none of that name.
        """
        module = self._module(context.cuda_device())
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = libcuda.cuModuleGetGlobal_v2(
            ctypes.byref(pointer), ctypes.byref(size), ctypes.c_void_p(module.ptr), name.encode()
        )
        if status:
            raise drv.LogicError(f"SourceModule: there is no variable {name!r} in the module")
        found = Global((pointer.value, size.value))
        found._module = module
        return found

    def get_texref(self, name: str) -> Any:
        """Raise NotImplementedError: CUDA has no texture references since version 12."""
        raise no_texture_references(name)

    get_surfref = get_texref


def compile(request: Request, default_arch: str) -> bytes:
    """Compile with NVRTC what `pycuda.compiler.compile` compiles with nvcc."""
    source, options, keep, cache_dir = (
        request.source, request.options, request.keep, request.cache_dir
    )  # fmt: skip
    for name, value in (("-arch", request.arch), ("-code", request.code)):
        if value is not None:
            options = [*options, name, value]
    if drv.CUDA_DEBUGGING:
        options, keep, cache_dir = [*options, "-G"], True, False
    source = f'#line 1 "kernel.cu"\n{source}'  # the lines stay the user's
    if not request.no_extern_c:
        source = f'extern "C" {{\n{source}\n}}\n'
    folders = [*(request.include_dirs or []), pycuda.compiler._find_pycuda_include_path()]
    cache = None if keep else nvrtc.cache_folder(cache_dir)
    image, remarks = nvrtc.compile(source, options, folders, cache, default_arch)
    if keep:
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        (folder / "kernel.cubin").write_bytes(image)
        print(f"*** compiler output in {folder}")
    if remarks:
        warnings.warn(f"NVRTC compiled the source, but says:\n{remarks}", stacklevel=4)
    return image

"""SourceModule: pycuda.compiler's, compiled by NVRTC, for arrays of both libraries."""

from __future__ import annotations

import ctypes
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pycuda.compiler
import pycuda.driver as drv
from cupy.cuda import driver
from pytools.prefork import ExecError

from . import context, nvrtc
from ._driver import LoadedModule
from .errors import named
from .function import Function
from .launching import no_texture_references, refusal
from .parameters import libcuda
from .signature import kernel_names


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
    include_dirs: list[str]


class Global(tuple[int, int]):
    """A module's variable: ``(pointer, size in bytes)``, and a device array of bytes.

    Write it with ``pycuda.driver.memcpy_htod(pointer, array)``, or from CuPy through
    ``bridge.as_cupy(g).view(numpy.float32)``.
    """

    _module: LoadedModule  # keeps the memory alive

    def __reduce__(self) -> Any:
        """Raise TypeError: the address is valid in this process only."""
        raise TypeError(
            "SourceModule.get_global: an address in this process cannot be pickled or copied; "
            "pickle the module, and call get_global there"
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as bytes (CAI, version 3)."""
        pointer, size = self
        return {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


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
        Keep the source and the code in a folder, and print its path.
    no_extern_c : bool
        The source is C++, with ``extern "C"`` before each kernel.
    arch, code : str, optional
        ``"sm_90"``, or ``"compute_90"`` for PTX; by default the current device's.
    cache_dir : str or False, optional
        The folder for compiled code; by default CuPy's cache (``CUPY_CACHE_DIR``).  False: none.
    include_dirs : list of str, optional
        Folders of headers, beside PyCUDA's own.
    backend : {"nvrtc", "nvcc"}
        NVRTC needs no toolkit and is faster.

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
    If you name folders of headers (`include_dirs`, ``-I``), the source is compiled each time, so
    that a changed header is always seen.  Other code is cached.
    A module is pickled and copied as its source and options.  The copy is compiled or read from
    the cache at its first use, and its variables have their initial values.
    *Ownership:* functions and globals keep their module alive.
    *Ordering:* kernels run as if on CuPy's current stream (rule: `bridge.streams`).
    *Cost:* tens of milliseconds for a small new kernel, a few for one in the cache.
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
        if isinstance(source, bytes | bytearray | int | float | os.PathLike | None):
            raise TypeError(
                f"SourceModule: source is {named(source)}; CUDA C in a str is accepted; give the "
                "file's text, e.g. path.read_text()"
            )
        if options is None:
            options = pycuda.compiler.DEFAULT_NVCC_FLAGS
        options = _strings(options, "options", "-lineinfo")
        if include_dirs is None:
            include_dirs = []
        include_dirs = _strings(include_dirs, "include_dirs", "include")
        accepted = "a str such as 'sm_90', or None for the current device's,"
        _check("SourceModule: arch", arch, str | None, accepted)
        _check("SourceModule: code", code, str | None, accepted)
        accepted = "a folder's path, None for CuPy's cache or False for none"
        _check("SourceModule: cache_dir", cache_dir or None, str | os.PathLike | None, accepted)
        source = str(source)  # of cgen's objects, for example
        self._request = Request(
            source, nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs
        )
        self._backend = backend
        self._modules: dict[int, LoadedModule] = {}  # device id -> the module there
        self._module(context.cuda_device())

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy everything but what is loaded."""
        return {**vars(self), "_modules": {}}

    def _module(self, device_id: int) -> LoadedModule:
        """Return the module on the current device; compile and load it at first use."""
        if device_id in self._modules:
            return self._modules[device_id]
        arch = nvrtc.architecture(device_id)
        image = self._compile(arch)
        try:
            # Another thread, or a finalizer on this one, may have been faster.
            return self._modules.setdefault(device_id, LoadedModule(image))
        except driver.CUDADriverError as error:
            raise refusal(
                "SourceModule",
                f"the code cannot be loaded on device {device_id}, whose own architecture "
                f"is {arch}: {error}",
            ) from error

    def _compile(self, default_arch: str) -> bytes:
        if self._backend == "nvrtc":
            return compile(self._request, default_arch)
        request = self._request._replace(arch=self._request.arch or default_arch)
        try:
            image: bytes = pycuda.compiler.compile(*request)
        except ExecError as error:
            raise FileNotFoundError(
                f"SourceModule: nvcc is {request.nvcc!r}, which cannot be run ({error}); give the "
                "compiler's path, or leave out backend='nvcc' for NVRTC"
            ) from error
        return image

    def _kernel(self, name: str, device_id: int) -> int:
        """Return the CUfunction of a kernel on the current device."""
        try:
            return int(driver.moduleGetFunction(self._module(device_id).ptr, name))
        except driver.CUDADriverError as error:
            names = ", ".join(kernel_names(self._request.source)) or "none that can be read"
            raise refusal(
                "SourceModule.get_function",
                f"there is no kernel {name!r} in the module ({error}); its source has {names}; the "
                'names of C++ are mangled unless extern "C" stands before the kernel',
            ) from None

    def get_function(self, name: str) -> Function:
        """Return a kernel by its name (of C++ without ``extern "C"``: its mangled name).

        Raises
        ------
        pycuda.driver.LogicError
            If there is none of that name.
        """
        _check("SourceModule.get_function: name", name, str, "the kernel's name, a str,")
        function = Function(self, name)
        _ = function._layout  # now, so that a wrong name raises here
        return function

    def get_global(self, name: str) -> Global:
        """Return a ``__constant__`` or ``__device__`` variable on the current device, as `Global`.

        Raises as `get_function` does.
        """
        _check("SourceModule.get_global: name", name, str, "the variable's name, a str,")
        module = self._module(context.cuda_device())
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = libcuda.cuModuleGetGlobal_v2(
            ctypes.byref(pointer), ctypes.byref(size), ctypes.c_void_p(module.ptr), name.encode()
        )
        if status:
            raise refusal(
                "SourceModule.get_global",
                f'there is no variable {name!r} in the module, or C++ mangled it (no extern "C")',
            )
        found = Global((pointer.value, size.value))
        found._module = module
        return found

    def get_texref(self, name: str) -> Any:
        """Raise NotImplementedError: CUDA 12 has no texture and surface references any more."""
        raise no_texture_references(f"SourceModule: {name!r}")

    get_surfref = get_texref


def _check(what: str, value: Any, kind: Any, accepted: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {named(value)}; {accepted} is accepted")


def _strings(value: Any, name: str, example: str) -> list[str]:
    """Return a list of str and paths as str; raise TypeError for anything else."""
    accepted = f"a list of str, e.g. [{example!r}],"
    _check(f"SourceModule: {name}", value, list | tuple, accepted)
    for index, item in enumerate(value):
        _check(f"SourceModule: {name}[{index}]", item, str | os.PathLike, accepted)
    return [os.fspath(item) for item in value]


def compile(request: Request, default_arch: str) -> bytes:
    """Compile with NVRTC what `pycuda.compiler.compile` compiles with nvcc."""
    options = list(request.options)
    for name, value in (("-arch", request.arch), ("-code", request.code)):
        if value is not None:
            options += [name, value]
    if drv.CUDA_DEBUGGING:
        options.append("-G")
    keep = request.keep or drv.CUDA_DEBUGGING
    source = f'#line 1 "kernel.cu"\n{request.source}'  # the lines stay the user's
    if not request.no_extern_c:
        source = f'extern "C" {{\n{source}\n}}\n'
    cache = None if keep else nvrtc.cache_folder(request.cache_dir)
    image, remarks = nvrtc.compile(source, options, request.include_dirs, cache, default_arch)
    if keep:
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        (folder / "kernel.cubin").write_bytes(image)
        print(f"*** compiler output in {folder}")
    if remarks:
        warnings.warn(f"NVRTC compiled the source, but says:\n{remarks}", stacklevel=5)
    return image

"""SourceModule: compile kernels with NVRTC, and call them with arrays of both libraries."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv
from cupy.cuda import driver
from pytools.prefork import ExecError

from ..compiler.nvrtc import FILE, Compiled, architecture
from ..compiler.program import Request, compile, find_members
from ..compiler.signature import (
    Member,
    Parameter,
    declared_members,
    expression,
    kernel_names,
    read_signature,
    variable_names,
)
from ..errors import named, warn
from ..interop import contexts
from ..interop.driver import libcuda
from ..interop.memory_kinds import Global
from .extensions import LaunchPolicy, LaunchResource
from .function import Function
from .launch_limits import cuda_refusal
from .loaded import LoadedModule


class SourceModule:
    """Compile CUDA C and load it: ``pycuda.compiler.SourceModule`` for arrays of both libraries.

    Parameters
    ----------
    source : str or os.PathLike
        CUDA C, or the path of a file with it, which errors name.  It is wrapped in
        ``extern "C" { }``, unless `no_extern_c` is True.
    nvcc : str
        The compiler's path, for ``backend="nvcc"``; a warning says that NVRTC ignores it.
    options : list of str, optional
        nvcc's options; by default those of ``PYCUDA_DEFAULT_NVCC_FLAGS``.
    keep : bool
        Keep the source and the code in a folder, and print its path.
    no_extern_c : bool
        The source is C++, with ``extern "C"`` before each kernel.
    arch, code : str, optional
        ``"sm_90"``, or ``"compute_90"`` for PTX; by default the current device's.
    cache_dir : str or False, optional
        The folder for compiled code; by default CuPy's cache (``CUPY_CACHE_DIR``).  False means
        no cache.
    include_dirs : list of str, optional
        Folders of headers, in addition to PyCUDA's own.
    backend : {"nvrtc", "nvcc"}
        NVRTC needs no toolkit and is faster.
    name_expressions : list of str, optional
        Kernels to compile whose C++ names are not words of the source: instances of templates,
        e.g. ``"scale<float>"``, and kernels in namespaces, as for `cupy.RawModule`.  They need
        `no_extern_c`.

    Raises
    ------
    pycuda.driver.CompileError
        If the source does not compile.  The message has the line numbers of `source`.
    ValueError
        If NVRTC does not support an option.
    ContextError
        If CUDA's current context is not a primary context.

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
    If you name folders of headers (`include_dirs`, ``-I``), the source is compiled each time,
    because a header may have changed.  Other code is cached.
    A module is pickled and copied as its source and options.  The copy is compiled or read from
    the cache at its first use, and its variables have their initial values.
    *Ownership:* functions and globals keep their module alive.
    *Ordering:* kernels run as if on CuPy's current stream (rule: `bridge.interop.ordering`).
    *Cost:* tens of milliseconds for a small new kernel, and a few for a cached kernel.
    """

    _policy = LaunchPolicy()  # of its kernels; a subclass may have another

    def __init__(
        self,
        source: str | os.PathLike[str],
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
        name_expressions: Sequence[str] = (),
    ) -> None:
        if backend not in ("nvrtc", "nvcc"):
            raise ValueError(
                f"SourceModule: backend is {backend!r}; 'nvrtc' and 'nvcc' are accepted"
            )
        is_path = (
            isinstance(source, str) and "\n" not in source and source.endswith((".cu", ".cuh"))
        )
        if is_path or isinstance(source, bytes | bytearray | int | float | None):
            raise TypeError(
                f"SourceModule: source is {named(source)}; CUDA C in a str is accepted, or a file "
                "as a pathlib.Path"
            )
        self._file = os.fspath(source) if isinstance(source, os.PathLike) else ""
        if self._file:
            source = Path(self._file).read_text(encoding="utf-8")
        flags = pycuda.compiler.DEFAULT_NVCC_FLAGS if options is None else options
        options = _strings(flags, "options", "-lineinfo")
        folders = () if include_dirs is None else include_dirs
        include_dirs = _strings(folders, "include_dirs", "include")
        _check("SourceModule: nvcc", nvcc, str, "the path of nvcc, a str, for backend='nvcc',")
        for name, flag in ("keep", keep), ("no_extern_c", no_extern_c):
            _check(f"SourceModule: {name}", flag, int | None, "True or False")
        accepted = "a str such as 'sm_90', or None for the current device's,"
        _check("SourceModule: arch", arch, str | None, accepted)
        _check("SourceModule: code", code, str | None, accepted)
        accepted = "a folder's path, None for CuPy's cache or False for none"
        _check("SourceModule: cache_dir", cache_dir or None, str | os.PathLike | None, accepted)
        source = str(source)  # may be a cgen object
        self._request = Request(
            source, nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs
        )
        self._backend = backend
        self._names = _strings(name_expressions, "name_expressions", "scale<float>")
        if self._names and (backend == "nvcc" or not no_extern_c):
            raise ValueError(
                f"SourceModule: name_expressions are {self._names}; they are names of C++, for "
                "NVRTC and a source with no_extern_c=True"
            )
        self._loaded: dict[int, tuple[LoadedModule, dict[str, str]]] = {}
        self._resources: dict[int, LaunchResource] = {}  # on each device
        self._load()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy everything except the loaded code."""
        return {**vars(self), "_loaded": {}, "_resources": {}}

    def _load(self) -> tuple[LoadedModule, dict[str, str]]:
        """Return the module on the current device, and mangled names; compile at the first use."""
        device_id = contexts.cuda_device()
        if device_id in self._loaded:
            return self._loaded[device_id]
        arch = _architecture(device_id)
        compiled = self._compile(arch, [*kernel_names(self._request.source), *self._names])
        if missing := [name for name in self._names if name not in compiled.mangled]:
            raise cuda_refusal(
                "SourceModule",
                f"name_expressions has {missing[0]!r}, but the source has no such kernel",
                ValueError,
            )
        try:
            module = LoadedModule(compiled.code)
        except driver.CUDADriverError as error:
            raise cuda_refusal(
                "SourceModule",
                f"the code cannot be loaded on device {device_id}, whose own architecture "
                f"is {arch}: {error}",
            ) from error
        # Another thread, or a finalizer on this one, may have loaded it first.
        return self._loaded.setdefault(device_id, (module, compiled.mangled))

    def _compile(self, default_arch: str, kernels: Sequence[str]) -> Compiled:
        if self._backend == "nvrtc":
            try:
                return compile(self._request, default_arch, kernels)
            except drv.CompileError as error:
                if self._file:
                    error.stderr = error.stderr.replace(f"{FILE}(", f"{self._file}(")
                raise
        request = self._request._replace(arch=self._request.arch or default_arch)
        try:
            return Compiled(pycuda.compiler.compile(*request), {})
        except ExecError as error:
            raise FileNotFoundError(
                f"SourceModule: nvcc is {request.nvcc!r}, which cannot be run ({error}); give the "
                "compiler's path, or leave out backend='nvcc' for NVRTC"
            ) from error

    def _handle(self, name: str) -> int:
        """Return a kernel's CUfunction on the current device."""
        source, (module, mangled) = self._request.source, self._load()
        try:
            return int(driver.moduleGetFunction(module.ptr, mangled.get(name, name)))
        except driver.CUDADriverError as error:
            names, known = kernel_names(source), kernel_names(source, templates=True)
            listed = ", ".join(f"{n}{' (a template)' * (n not in names)}" for n in known)
            found = f"its source has {listed or 'no function with __global__'}"
            if name in names:
                found = (
                    f"its source has several kernels {name!r}, or has it in a namespace: rename one"
                )
            raise cuda_refusal(
                "SourceModule.get_function",
                f"there is no kernel {name!r} in the module ({error}); {found}; list instances of "
                "templates and kernels in namespaces when you compile: SourceModule(..., "
                'no_extern_c=True, name_expressions=["scale<float>"])',
            ) from None

    def _signature(self, name: str) -> tuple[Parameter, ...] | None:
        """Return a kernel's parameters, as the compiler reports them, if it does."""
        _, mangled = self._load()
        signature = name if name.startswith("_Z") else mangled.get(expression(name))
        found = read_signature(signature, self._request.source, name) if signature else None
        if found is None and self._backend == "nvrtc":
            warn(
                f"SourceModule: the types of the parameters of {name!r} are not known, and its "
                "arguments are checked by size alone; from -std=c++14 on, NVRTC reports the types "
                "of kernels outside of namespaces, and of name_expressions"
            )
        return found

    def _members(self, struct: str, names: Sequence[str]) -> tuple[int, dict[str, Member]]:
        """Return the size and members of a struct, as `find_members` does."""
        return find_members(self._request, _architecture(contexts.cuda_device()), struct, names)

    @property
    def module(self) -> SourceModule:
        """The module itself, which has the methods of a ``pycuda.driver.Module``."""
        return self

    def get_function(self, name: str) -> Function:
        """Return a kernel by its name, or by one of `name_expressions`.

        Raises
        ------
        pycuda.driver.LogicError
            If the module has no kernel of that name.
        """
        _check("SourceModule.get_function: name", name, str, "the kernel's name, a str,")
        function = Function(self, str(name))  # a numpy.str_ is a str, too
        function._parameters()  # now, so that a wrong name raises here
        return function

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a struct of the source, for arrays and arguments of that struct.

        Its fields have the names, types and places of the compiler.  Pointers are addresses, of
        `numpy.uintp`.

        Raises
        ------
        ValueError
            If the source has no struct of that name, or if it has members that are no numbers,
            vectors, enums or pointers to data.

        Examples
        --------
        >>> import bridge
        >>> module = bridge.SourceModule("struct P { char kind; double x; };")
        >>> module.dtype("P").fields["x"]
        (dtype('float64'), 8)
        """
        names = declared_members(self._request.source, name.removeprefix("struct ")) or []
        size, found = self._members(name, names) if names else (0, {})
        plain = {
            one: member
            for one, member in found.items()
            if member.dtype is not None and member.dtype.itemsize == member.size
            if member.dtype.type is not np.void or member.dtype.fields
        }
        if not names or [*plain] != names:
            others = ", ".join(one for one in names if one not in plain)
            raise ValueError(
                f"SourceModule.dtype: the source has no struct {name!r} of members that are "
                f"numbers, vectors, enums or pointers{f' (others: {others})' if others else ''}; "
                "describe it yourself: numpy.dtype([('n', 'i4'), ('x', 'f4', 3)], align=True)"
            )
        offsets, _, dtypes = zip(*plain.values(), strict=True)
        return np.dtype({"names": names, "formats": dtypes, "offsets": offsets, "itemsize": size})

    def get_global(self, name: str) -> Global:
        """Return a ``__constant__`` or ``__device__`` variable on the current device, as `Global`.

        Raises as `get_function` does.
        """
        return self._global(name, "SourceModule.get_global")

    def _global(self, name: str, caller: str) -> Global:
        _check(f"{caller}: name", name, str, "the variable's name, a str,")
        module, _ = self._load()
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = libcuda.cuModuleGetGlobal_v2(
            ctypes.byref(pointer), ctypes.byref(size), ctypes.c_void_p(module.ptr), name.encode()
        )
        if status:
            known = variable_names(self._request.source, templates=("texture", "surface"))
            raise cuda_refusal(
                caller,
                f"there is no variable {name!r} in the module; its source has "
                f"{', '.join(known) or 'none that can be read'}; "
                "C++ mangles the names of variables in namespaces",
            )
        found = Global((pointer.value, size.value))
        found._module = module  # keeps the memory alive
        return found

    def get_texref(self, name: str) -> Any:
        """Return a texture reference of the source, with the methods of PyCUDA's.

        Its class is `bridge.legacy.textures.TextureReference`.  Raises as `get_function` does.
        """
        from ..legacy.textures import reference_of  # few programs have textures

        return reference_of(self, name, "texture", "SourceModule.get_texref")

    def get_surfref(self, name: str) -> Any:
        """Return a surface reference of the source, which has PyCUDA's ``set_array``."""
        from ..legacy.textures import reference_of

        return reference_of(self, name, "surface", "SourceModule.get_surfref")


def _architecture(device_id: int) -> str:
    return architecture(int(cupy.cuda.Device(device_id).compute_capability))


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

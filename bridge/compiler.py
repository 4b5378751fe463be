"""SourceModule: pycuda.compiler's, compiled by NVRTC, for arrays of both libraries."""

from __future__ import annotations

import ctypes
import os
import pickle
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv
from pytools.prefork import ExecError

from . import context, nvrtc
from .function import Function
from .launching import no_texture_references
from .signature import kernel_names, read_parameters
from .streams import is_capturing
from .words import named

_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND

Values = tuple[tuple[str, bytes], ...]  # names of variables and what they hold, sorted


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

    def __reduce__(self) -> Any:
        """Raise TypeError: the address is this process's."""
        raise TypeError(
            "SourceModule.get_global: what it returns is an address in this process, and cannot be "
            "pickled or copied; pickle the module, and call get_global there"
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as bytes (CAI, version 3)."""
        pointer, size = self
        return {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class _Module(cupy.cuda.function.Module):  # type: ignore[misc]
    """A loaded module.

    Not unloaded where CUDA would refuse, and CuPy say so: in a forked child, after a failure.
    """

    def __del__(self) -> None:
        if context.forked or context.failure():
            context.keep_for_ever(self)


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
        NVRTC needs no toolkit and takes a sixth of nvcc's time.

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
    Pickled, a module is its source, its options, and what the variables hold that `get_global` was
    asked for: to read them, the host waits for the device.  An address in one is of no use
    elsewhere.  Where a module arrives it is compiled when it is first used; what arrives as often
    is one module, until `get_global` is called on that.
    *Ownership:* functions and globals keep their module alive.
    *Ordering:* none in compiling and loading; a function's call runs as if on CuPy's current
    stream (rule: `bridge.streams`).
    *Cost:* 40 ms for a small kernel that is new, 1 to 2 ms for one in the cache.
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
        if source is None or isinstance(source, bytes | bytearray | int | float | os.PathLike):
            hint = "; give the file's text, e.g. path.read_text()"
            raise TypeError(
                f"SourceModule: source is {named(source)}; CUDA C in a str is accepted"
                f"{hint if isinstance(source, os.PathLike) else ''}"
            )
        options = _list_of(options, "options", "-lineinfo", str)
        include_dirs = _list_of(include_dirs, "include_dirs", "include", (str, os.PathLike))
        for name, value, example in (("arch", arch, "sm_90"), ("code", code, "sm_90")):
            if value is not None and not isinstance(value, str):
                raise TypeError(
                    f"SourceModule: {name} is {named(value)}; a str such as {example!r}, or None "
                    "for the current device's, is accepted"
                )
        if cache_dir and (cache_dir is True or not isinstance(cache_dir, str | os.PathLike)):
            raise TypeError(
                f"SourceModule: cache_dir is {named(cache_dir)}; a folder's path, None for CuPy's "
                "cache or False for none is accepted"
            )
        options = pycuda.compiler.DEFAULT_NVCC_FLAGS if options is None else options
        source = str(source)  # of cgen's objects, for example
        request = Request(
            source, nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs
        )
        self._set_up(request, backend, uuid.uuid4().hex, ())
        self._module(context.cuda_device())

    def _set_up(self, request: Request, backend: str, identity: str, values: Values) -> None:
        self._request = request
        self._backend = backend
        self._identity = identity  # the same in each process
        self._values = values  # what variables hold that has come along
        self._globals: dict[str, dict[int, Global]] = {}  # name -> device id -> variable
        self._modules: dict[int, Any] = {}  # device id -> the module there
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        """Pickle what is to be compiled, and what its variables hold.

        Raises
        ------
        ValueError
            If a variable differs between devices, or is to be read while CuPy's current stream is
            being captured.
        """
        request = pickle.dumps((self._request, self._backend))
        return _restored_module, (self._identity, request, self._read_variables())

    def __copy__(self) -> SourceModule:
        """Return another module, whose variables hold the same."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        values = self._read_variables()
        other._set_up(self._request, self._backend, uuid.uuid4().hex, values)
        return other

    def __deepcopy__(self, memo: Any) -> SourceModule:
        """Return another module, whose variables hold the same."""
        return self.__copy__()

    def _read_variables(self) -> Values:
        """Return what the variables hold that `get_global` was asked for, here or elsewhere."""
        values = dict(self._values)
        for name, places in self._globals.copy().items():
            found = {device: _read(name, place, device) for device, place in places.copy().items()}
            if len({*found.values()}) > 1:
                raise ValueError(
                    f"SourceModule: the variable {name!r} differs between devices "
                    f"{', '.join(map(str, sorted(found)))}, and the module cannot be pickled or "
                    "copied; write the same to all, or make a module for each"
                )
            values[name] = found.popitem()[1]
        return tuple(sorted(values.items()))

    def _write_variables(self, module: Any, device_id: int) -> None:
        """Write into a loaded module's variables what has come along."""
        stream = cupy.cuda.Stream(non_blocking=True)  # the default one may be held by a capture
        for name, value in self._values:
            pointer, size = self._variable(module, name, device_id)
            if size != len(value):
                raise ValueError(
                    f"SourceModule: the variable {name!r} has {size} bytes here, and {len(value)} "
                    "where the module was pickled; the same headers are to be in both places"
                )
            host = np.frombuffer(value, np.uint8)
            kind = cupy.cuda.runtime.memcpyHostToDevice
            cupy.cuda.runtime.memcpyAsync(pointer, host.ctypes.data, size, kind, stream.ptr)
        stream.synchronize()

    def _module(self, device_id: int) -> Any:
        """Return the module on the current device, compiled for it if that is the first time."""
        with self._lock:
            module = self._modules.get(device_id)
            if module is None:
                module = _Module()
                request, default = self._request, nvrtc.architecture(device_id)
                if self._backend == "nvcc":
                    request = request._replace(arch=request.arch or default)
                    try:
                        image = pycuda.compiler.compile(*request)
                    except ExecError as error:
                        raise FileNotFoundError(
                            f"SourceModule: nvcc is {request.nvcc!r}, which cannot be run "
                            f"({error}); give the compiler's path, or leave out backend='nvcc' for "
                            "NVRTC"
                        ) from error
                else:
                    image = compile(request, default)
                try:
                    module.load(image)
                except cupy.cuda.driver.CUDADriverError as error:
                    raise _refused(
                        "SourceModule",
                        f"the code cannot be loaded on device {device_id}, whose own architecture "
                        f"is {default}: {error}",
                    ) from error
                if self._values:
                    self._write_variables(module, device_id)
                self._modules[device_id] = module
        return module

    def get_function(self, name: str) -> Function:
        """Return a kernel by its name (of C++ without ``extern "C"``: its mangled name).

        Raises
        ------
        TypeError
            If `name` is no str.
        pycuda.driver.LogicError
            If there is none of that name.
        """
        _check_name(name, "get_function", "kernel")

        def load(device_id: int) -> int:
            try:
                return int(self._module(device_id).get_function(name).ptr)
            except cupy.cuda.driver.CUDADriverError as error:
                if error.status != _NOT_FOUND:
                    raise _refused("SourceModule.get_function", f"{name!r}: {error}") from None
                names = ", ".join(kernel_names(self._request.source))
                known = f"its source has {names}; " if names else ""
                raise _refused(
                    "SourceModule.get_function",
                    f"there is no kernel {name!r} in the module ({error}); {known}the names of C++ "
                    'are mangled unless extern "C" stands before the kernel',
                ) from None

        parameters = read_parameters(self._request.source, name, self._request.options)
        return Function(name, load, parameters, self)

    def get_global(self, name: str) -> Global:
        """Return a ``__constant__`` or ``__device__`` variable on the current device.

        Returns
        -------
        Global
            ``(pointer, size in bytes)``, and a device array of bytes for `as_cupy`.

        Raises
        ------
        TypeError
            If `name` is no str.
        pycuda.driver.LogicError
            If there is none of that name.
        """
        _check_name(name, "get_global", "variable")
        device_id = context.cuda_device()
        module = self._module(device_id)
        _forget(self)  # from here on its variables may change
        return self._variable(module, name, device_id)

    def _variable(self, module: Any, name: str, device_id: int) -> Global:
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = context.libcuda.cuModuleGetGlobal_v2(
            ctypes.byref(pointer), ctypes.byref(size), ctypes.c_void_p(module.ptr), name.encode()
        )
        if status:
            raise _refused(
                "SourceModule.get_global",
                f"there is no variable {name!r} in the module; a __constant__ or __device__ "
                "variable of the source is accepted (the names of C++ are mangled unless extern "
                '"C" stands before it)',
            )
        found = Global((pointer.value, size.value))
        found._module = module
        self._globals.setdefault(name, {})[device_id] = found
        return found

    def get_texref(self, name: str) -> Any:
        """Raise NotImplementedError: CUDA has no texture references since version 12."""
        raise no_texture_references(f"SourceModule.get_texref({name!r})")

    def get_surfref(self, name: str) -> Any:
        """Raise NotImplementedError, as `get_texref`."""
        raise no_texture_references(f"SourceModule.get_surfref({name!r})")


# What has arrived, by its identity and what its variables hold.  The most recent are kept, so that
# not every task of Dask's loads its own.
_arrived: weakref.WeakValueDictionary[Any, SourceModule] = weakref.WeakValueDictionary()
_recent: dict[str, SourceModule] = {}  # by the identity alone
_MOST = 64
_arrival = threading.RLock()


def _restored_module(identity: str, request: bytes, values: Values) -> SourceModule:
    """Return the module that was pickled: one, however often it arrives."""
    with _arrival:
        module = _arrived.get((identity, values))
        if module is None:
            module = SourceModule.__new__(SourceModule)
            what, backend = pickle.loads(request)
            module._set_up(what, backend, identity, values)
            _arrived[identity, values] = module
        _recent.pop(identity, None)
        _recent[identity] = module
        if len(_recent) > _MOST:
            del _recent[next(iter(_recent))]
    return module


def _forget(module: SourceModule) -> None:
    """Have what arrives from now on become another module."""
    with _arrival:
        if _recent.get(module._identity) is module:
            del _recent[module._identity]
        key = module._identity, module._values
        if _arrived.get(key) is module:
            del _arrived[key]


def _read(name: str, variable: Global, device_id: int) -> bytes:
    """Return what a variable holds."""
    pointer, size = variable
    data = np.empty(size, np.uint8)
    with context.primary_context(device_id):
        if is_capturing(cupy.cuda.get_current_stream().ptr):
            raise ValueError(
                f"SourceModule: the variable {name!r} cannot be read while CuPy's current stream "
                "is being captured into a graph; pickle or copy the module before or after"
            )
        drv.Context.synchronize()  # it may have been written on any stream
        drv.memcpy_dtoh(data, pointer)
    return data.tobytes()


def _list_of(value: Any, name: str, example: str, kinds: Any) -> list[Any] | None:
    """Return an argument that is a list of the kinds, or None; or raise TypeError."""
    if value is None:
        return None
    hint = f"; a list is accepted, e.g. [{example!r}]"
    if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
        got = f"the str {value!r}" if isinstance(value, str) else named(value)
        raise TypeError(f"SourceModule: {name} is {got}{hint}")
    items = list(value)
    for index, item in enumerate(items):
        if not isinstance(item, kinds):
            raise TypeError(f"SourceModule: {name}[{index}] is {named(item)}, no str{hint}")
    return items


def _refused(caller: str, reason: str) -> Any:
    """Return the error for what CUDA has refused: that a kernel has failed before, or else why."""
    failure = context.failure()
    kind = drv.LaunchError if failure else drv.LogicError
    return kind(f"{caller}: {failure or reason}")


def _check_name(name: Any, caller: str, what: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"SourceModule.{caller}: name is {named(name)}; the {what}'s name, a str, is accepted"
        )


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

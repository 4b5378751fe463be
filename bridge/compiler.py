"""SourceModule: pycuda.compiler's, compiled by NVRTC, for arrays of both libraries."""

from __future__ import annotations

import copyreg
import ctypes
import os
import pickle
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv
from cupy.cuda import driver
from pytools.prefork import ExecError

from . import context, nvrtc
from .function import Function
from .launching import no_texture_references
from .signature import kernel_names, read_parameters
from .streams import CAPTURE_ERRORS, is_capturing
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


class _Module:
    """A module that is loaded in the current context, and unloaded there, on whatever thread.

    Not in a forked child, nor at the end: CUDA would refuse, or takes it along.
    """

    def __init__(self, image: bytes) -> None:
        self.ptr: int = driver.moduleLoadData(image)
        self.context = driver.ctxGetCurrent()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or context.forked or "context" not in vars(self):
            return
        if context.is_collecting():
            # Other finalizers may use it yet, or save it, and then this one does not run again.
            self.heir = heir = object.__new__(_Module)
            heir.ptr, heir.context = self.ptr, self.context
            context.after_collecting(heir)
            return
        # Not by PyCUDA's stack: it aborts at exit where a daemon thread stopped in between.
        current = driver.ctxGetCurrent()
        with suppress(driver.CUDADriverError):  # a kernel has failed
            driver.ctxSetCurrent(self.context)
            driver.moduleUnload(self.ptr)
        driver.ctxSetCurrent(current)

    def variable(self, name: str) -> tuple[int, int]:
        """Return the pointer of a variable, and its size in bytes."""
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = context.libcuda.cuModuleGetGlobal_v2(
            ctypes.byref(pointer), ctypes.byref(size), ctypes.c_void_p(self.ptr), name.encode()
        )
        if status:
            raise _refused(
                "SourceModule.get_global",
                f"there is no variable {name!r} in the module; a __constant__ or __device__ "
                "variable of the source is accepted (the names of C++ are mangled unless extern "
                '"C" stands before it)',
            )
        return pointer.value, size.value


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
    elsewhere.  Where a module arrives it is compiled when it is first used, and once, however often
    it arrives.  One without variables is loaded once, too; with variables, each that arrives has
    its own, and CUDA waits for the device to load and to unload it.
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
        options = list(pycuda.compiler.DEFAULT_NVCC_FLAGS) if options is None else options
        source = str(source)  # of cgen's objects, for example
        request = Request(
            source, nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs
        )
        self._set_up(request, backend, uuid.uuid4().hex, (), _Code())
        self._module(context.cuda_device())

    def _set_up(
        self, request: Request, backend: str, identity: str, values: Values, code: _Code
    ) -> None:
        self._request = request
        self._backend = backend
        self._identity = identity  # the same in each process
        self._code = code
        self._values = values  # what variables hold that has come along
        self._names = {name for name, _ in values}  # and of those that `get_global` was asked for
        self._modules: dict[int, _Module] = {}  # device id -> the module there

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle, or copy, what is to be compiled, and what its variables hold.

        Raises
        ------
        ValueError
            If a variable differs between devices, or is to be read while a stream is being
            captured.
        """
        reduced = super().__reduce_ex__(2)
        if reduced[0] not in _PYTHONS_OWN:  # a subclass has a `__reduce__`
            return reduced
        state = _without_ours(reduced[2])  # a subclass's, or the user's
        values = self._read_variables()
        request = pickle.dumps((self._request, self._backend))
        return _restored_module, (type(self), self._identity, request, values), state

    def _read_variables(self) -> Values:
        """Return what the variables hold that `get_global` was asked for, here or elsewhere."""
        modules, names = self._modules.copy(), sorted(self._names.copy())
        if not (modules and names):
            return self._values
        found = {device: _read(modules[device], device, names) for device in sorted(modules)}
        values = next(iter(found.values()))
        for index, name in enumerate(names):
            if any(other[index] != values[index] for other in found.values()):
                raise ValueError(
                    f"SourceModule: the variable {name!r} differs between devices "
                    f"{', '.join(map(str, found))}, and the module cannot be pickled or copied; "
                    "write the same to all, or make a module for each"
                )
        return tuple(zip(names, values, strict=True))

    def _write_variables(self, module: _Module) -> None:
        """Write into a loaded module's variables what has come along."""
        stream = cupy.cuda.Stream(non_blocking=True)  # the default one may be held by a capture
        for name, value in self._values:
            pointer, size = module.variable(name)
            if size != len(value):
                raise ValueError(
                    f"SourceModule: the variable {name!r} has {size} bytes here, and {len(value)} "
                    "where the module was pickled; the same headers are to be in both places"
                )
            host = np.frombuffer(value, np.uint8)
            kind = cupy.cuda.runtime.memcpyHostToDevice
            cupy.cuda.runtime.memcpyAsync(pointer, host.ctypes.data, size, kind, stream.ptr)
        stream.synchronize()

    def _module(self, device_id: int) -> _Module:
        """Return the module on the current device, loaded there if that is the first time."""
        module = self._modules.get(device_id)
        if module is not None:
            return module
        with self._code.lock:
            if device_id not in self._code.images:
                image = self._compile(nvrtc.architecture(device_id))
                self._code.images[device_id] = image, nvrtc.may_have_variables(image)
            image, has_state = self._code.images[device_id]
            shared = {} if has_state or self._values else self._code.modules
            module = self._modules.get(device_id) or shared.get(device_id)
            if module is not None:  # another thread was first, or a finalizer, or another module
                return self._modules.setdefault(device_id, module)
            try:
                module = _Module(image)
            except driver.CUDADriverError as error:
                raise _refused(
                    "SourceModule",
                    f"the code cannot be loaded on device {device_id}, whose own architecture "
                    f"is {nvrtc.architecture(device_id)}: {error}",
                ) from error
            if self._values:
                self._write_variables(module)
            return self._modules.setdefault(device_id, shared.setdefault(device_id, module))

    def _compile(self, default_arch: str) -> bytes:
        request = self._request
        if self._backend == "nvrtc":
            return compile(request, default_arch)
        try:
            image: bytes = pycuda.compiler.compile(
                *request._replace(arch=request.arch or default_arch)
            )
        except ExecError as error:
            raise FileNotFoundError(
                f"SourceModule: nvcc is {request.nvcc!r}, which cannot be run ({error}); give the "
                "compiler's path, or leave out backend='nvcc' for NVRTC"
            ) from error
        return image

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
                return int(driver.moduleGetFunction(self._module(device_id).ptr, name))
            except driver.CUDADriverError as error:
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
        module = self._module(context.cuda_device())
        found = Global(module.variable(name))
        found._module = module
        self._names.add(name)
        return found

    def get_texref(self, name: str) -> Any:
        """Raise NotImplementedError: CUDA has no texture references since version 12."""
        raise no_texture_references(f"SourceModule.get_texref({name!r})")

    def get_surfref(self, name: str) -> Any:
        """Raise NotImplementedError, as `get_texref`."""
        raise no_texture_references(f"SourceModule.get_surfref({name!r})")


# What makes an object anew, of those whose pickling is Python's.
_PYTHONS_OWN = tuple(
    vars(copyreg)[name] for name in ("__newobj__", "__newobj_ex__", "_reconstructor")
)

_OURS = frozenset(("_backend", "_code", "_identity", "_modules", "_names", "_request", "_values"))


def _without_ours(state: Any) -> Any:
    """Return what Python would pickle, or a subclass, without what is pickled otherwise."""
    if isinstance(state, dict):
        return {name: value for name, value in state.items() if name not in _OURS}
    if isinstance(state, tuple) and len(state) == 2:  # and what is in slots
        return _without_ours(state[0]), state[1]
    return state


class _Code:
    """What has been compiled, for all modules that are from one.

    And loaded, where there are no variables: not every task of Dask's loads its own then.
    """

    def __init__(self) -> None:
        # Device id -> code, and whether it may have variables.
        self.images: dict[int, tuple[bytes, bool]] = {}
        self.modules: dict[int, _Module] = {}  # device id -> module
        self.lock = threading.RLock()  # a finalizer may run under it


_recent: dict[str, _Code] = {}  # of the modules that arrived most recently, by their identity
_MOST = 64
_arrival = threading.RLock()


def _restored_module(
    kind: type[SourceModule], identity: str, request: bytes, values: Values
) -> SourceModule:
    """Return a module as the one that was pickled, whose code is kept for when it arrives again."""
    with _arrival:
        code = _recent.pop(identity, None) or _Code()
        _recent[identity] = code
        if len(_recent) > _MOST:
            del _recent[next(iter(_recent))]
    module: SourceModule = object.__new__(kind)
    what, backend = pickle.loads(request)
    module._set_up(what, backend, identity, values, code)
    return module


def _read(module: _Module, device_id: int, names: Sequence[str]) -> list[bytes]:
    """Return what variables hold, once all that is queued on their device has been done."""
    with context.primary_context(device_id):
        if is_capturing(cupy.cuda.get_current_stream().ptr):
            raise _capturing(names, "CuPy's current stream")
        try:
            cupy.cuda.runtime.deviceSynchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status in CAPTURE_ERRORS:
                raise _capturing(names, "a stream") from error
            raise _refused("SourceModule", str(error)) from error
        values = []
        for name in names:
            pointer, size = module.variable(name)
            data = np.empty(size, np.uint8)
            drv.memcpy_dtoh(data, pointer)
            values.append(data.tobytes())
    return values


def _capturing(names: Sequence[str], what: str) -> ValueError:
    variables = f"variable{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
    return ValueError(
        f"SourceModule: the {variables} cannot be read while {what} is being captured into a "
        "graph; pickle or copy the module before or after"
    )


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
        warnings.warn(f"NVRTC compiled the source, but says:\n{remarks}", stacklevel=5)
    return image

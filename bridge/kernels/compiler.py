"""PyCUDA's own compiler on NVRTC, so that its kernels need neither nvcc nor a toolkit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pycuda.compiler
import pycuda.driver as drv

from .nvrtc import Request, architecture, compile, vendor_folders

_of_nvcc = pycuda.compiler.compile
_of_toolkit = pycuda.compiler.DynamicModule.add_stdlib


def use_nvrtc(enable: bool = True, /) -> None:
    """Have NVRTC compile all that PyCUDA compiles, instead of nvcc.

    That is arithmetic of GPUArrays, ``pycuda.cumath``, ``pycuda.curandom``, ``ElementwiseKernel``,
    ``ReductionKernel``, scans, and ``pycuda.compiler`` itself.  ``use_nvrtc(False)`` is the way
    back.  What is compiled already stays as it is.

    Examples
    --------
    >>> import numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> bridge.use_nvrtc()
    >>> (gpuarray.to_gpu(numpy.arange(3.0)) + 1).get()
    array([1., 2., 3.])

    Notes
    -----
    Options and headers are as in `bridge.SourceModule`, errors too.  ``DynamicSourceModule`` is
    linked with ``libcudadevrt.a`` of a toolkit or of pip's CUDA runtime, where there is one: only
    kernels that launch kernels need it.
    *Ownership:* none. *Ordering:* none. *Cost:* none; NVRTC takes a tenth of nvcc's time.
    """
    pycuda.compiler.compile = _compile if enable else _of_nvcc
    pycuda.compiler.DynamicModule.add_stdlib = _add_stdlib if enable else _of_toolkit


def uses_nvrtc() -> bool:
    """Tell whether PyCUDA's compiler is NVRTC now."""
    return pycuda.compiler.compile is _compile


def _compile(
    source: Any,
    nvcc: str = "nvcc",
    options: Any = None,
    keep: bool = False,
    no_extern_c: bool = False,
    arch: str | None = None,
    code: str | None = None,
    cache_dir: Any = None,
    include_dirs: Any = None,
    target: str = "cubin",
) -> bytes:
    """Compile as ``pycuda.compiler.compile``; a fatbin is the code for the current device."""
    options = list(pycuda.compiler.DEFAULT_NVCC_FLAGS if options is None else options)
    major, minor = drv.Context.get_device().compute_capability()
    default = architecture(10 * major + minor)
    linked: list[str] = []
    if target == "ptx":
        # For the linker, whose libraries are no concern of the compiler's.
        linked = [option for option in options if option == "-rdc=true"]
        options = [option for option in options if option not in linked and option[:2] != "-l"]
        arch, code = (arch or code or default).replace("sm_", "compute_"), None
    request = Request(
        str(source), nvcc, options, keep, no_extern_c, arch, code, cache_dir, include_dirs or []
    )
    return compile(request, default, options=linked).code


def _add_stdlib(module: Any, libname: str) -> Any:
    try:
        return _of_toolkit(module, libname)
    except (OSError, RuntimeError):  # there is no toolkit
        for folder in vendor_folders():
            path = Path(folder).with_name("lib") / f"lib{libname}.a"
            if path.is_file():
                return module.add_file(str(path), drv.jit_input_type.LIBRARY)
        if libname != "cudadevrt":
            raise
        return module  # if the kernel launches kernels, the linker says what is missing

"""use_nvrtc: PyCUDA's own kernels are compiled without nvcc and without a toolkit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pycuda.compiler
import pycuda.driver as drv

from ..compiler.headers import vendor_folders
from ..compiler.nvrtc import architecture
from ..compiler.program import Request, compile
from ..errors import named
from ..interop import patches
from .module import SourceModule

_WHY = "NVRTC compiles, without nvcc and a toolkit"


def use_nvrtc(enable: bool = True, /, *, modules: bool = False) -> None:
    """Make PyCUDA compile all of its code with NVRTC instead of nvcc.

    This includes arithmetic of GPUArrays, ``pycuda.cumath``, ``pycuda.curandom``,
    ``ElementwiseKernel``, ``ReductionKernel``, scans, and ``pycuda.compiler`` itself.  Compiled
    code is not compiled again.

    Parameters
    ----------
    enable : bool
        False returns to nvcc, and to PyCUDA's modules.
    modules : bool
        Also let ``pycuda.compiler.SourceModule`` be `bridge.SourceModule`, for new modules of the
        program and of PyCUDA, whose functions take CuPy arrays then, until ``use_nvrtc(False)``.
        ``gpuarray.take`` needs it on CUDA 12 and later.

    Examples
    --------
    >>> import numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> bridge.use_nvrtc()
    >>> (gpuarray.to_gpu(numpy.arange(3.0)) + 1).get()
    array([1., 2., 3.])

    Notes
    -----
    Options, headers and errors are those of `bridge.SourceModule`.  ``DynamicSourceModule`` is
    linked with ``libcudadevrt.a`` of a toolkit or of pip's CUDA runtime, if there is one.  Only
    kernels that launch kernels need it.
    *Cost:* none; NVRTC takes a tenth of nvcc's time.
    """
    if not isinstance(enable, bool):
        raise TypeError(f"use_nvrtc: enable is {named(enable)}; True or False is accepted")
    if not enable:
        patches.undo("nvrtc")
        return
    patches.apply("nvrtc", _WHY, pycuda.compiler, {"compile": _compile})
    patches.apply("nvrtc", _WHY, pycuda.compiler.DynamicModule, {"add_stdlib": _add_stdlib})
    if modules:
        patches.apply("nvrtc", _WHY, pycuda.compiler, {"SourceModule": SourceModule})


def _compile(source: Any, *given: Any, target: str = "cubin", **named: Any) -> bytes:
    """Compile like ``pycuda.compiler.compile``; a fatbin has code for the current device only."""
    request = Request(str(source), *given, **named)
    options = pycuda.compiler.DEFAULT_NVCC_FLAGS if request.options is None else request.options
    options = list(options)
    major, minor = drv.Context.get_device().compute_capability()
    default = architecture(10 * major + minor)
    linked: list[str] = []
    if target == "ptx":
        # The code is linked later: the compiler needs -rdc=true, but no libraries.
        linked = [option for option in options if option == "-rdc=true"]
        options = [option for option in options if option not in linked and option[:2] != "-l"]
        arch = (request.arch or request.code or default).replace("sm_", "compute_")
        request = request._replace(arch=arch, code=None)
    request = request._replace(options=options, include_dirs=request.include_dirs or [])
    return compile(request, default, options=linked).code


def _add_stdlib(module: Any, libname: str) -> Any:
    try:
        of_toolkit = patches.original(pycuda.compiler.DynamicModule, "add_stdlib")
        return of_toolkit(module, libname)
    except (OSError, RuntimeError):  # there is no toolkit
        for folder in vendor_folders():
            path = Path(folder).with_name("lib") / f"lib{libname}.a"
            if path.is_file():
                return module.add_file(str(path), drv.jit_input_type.LIBRARY)
        if libname != "cudadevrt":
            raise
        return module  # if kernels launch kernels, the linker reports what is missing

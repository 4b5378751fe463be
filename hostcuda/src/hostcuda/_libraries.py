"""Libraries that bring their own GPU code: NumPy answers for some, and the others are refused.

Left alone, some of them would fail with an error about something else, and some silently.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
import mmap
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from . import _build

# CuPy's modules -> what is meant: they cannot be imported, as where the library is not installed.
MISSING = {
    "cupy.cuda.jitify": "Jitify (jitify=True)",
    "cupy_backends.cuda.libs.cutensor": "cuTENSOR",
    "cupy_backends.cuda.libs.cusparselt": "cuSPARSELt",
    "cupy_backends.cuda.libs.nvjitlink": "nvJitLink",
}
# CuPy's modules -> the library, and the file in this folder that answers.
ANSWERED = {
    "cupy_backends.cuda.libs.cublas": ("cuBLAS", "_cublas"),
    "cupy_backends.cuda.libs.curand": ("cuRAND", "_curand"),
    "cupy_backends.cuda.libs.cusolver": ("cuSOLVER", "_cusolver"),
    "cupy_backends.cuda.libs.cusparse": ("cuSPARSE", "_cusparse"),
    "cupyx.cusolver": ("cuSOLVER", "_cupyx_cusolver"),
}
# CuPy's modules -> functions -> what they are of; None: they answer None, and CuPy's own kernels do
# the work, also if a program names CUB, by ``cupy._core.set_routine_accelerators(["cub"])``.
PATCHES: dict[str, dict[str, str | None]] = {
    "cupy.cuda.cub": {
        **dict.fromkeys(("cub_reduction", "cub_scan", "cub_histogram")),
        "device_reduce": "CUB (cupy.cuda.cub)",
        "device_segmented_reduce": "CUB (cupy.cuda.cub)",
        "device_scan": "CUB (cupy.cuda.cub)",
        "device_histogram": "CUB (cupy.cuda.cub)",
    },
    "cupy.fft._callback": {"set_cufft_callbacks": "a callback of cuFFT"},
}
# CuPy's modules -> what linked.cpp replaces there, as the dynamic linker names it.
LINKED = {
    "cupy.cuda.thrust": (
        b"_Z11thrust_sortiPvPmRKSt6vectorIlSaIlEElS_",
        b"_Z14thrust_lexsortiPmPvmmlS0_",
        b"_Z14thrust_argsortiPmPvS0_RKSt6vectorIlSaIlEElS0_",
    ),
    "cupy.random._generator_api": (
        b"_Z21init_curand_generatorilmll",
        b"_Z14random_uniformilllll",
        b"_Z8binomialillllllll",
    ),
}


class Missing(NotImplementedError):  # noqa: N818 (it says what it is)
    """A library that the host cannot run was called."""


class _Function(type):
    """What stands for a function or a class of a library: calling it raises."""

    title: str
    needs: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        cls()

    def __call__(cls, *args: Any, **keywords: Any) -> NoReturn:
        if cls.needs:
            raise Missing(f"hostcuda: {cls.title} needs {cls.needs} here: install it")
        raise Missing(_refusal(cls.title))


def _refusal(title: str) -> str:
    return (
        f"hostcuda: {title} is not supported: it has GPU code of its own; compute this part with "
        "NumPy, or skip the test without a GPU"
    )


def refusing(title: str, needs: str = "") -> _Function:
    """Make a function that refuses to be called."""
    return _Function("refused", (), {"title": title, "needs": needs})


class _Library(ModuleType):
    """Stands for a module of CuPy's."""

    available = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():  # a constant, for a call that follows
            return 0
        needs = "" if importlib.util.find_spec("scipy") else "SciPy"
        return refusing(f"{ANSWERED[self.__name__][0]} ({name})", needs)


class _Finder(MetaPathFinder, Loader):
    """Imports the stand-ins, and CuPy's modules in which functions are replaced."""

    def __init__(self, driver: Any) -> None:
        self.after: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(PATCHES, _patch)
        self.after["cupy._core._scalar"] = functools.partial(_tell_numbers, driver)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name in MISSING:
            raise ImportError(_refusal(MISSING[name]), name=name)
        if name in ANSWERED:
            return ModuleSpec(name, self)
        if name not in self.after and name not in LINKED:
            return None
        spec: Any = PathFinder.find_spec(name, path)
        if spec and name in LINKED:
            check_linked(name, spec.origin)
        elif spec:
            steps = spec.loader.exec_module, self.after[name]
            spec.loader.exec_module = lambda module: [step(module) for step in steps]
        return spec  # type: ignore[no-any-return]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        file = ANSWERED[module.__name__][1]
        module.__file__ = f"{_build.FOLDER}/{file}.py"
        try:
            own = importlib.import_module(f".{file}", __package__)
        except ModuleNotFoundError:  # SciPy: then each call is refused
            return
        module.__dict__.update({k: v for k, v in vars(own).items() if k[:2] != "__"})


def _patch(module: ModuleType) -> None:
    for name, title in PATCHES[module.__name__].items():
        setattr(module, name, refusing(title) if title else lambda *args, **keywords: None)


def _tell_numbers(driver: Any, module: ModuleType) -> None:
    """Tell the driver how CuPy 14 keeps the numbers of a launch: find the parts of one."""
    import numpy as np

    kind, (single, double) = module.CScalar, map(np.dtype, ("float32", "float64"))
    try:
        number = kind(np.float64(1))
    except TypeError:  # CuPy 13
        return
    words = (ctypes.c_size_t * 16).from_address(id(number))
    at = (words[2] - id(number)) // 8
    if kind.__basicsize__ >= 128 and words[1] == id(kind) and at < 16 and id(double) in words:
        parts = id(kind), at, [*words].index(id(double)), id(single), id(double)
        driver.hostcuda_numbers(*map(ctypes.c_size_t, parts))


def _answer_runtime(driver: Any, module: Any) -> None:
    """Answer what ``cuda.core`` asks of the runtime that ``cuda.bindings`` links statically."""
    status = module.cudaError_t
    module.cudaDeviceSynchronize = lambda: (status(driver.cuCtxSynchronize()),)


# CUDA's Python loads a cubin; here, NVRTC's is the PTX.
_PTX_FOR_CUBIN = """extern "C" {
int nvrtcGetPTX(void *, char *);
int nvrtcGetPTXSize(void *, unsigned long *);
int nvrtcGetCUBIN(void *program, char *out) { return nvrtcGetPTX(program, out); }
int nvrtcGetCUBINSize(void *program, unsigned long *out) { return nvrtcGetPTXSize(program, out); }
}"""


def check_linked(name: str, path: str) -> None:
    """Raise ImportError if a module of CuPy's does not have the functions that are replaced."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        for symbol in LINKED[name]:
            if image.find(symbol + b"\0") < 0:
                raise ImportError(
                    f"hostcuda: {name} has no function {symbol.decode()}; this was written for "
                    "CuPy 13.6 and 14"
                )


def replace(driver: Any, compilers: bool, give_blocks: Callable[[ModuleType], None] | None) -> None:
    """Put all in place, before CuPy imports the modules."""
    finder = _Finder(driver)
    finder.after["cuda.bindings.runtime"] = functools.partial(_answer_runtime, driver)
    if give_blocks:
        finder.after["cupy"] = give_blocks
    sys.meta_path.insert(0, finder)
    for name in ("libcufft.so.11", "libcufft.so.12"):  # of CUDA 12 and 13: linked.cpp
        ctypes.CDLL(str(_build.library(name)))
    try:
        from cuda import pathfinder
    except ImportError:  # CuPy 13 does not need it
        return
    load = pathfinder.load_nvidia_dynamic_lib
    files = {module.rpartition(".")[2]: f"{file}.py" for module, (_, file) in ANSWERED.items()}
    files["cufft"] = "linked.cpp"

    def load_or_answer(name: str) -> Any:
        if name == "nvrtc" and compilers:  # of CUDA's Python
            found = load(name)
            over = _build.library("libhostcuda-nvrtc.so", _PTX_FOR_CUBIN, found.abs_path)
            return dataclasses.replace(found, _handle_uint=ctypes.CDLL(str(over))._handle)
        title = MISSING.get(f"cupy_backends.cuda.libs.{name.lower()}")
        if title and name != "nvJitLink":  # with CUDA's Python, the driver takes part: loading.cpp
            raise pathfinder.DynamicLibNotFoundError(_refusal(title))
        if name not in files:
            return load(name)
        return SimpleNamespace(abs_path=f"{_build.FOLDER}/{files[name]}")

    pathfinder.load_nvidia_dynamic_lib = load_or_answer

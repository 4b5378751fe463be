"""Libraries that bring their own GPU code: NumPy answers for some, and the others are refused.

Left alone, some of them would fail with an error about something else, and some silently.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

# CuPy's modules -> what is meant, and how a program reaches it.
MISSING = {
    "cupy.cuda.cufft": "cuFFT (cupy.fft)",
    "cupy.cuda.thrust": "Thrust (cupy.sort, argsort, unique, median)",
    "cupy.random._generator_api": "cuRAND's device code (cupy.random.default_rng)",
    "cupy.cuda.jitify": "Jitify (jitify=True)",
    "cupy_backends.cuda.libs.cutensor": "cuTENSOR",
    "cupy_backends.cuda.libs.cusparselt": "cuSPARSELt",
    "cupyx.cutensor": "cuTENSOR (cupyx.cutensor)",
}
# CuPy's modules -> the library, and the file in this folder that answers.
ANSWERED = {
    "cupy_backends.cuda.libs.cublas": ("cuBLAS", "_cublas"),
    "cupy_backends.cuda.libs.curand": ("cuRAND", "_curand"),
    "cupy_backends.cuda.libs.cusolver": ("cuSOLVER", "_cusolver"),
    "cupy_backends.cuda.libs.cusparse": ("cuSPARSE", "_cusparse"),
    "cupyx.cusolver": ("cuSOLVER", "_cupyx_cusolver"),
}


class Missing(NotImplementedError):  # noqa: N818 (it says what it is)
    """A library that the host cannot run was called."""


class _Function(type):
    """What stands for a function or a class of a library: calling it raises."""

    title: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        cls()

    def __call__(cls, *args: Any, **keywords: Any) -> NoReturn:
        raise Missing(
            f"hostcuda: {cls.title} brings its own GPU code, which the host cannot run; compute "
            "this part with NumPy in tests without a GPU, or leave the test out there"
        )


def refusing(title: str) -> _Function:
    """Make a function that refuses to be called."""
    return _Function("refused", (), {"title": title})


class _Library(ModuleType):
    """Stands for a module of CuPy's."""

    available = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():  # a constant, for a call that follows
            return 0
        if self.__name__ in MISSING:
            return refusing(MISSING[self.__name__])
        without = "" if importlib.util.find_spec("scipy") else " without SciPy"
        return refusing(f"{ANSWERED[self.__name__][0]} ({name}{without})")


class _Finder(MetaPathFinder, Loader):
    """Imports the stand-ins."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MISSING or name in ANSWERED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in ANSWERED:
            return
        try:
            own = importlib.import_module(f".{ANSWERED[module.__name__][1]}", __package__)
        except ModuleNotFoundError:  # SciPy: then each call is refused
            return
        module.__dict__.update({k: v for k, v in vars(own).items() if k[:2] != "__"})


def replace() -> None:
    """Put the stand-ins in place, before CuPy imports the modules."""
    sys.meta_path.insert(0, _Finder())
    try:
        from cuda import pathfinder
    except ImportError:  # CuPy 13 does not need it
        return
    load = pathfinder.load_nvidia_dynamic_lib
    names = {module.rpartition(".")[2] for module in (*MISSING, *ANSWERED)}
    pathfinder.load_nvidia_dynamic_lib = lambda name: None if name.lower() in names else load(name)

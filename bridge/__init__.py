"""PyCUDA and CuPy on one GPU buffer: views both ways, one context, ordered streams.

Importing this package touches no GPU and imports neither library: each public name is imported
when it is first used (PEP 562).  Only ``import bridge.autoinit`` makes a context.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.4.0"

_NAMES = {
    "interop.conversions": ("as_cupy", "as_pycuda"),
    "errors": ("ContextError",),
    "kernels.pycuda_compiler": ("use_nvrtc",),
    "kernels.pycuda_functions": ("launch",),
    "kernels.module": ("SourceModule",),
    "interop.pool": ("pycuda_allocator", "show_memory"),
    "interop.primary": ("primary_context",),
    "report": ("show_config",),
    "interop.stream_functions": ("as_cupy_stream", "ordered", "wait_stream"),
    "interop.tracing": ("trace_order",),
    "interop.wrapping": ("wrap_pycuda",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .errors import ContextError as ContextError
    from .interop.conversions import as_cupy as as_cupy, as_pycuda as as_pycuda
    from .interop.pool import pycuda_allocator as pycuda_allocator, show_memory as show_memory
    from .interop.primary import primary_context as primary_context
    from .interop.stream_functions import (
        as_cupy_stream as as_cupy_stream,
        ordered as ordered,
        wait_stream as wait_stream,
    )
    from .interop.tracing import trace_order as trace_order
    from .interop.wrapping import wrap_pycuda as wrap_pycuda
    from .kernels.module import SourceModule as SourceModule
    from .kernels.pycuda_compiler import use_nvrtc as use_nvrtc
    from .kernels.pycuda_functions import launch as launch
    from .report import show_config as show_config
else:  # type checkers would take any name for one of the package's

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            advice = "; write `import bridge.autoinit`" if name == "autoinit" else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
        if _HOME[name] != "report":  # which reports what is missing
            import_module(".errors", __name__).import_libraries()
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(ipython: Any) -> None:
    """Have a notebook's PyCUDA use the primary context and NVRTC: ``%load_ext bridge``."""
    import_module(".errors", __name__).import_libraries()
    compiler = import_module("pycuda.compiler")
    earlier = compiler.SourceModule
    import_module(".legacy.run", __name__).replace()
    for name, value in list(ipython.user_ns.items()):
        if value is earlier:  # from pycuda.compiler import SourceModule
            ipython.user_ns[name] = compiler.SourceModule

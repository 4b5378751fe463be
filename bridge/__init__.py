"""PyCUDA and CuPy on one GPU buffer: views both ways, one context, ordered streams.

Importing this package touches no GPU and imports neither library: each public name
is resolved when it is first used (PEP 562).  ``import bridge.autoinit`` is the one
import that does something, and says so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .arrays import as_cupy as as_cupy, as_pycuda as as_pycuda
    from .compiler import SourceModule as SourceModule
    from .config import show_config as show_config
    from .context import ContextError as ContextError, primary_context as primary_context
    from .kernels import launch as launch
    from .memory import (
        cupy_allocator as cupy_allocator,
        pycuda_allocator as pycuda_allocator,
        show_memory as show_memory,
    )
    from .streams import (
        as_cupy_stream as as_cupy_stream,
        use_stream as use_stream,
        wait_stream as wait_stream,
    )
    from .wrapping import wrap_pycuda as wrap_pycuda

_HOME = {
    "ContextError": "context",
    "SourceModule": "compiler",
    "as_cupy": "arrays",
    "as_cupy_stream": "streams",
    "as_pycuda": "arrays",
    "cupy_allocator": "memory",
    "launch": "kernels",
    "primary_context": "context",
    "pycuda_allocator": "memory",
    "show_config": "config",
    "show_memory": "memory",
    "use_stream": "streams",
    "wait_stream": "streams",
    "wrap_pycuda": "wrapping",
}

__all__ = list(_HOME)


if not TYPE_CHECKING:  # to which a name that is not above is an error

    def __getattr__(name: str) -> Any:
        try:
            module = _HOME[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        if module != "config":  # which reports what is missing
            import_module(".libraries", __name__)
        value = getattr(import_module(f".{module}", __name__), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""Drop-in for ``pycuda.autoinit``: PyCUDA on the primary context that CuPy uses.

``import bridge.autoinit`` makes the primary context of one device current for PyCUDA on
the importing thread (the main one) and pops it at exit.  Modules imported later that say
``import pycuda.autoinit`` or ``import pycuda.autoprimaryctx`` get this module instead, so
no second context comes into being.  The device is the one CuPy already works on; else the
one that PyCUDA's own rule names (``CUDA_DEVICE``, ``~/.cuda_device``, the first usable).
It raises `ContextError` if ``pycuda.autoinit`` ran before, since its context is a second one; or
on another thread than the main one.

Attributes
----------
context : pycuda.driver.Context
    The primary context.
device : pycuda.driver.Device
    Its device.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from . import libraries  # noqa: F401  (what is missing is said there)

# isort: split
import cupy
import pycuda
import pycuda.driver as drv
from pycuda.tools import make_default_context

from .context import ContextError, autoinit_ran, current_device, id_of, push, start_cuda

__all__ = ["context", "device"]


def _start() -> Any:
    if autoinit_ran():
        raise ContextError(
            "`import pycuda.autoinit` ran before `import bridge.autoinit` and made a second "
            "context beside the primary one that CuPy uses. Replace `import pycuda.autoinit` by "
            "`import bridge.autoinit`, or import bridge.autoinit first: later imports of "
            "pycuda.autoinit then share its context"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ContextError(
            "bridge.autoinit was first imported on another thread than the main one, where its "
            "context would abort the process at exit. Import it on the main thread, and work "
            "under `with bridge.primary_context():` on others"
        )
    if "pycuda.autoprimaryctx" in sys.modules:  # on the right context, which it pops at exit
        current_device()
        return drv.Context.get_current()
    start_cuda()
    if cupy.cuda.driver.ctxGetCurrent():
        started = push(id_of(None))
    else:
        started = make_default_context(lambda device: push(id_of(device)))
    atexit.register(_finish)
    return started


def _finish(started_by: int = os.getpid()) -> None:
    if os.getpid() == started_by and drv.Context.get_current() is context:
        drv.Context.pop()


context = _start()
device = context.get_device()

for _name in ("autoinit", "autoprimaryctx"):
    # Both are needed: `import pycuda.autoinit` reads the first, `pycuda.autoinit` the second.
    sys.modules.setdefault(f"pycuda.{_name}", sys.modules[__name__])
    setattr(pycuda, _name, sys.modules[f"pycuda.{_name}"])

"""Replace ``pycuda.autoinit``: PyCUDA works in the primary context that CuPy uses.

Import this module on the main thread.  It makes a device's primary context current for PyCUDA on
that thread, until the process ends.  Later imports of ``pycuda.autoinit`` or
``pycuda.autoprimaryctx`` return this module and make no second context.

The device is CuPy's current device if CUDA has a current context.  Otherwise, PyCUDA chooses it:
``CUDA_DEVICE``, ``~/.cuda_device``, or the first usable device.

From the import on, a ``GPUArray`` exports its memory in order: its array interface names a stream,
and it has ``__dlpack__``.  So ``cupy.asarray(a)``, ``a + x`` and ``torch.from_dlpack(a)`` wait for
the work queued on PyCUDA's streams.  `restore_gpuarray` ends this.

PyCUDA's functions and operators of arrays take any layout, and CuPy arrays.  Look them up after the
import: ``from pycuda.cumath import exp`` before it gets PyCUDA's own.

The import raises `ContextError` on other threads.  It also raises after ``pycuda.autoinit``, which
has made a second context.

Attributes
----------
context : pycuda.driver.Context
    The primary context.
device : pycuda.driver.Device
    Its device.
"""

from __future__ import annotations

import os
import sys
import threading

from .errors import ContextError, import_libraries

import_libraries()  # raises if one is missing

import cupy
import pycuda
import pycuda.driver as drv
from pycuda.tools import make_default_context

from .interop import patches
from .interop.cuda_status import explain_context, start_cuda
from .interop.exporting import restore_gpuarray
from .interop.scopes import push_primary
from .interop.wrapping import adapt_pycuda

__all__ = ["context", "device", "restore_gpuarray"]

_this = sys.modules[__name__]

if sys.modules.get("pycuda.autoinit", _this).__name__ == "pycuda.autoinit":
    raise ContextError(
        "`import pycuda.autoinit` ran before `import bridge.autoinit` and made a second context "
        "beside the primary one that CuPy uses. Import bridge.autoinit instead of pycuda.autoinit, "
        "or before it: pycuda.autoinit then shares the primary context"
    )
if threading.current_thread() is not threading.main_thread():
    raise ContextError(
        "bridge.autoinit was first imported on another thread than the main one, where its context "
        "would abort the process at exit. Import it on the main thread, and work under "
        "`with bridge.primary_context():` on others"
    )
start_cuda()
# `bridge.interop.scopes` pops it at exit.
try:
    is_current = cupy.cuda.driver.ctxGetCurrent()
    context = push_primary(None) if is_current else make_default_context(push_primary)
except drv.Error as error:
    raise ContextError(
        f"PyCUDA cannot use a device ({error}); CUDA_DEVICE is {os.environ.get('CUDA_DEVICE')!r}, "
        f"and this process sees {drv.Device.count()}, numbered from 0"
    ) from error
device = context.get_device()
adapt_pycuda()
patches.apply(
    "autoinit",
    "on a thread without a context, gpuarray.to_gpu and the like say what to do",
    drv.LogicError,
    {"__str__": explain_context},
)
for _name in ("autoinit", "autoprimaryctx"):
    # Both are needed: `import pycuda.autoinit` reads the first, `pycuda.autoinit` the second.
    _module = sys.modules.get(f"pycuda.{_name}", _this)
    _why = "an import of it shares the primary context"
    patches.apply("autoinit", _why, sys.modules, {f"pycuda.{_name}": _module})
    patches.apply("autoinit", _why, pycuda, {_name: _module})

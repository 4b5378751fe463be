"""A context of PyCUDA's own beside the shared one."""

import contextlib
from collections.abc import Iterator

import pycuda.driver as drv


@contextlib.contextmanager
def second_context() -> Iterator[None]:
    """Let a context of PyCUDA's own be current, as pycuda.autoinit makes one."""
    second = drv.Device(0).make_context()
    try:
        yield
    finally:
        second.pop()
        second.detach()

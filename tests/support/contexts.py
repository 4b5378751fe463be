"""Contexts of a test: one of PyCUDA's own beside the shared one, and an interrupt."""

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

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


@contextlib.contextmanager
def interrupted_in(function: str) -> Iterator[None]:
    """Raise KeyboardInterrupt where a function of this name begins, as a signal's handler may."""

    def raise_there(frame: FrameType, *_: object) -> None:
        if frame.f_code.co_name == function:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(raise_there)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        sys.setprofile(None)
    raise AssertionError(f"{function} was not called")

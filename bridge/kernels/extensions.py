"""What a tool on top of `bridge` may add to the launches of a module's kernels (`bridge.hooks`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class LaunchPolicy(NamedTuple):
    """How the kernels of a module are launched: the `_policy` of a subclass of `SourceModule`.

    Attributes
    ----------
    follows_pycuda : bool
        Launches are PyCUDA's own, on its default stream unless one is named, so that they overlap
        as in the program's past.  This ends while CuPy views PyCUDA's memory, or PyCUDA CuPy's, and
        for a launch that is given another library's array.
    mismatch : callable, optional
        Receives the error for one of PyCUDA's own arrays that the kernel would misread, and returns
        for the launch to go on.  By default the error is raised.
    """

    follows_pycuda: bool = False
    mismatch: Callable[[Exception], None] | None = None


class LaunchReference:
    """What a launch may need beside its arguments: PyCUDA's ``texrefs``."""


class LaunchResource(Protocol):
    """What the kernels of a module read beside their arguments, on one device."""

    def memory(self) -> tuple[bool, bool]:
        """Tell whether memory of PyCUDA's is read, and whether other libraries' is."""

    def launching(self, stream: int, needed: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context manager; a kernel is launched on the stream in its block.

        It gives a tuple of events, which are recorded after the kernel.
        """

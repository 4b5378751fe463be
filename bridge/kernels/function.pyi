"""Types of the functions (``function.pyx``)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .graph_nodes import GraphNode
from .loaded import Kernel
from .packing import Parameters

class Function(Kernel):
    def __init__(self, module: Any, name: str, types: list[Any] | None = None) -> None: ...
    def __call__(self, *args: Any, block: Any = None, **launch: Any) -> float | None: ...
    def capture(
        self,
        *args: Any,
        block: Any = None,
        grid: Any = (1, 1),
        shared: int = 0,
        stream: Any = None,
        strided: bool = False,
        cooperative: bool = False,
        cluster: Any = None,
    ) -> GraphNode: ...
    def prepare(self, arg_types: Iterable[Any], texrefs: Sequence[Any] = ()) -> Function: ...
    def param_set_texref(self, texref: Any) -> None: ...
    def prepared_call(
        self, grid: Any, block: Any, *args: Any, shared_size: int = 0, strided: bool = False
    ) -> None: ...
    def prepared_async_call(
        self,
        grid: Any,
        block: Any,
        stream: Any,
        *args: Any,
        shared_size: int = 0,
        strided: bool = False,
    ) -> None: ...
    def prepared_timed_call(
        self, grid: Any, block: Any, *args: Any, shared_size: int = 0, strided: bool = False
    ) -> Callable[[], float]: ...
    def _parameters(self) -> Parameters: ...

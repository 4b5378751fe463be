"""Types of the compiled launches (``launcher.pyx``)."""

from collections.abc import Callable, Sequence
from typing import Any

from .signature import Parameter

def parameter_slots(function: int) -> list[tuple[int, int]]: ...

class Table:
    name: str
    parameters: tuple[Parameter, ...]
    def __init__(self, name: str, parameters: Sequence[Parameter], loose: bool = False) -> None: ...

class Launcher:
    name: str
    _table: Table | None
    _prepared: Table | None
    overlaps: bool
    lenient: bool
    def __call__(self, *args: Any, block: Any = None, **launch: Any) -> float | None: ...
    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None: ...
    def prepared_async_call(
        self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0
    ) -> None: ...
    def prepared_timed_call(
        self, grid: Any, block: Any, *args: Any, shared_size: int = 0
    ) -> Callable[[], float]: ...
    def _handle(self, device_id: int) -> int: ...

class PycudaLauncher(Launcher):
    def __init__(self, function: Any, stream: Any, table: Table, is_named: bool) -> None: ...

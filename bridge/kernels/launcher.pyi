"""Types of the compiled launches (``launcher.pyx``)."""

from collections.abc import Sequence
from typing import Any

from .signature import Parameter

class Table:
    name: str
    parameters: tuple[Parameter, ...]
    def __init__(self, name: str, parameters: Sequence[Parameter], loose: bool = False) -> None: ...

class Launcher:
    name: str
    table: Table | None
    def __call__(self, *args: Any, block: Any = None, **launch: Any) -> float | None: ...
    def handle(self, device_id: int) -> int: ...
    def start(
        self, table: Table, args: Sequence[Any], *launch: Any, timed: bool = False
    ) -> Any: ...

class PycudaLauncher(Launcher):
    def __init__(self, function: Any, stream: Any) -> None: ...

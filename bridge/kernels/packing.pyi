"""Types of the compiled packing (``packing.pyx``)."""

from collections.abc import Sequence

from ..compiler.signature import Parameter

def parameter_slots(function: int, count: int | None) -> list[tuple[int, int]]: ...

class Parameters:
    name: str
    each: tuple[Parameter, ...]
    def __init__(
        self, name: str, parameters: Sequence[Parameter], is_prepared: bool = False
    ) -> None: ...

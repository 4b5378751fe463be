"""Types of ``views.pyx``."""

from typing import Any

class View:
    source: Any
    owner: int
    user: int

def views_alive() -> tuple[tuple[int, int], tuple[int, int]]: ...
def learn_memory(array: Any, pointer: int, device_id: int, dtype: Any = None) -> View: ...
def allocate(malloc: Any, holder: Any, size: int) -> Any: ...

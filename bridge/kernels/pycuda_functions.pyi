"""Types of the launches of PyCUDA's functions (``pycuda_functions.pyx``)."""

from typing import Any

def launch(function: Any, /, *args: Any, block: Any, grid: Any = (1, 1), **launch: Any) -> None: ...

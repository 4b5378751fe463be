"""Types of ``copies.pyx``."""

from typing import Any

CALLS: dict[Any, dict[str, Any]]

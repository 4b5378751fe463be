"""Kernels that are not right on the host driver today, and why. They are right on a GPU.

Each list has reasons by kernels' names, `area.name`. A test that ends in another way than its list
says fails: move it, or delete its line.
"""

REFUSED: dict[str, str] = {}

WRONG: dict[str, str] = {}

ERROR: dict[str, str] = {}

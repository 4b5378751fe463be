"""Kernels that are not right on the host driver today, and why. They are right on a GPU.

A test that ends in another way than its list says fails: move it, or delete its line.
"""


def because(reason: str, area: str, names: str) -> dict[str, str]:
    """Give each of an area's kernels a reason."""
    return dict.fromkeys((f"{area}.{name}" for name in names.split()), reason)


REFUSED: dict[str, str] = {}

WRONG: dict[str, str] = {}

ERROR: dict[str, str] = {}

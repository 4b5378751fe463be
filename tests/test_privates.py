"""The private members of CuPy and PyCUDA that the package uses, as docs/versions.md lists them."""

from __future__ import annotations

import functools
import importlib
import re

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "versions.md").read_text().partition("## Private members")[2]
MEMBERS = [
    name
    for row in re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    for name in re.findall(r"`([\w.]+)`", row)
]


def find(name):
    """Return a member by its dotted name; ImportError or AttributeError if it is gone."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise ImportError(name)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_private_member_is_there(name):
    find(name)


def test_one_that_is_gone_is_noticed():
    assert len(MEMBERS) > 10
    for name in "cupy.ndarray._initialize", "pycuda.nothing.at_all", "nowhere.nothing":
        with pytest.raises((ImportError, AttributeError)):
            find(name)

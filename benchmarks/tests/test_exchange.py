"""The table of who reads old data with whom."""

import pytest
from processes import run_python

from benchmarks.exchange import AS_SHIPPED


@pytest.mark.alone  # on a GPU that others use, the kernel that waits may end too early
def test_bridge_reads_no_old_data_where_pycudas_own_export_does():
    """The pairs without an order, 8 of 12, are those of `tests/support/races.py`."""
    done = run_python("from benchmarks.exchange import main; main()")
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    start = next(n for n, cells in enumerate(lines) if "bridge.as_cupy" in cells)
    heads, *rows = lines[start : lines.index([""], start)]
    found = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    assert found[AS_SHIPPED]["cupy.asarray"] == "8/12"
    assert found[AS_SHIPPED]["cupy.from_dlpack"] == "ValueError"
    assert found[AS_SHIPPED]["bridge.as_cupy"] == "0/12"
    for way in "cupy.asarray", "cupy.from_dlpack", "bridge.as_cupy":
        assert found["PyCUDA"][way] == "0/12"
    assert found["CuPy, inside"]["bridge.as_pycuda"] == "0/12"
    assert found["CuPy"]["bridge.as_pycuda"] == "0/12"

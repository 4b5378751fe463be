"""Short forms of `soak.py`; the long ones take minutes and a GPU."""

from __future__ import annotations

import pytest
import soak
from conftest import ON_GPU

pytestmark = pytest.mark.alone
MEGABYTE = 1 << 20


@pytest.mark.parametrize("seed", range(4))
def test_random_work_agrees_with_numpy_and_leaves_nothing_behind(seed):
    counts, left = soak.soak(3000, seed)
    assert sum(counts.values()) == 3000
    assert len(counts) >= 12
    assert left.pop("the device") < MEGABYTE
    assert left == {"CuPy's pool": 0, "PyCUDA's pool": 0}


def test_eight_threads_agree_with_numpy_and_leave_nothing_behind():
    rounds, left = soak.share(8, seconds=2, seed=1)
    assert min(rounds) > 0
    assert left < MEGABYTE


if not ON_GPU:  # there a missing fence is a stale read now and then, here each time
    MISSING = {
        "a conversion's order": """
plain = bridge.as_cupy
bridge.as_cupy = lambda array, stream=None: plain(array, stream=-1)""",
        "a release's order": """
plain = bridge.as_pycuda
def as_pycuda(array, stream=None):
    if stream in (None, -1):
        return plain(array, stream=stream)
    bridge.wait_stream(stream, cupy.cuda.get_current_stream())
    return plain(array, stream=-1)
bridge.as_pycuda = as_pycuda""",
    }

    @pytest.mark.parametrize("mistake", MISSING.values(), ids=MISSING)
    def test_without_the_order_it_disagrees(mistake, python):
        done = python(
            f"""
import sys, cupy
sys.path.insert(0, "tests")
import bridge.autoinit, bridge.arrays, soak
{mistake}
try:
    soak.soak(20_000, 1)
except AssertionError as error:
    assert "Arrays are not equal" in str(error)
    print("disagrees")
"""
        )
        assert (done.returncode, done.stdout) == (0, "disagrees\n"), done.stderr

"""Nothing leaks: a short form of `soak.py`; the long one takes minutes."""

import pytest
import soak

pytestmark = pytest.mark.alone
MEGABYTE = 1 << 20


def test_eight_threads_agree_with_numpy_and_leave_nothing_behind():
    rounds, left = soak.share(8, seconds=2, seed=1)
    assert min(rounds) > 0
    assert left < MEGABYTE

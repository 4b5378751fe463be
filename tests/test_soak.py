"""Nothing leaks: short forms of `ordering.py` and `soak.py`; the long ones take minutes."""

import ordering
import pytest
import soak

pytestmark = pytest.mark.alone
MEGABYTE = 1 << 20


@pytest.mark.parametrize("kind", [ordering.Schedule, ordering.Unnamed])
def test_random_work_leaves_nothing_behind(kind):
    ordering.run(50, kind=kind)  # compilers, events and streams are made once
    before = ordering.held()
    ordering.run(150, 1000, kind=kind)
    assert before - ordering.held() < MEGABYTE


def test_eight_threads_agree_with_numpy_and_leave_nothing_behind():
    rounds, left = soak.share(8, seconds=2, seed=1)
    assert min(rounds) > 0
    assert left < MEGABYTE

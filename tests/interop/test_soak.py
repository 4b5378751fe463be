"""Nothing leaks: short forms of `schedules.py` and `soak.py`; the long ones take minutes."""

import pytest
import schedules
import soak

pytestmark = pytest.mark.alone
MEGABYTE = 1 << 20


@pytest.mark.parametrize("kind", [schedules.Schedule, schedules.Unnamed])
def test_random_work_leaves_nothing_behind(kind):
    schedules.run(50, kind=kind)  # compilers, events and streams are made once
    before = schedules.held()
    schedules.run(150, 1000, kind=kind)
    assert before - schedules.held() < MEGABYTE


def test_eight_threads_agree_with_numpy_and_leave_nothing_behind():
    rounds, left = soak.share(8, seconds=2, seed=1)
    assert min(rounds) > 0
    assert left < MEGABYTE

"""All small programs that follow the guide's rules run in the order of their lines."""

import itertools
import os
import re
import subprocess
import sys

import pytest
from families import FAMILIES
from gpus import GPUS, ON_GPU
from processes import surroundings
from programs import EFFECTS, OF_DEVICES, WORLDS

NIGHTLY = os.environ.get("BRIDGE_NIGHTLY") == "1"  # whole families, for five minutes in each world
SAMPLE = "20" if ON_GPU else "60"


def judge(world, *options):
    devices = WORLDS[world].devices
    host = ["-m", "hostcuda", "--check", "--pool", "--devices", str(devices)]
    options = ("--held", "1", *options) if devices <= GPUS else options
    command = [*(devices > GPUS) * host, "tests/support/programs.py", "--world", world, *options]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run([sys.executable, *command], **both, **surroundings())


@pytest.mark.parametrize("world", WORLDS)
def test_programs_that_follow_the_rules_are_ordered(world):
    sample = ["--sample", "0", "--seconds", "300"] if NIGHTLY else ["--sample", SAMPLE]
    done = judge(world, *sample)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("seed", "123")
def test_programs_that_threads_run_at_the_same_time_are_ordered(seed):
    done = judge("own", "--threads", "4", "--sample", "200", "--held", seed)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("threads", "02")
def test_a_program_without_the_calls_has_a_conflict(threads):
    done = judge("own", "--families", "without_calls", "--threads", threads)
    assert done.returncode == 1
    pair = r"conflict: kernel p of program:6 \(on stream .* and kernel op of program:7 \(on stream"
    assert re.search("wrong number: " if ON_GPU else pair, done.stdout)


def test_a_program_with_other_numbers_than_its_lines_is_found():
    done = judge("own", "--families", "wrong_numbers")
    assert done.returncode == 1
    assert "wrong number: 2, not 17" in done.stdout


def test_a_program_in_which_the_host_waits_has_none():
    done = judge("own", "--families", "host_waits", "--sample", "0")
    assert done.returncode == 0, done.stdout


def test_every_family_is_run():
    controls = {name for name, one in FAMILIES.items() if one.is_control}
    assert controls == {"host_waits", "without_calls", "wrong_numbers"}
    assert {*OF_DEVICES} <= {*FAMILIES} - controls


def test_the_kernels_of_the_libraries_do_not_commute():
    for (m, n), (q, r) in itertools.combinations({*EFFECTS.values()}, 2):
        assert q * n + r != m * r + n

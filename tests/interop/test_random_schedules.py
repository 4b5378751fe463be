"""Random schedules give the serial result, and do not with any one mistake in the package."""

import re

import pytest
import schedules
from gpus import ON_GPU
from mutants import MUTANTS, SOURCES, Mutant, Workshop, changed, named_test
from processes import run_python


@pytest.mark.parametrize("kind", [schedules.Schedule, schedules.Unnamed])
@pytest.mark.parametrize("first", [0, 500])
def test_random_schedules_give_the_serial_result(first, kind):
    assert schedules.run(500, first, kind=kind) == 500


@pytest.mark.skipif(ON_GPU, reason="not installed: hostcuda in the place of the driver")
@pytest.mark.parametrize("order", ["earliest", "random:1", "random:2"])
def test_they_give_it_whenever_queued_work_runs(order):
    script = """
        import schedules
        print(schedules.run(150), schedules.run(150, kind=schedules.Unnamed))
    """
    done = run_python(script, HOSTCUDA_ORDER=order)
    assert (done.stdout, done.stderr) == ("150 150\n", "")


if not ON_GPU:  # there a missing fence is a stale read now and then, here each time

    @pytest.fixture(scope="module")
    def workshop(tmp_path_factory):
        return Workshop(tmp_path_factory.mktemp("mutants") / "copy")

    # Every twelfth by `make test-all`, the others by `make nightly`: as long as all other tests.
    SHOWN = [
        pytest.param(mutant, id=name, marks=[pytest.mark.nightly] * (index % 12 != 0))
        for index, (name, mutant) in enumerate(MUTANTS.items())
    ]

    @pytest.mark.mutants
    @pytest.mark.parametrize("mutant", SHOWN)
    def test_with_any_one_mistake_in_the_package_they_do_not(mutant, workshop):
        assert workshop.fails(mutant)

    @pytest.mark.mutants
    def test_a_copy_without_a_mistake_does_not_fail(workshop):
        test = named_test("release", "the_release_in_a_reference_cycle_is_ordered")
        for file, kind, named in ("views.pyx", "View", ""), ("pool.py", "Allocation", test):
            assert not workshop.fails(Mutant(f"interop/{file}", kind, kind, kind, named), 100)

    USE = "import hostcuda; hostcuda.install(); import bridge; bridge.as_cupy"

    def test_a_driver_without_a_function_is_named(tmp_path):
        workshop = Workshop(tmp_path / "copy")  # of its own: it stays so
        text = SOURCES["interop/driver.pyx"]
        workshop.write("interop/driver.pyx", text.replace('"cuStreamGetCtx"', '"cuStreamGetCats"'))
        status, said = workshop.run("-c", USE)
        assert status == 1
        assert "has no function cuStreamGetCats: this driver is for CUDA 1" in said

    def test_a_core_that_is_not_built_is_said_to_be(tmp_path):
        workshop = Workshop(tmp_path / "copy")
        assert workshop.run("-c", USE) == (0, "")
        for library in (workshop.folder / "bridge").rglob("*.so"):
            library.unlink()
        # An editable installation would find its own.
        alone = (
            "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]"
        )
        status, said = workshop.run("-c", f"{alone}; {USE}")
        assert status == 1
        assert re.search("ImportError: bridge: one of its compiled parts is not built for", said)


def test_every_fence_is_known():
    assert sum(name.startswith("no fence") for name in MUTANTS) >= 15
    assert sum(name.startswith("no order at the end") for name in MUTANTS) >= 7


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mistake_has_its_place(mutant):
    assert changed(mutant) != SOURCES[mutant.file]

"""One mistake in a copy of the package, and the tests fail that look for it."""

import re

import pytest
from gpus import ON_GPU
from mutants import MUTANTS, SOURCES, Mutant, Workshop, changed, fences, named_test

if not ON_GPU:  # where a missing fence is a stale read now and then

    @pytest.fixture(scope="module")
    def workshop(tmp_path_factory):
        return Workshop(tmp_path_factory.mktemp("mutants") / "copy")

    # One in sixteen by `make test-all`, the others by `make nightly`: ten minutes.
    SHOWN = [
        pytest.param(mutant, id=name, marks=[pytest.mark.nightly] * (index % 16 != 5))
        for index, (name, mutant) in enumerate(MUTANTS.items())
    ]

    @pytest.mark.mutants
    @pytest.mark.parametrize("mutant", SHOWN)
    def test_with_any_one_mistake_in_the_package_a_test_fails(mutant, workshop):
        assert workshop.fails(mutant)

    @pytest.mark.mutants
    def test_a_copy_without_a_mistake_does_not_fail(workshop):
        test = named_test("release", "the_release_in_a_cycle_with_its_stream_is_ordered")
        for file, kind, named in ("views.pyx", "View", ""), ("memory_kinds.py", "Allocation", test):
            assert not workshop.fails(Mutant(f"interop/{file}", kind, kind, kind, 1, named), 10)

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


def test_every_line_that_orders_is_known():
    assert len([*fences()]) >= 20


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mistake_has_its_place(mutant):
    assert changed(mutant) != SOURCES[mutant.file]

"""The notebooks: what is in them is there, and what can run on the host driver runs."""

import ast
import importlib
import json
import re
import sys
from types import ModuleType

import pytest
from processes import ROOT

pytestmark = pytest.mark.nightly
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS_LIBRARIES = "07_the_rest_of_the_world"  # which cannot work on host memory
OPTIONAL = {"jax", "numba", "torch"}
# The sizes are those of host memory on a GPU as well: others need minutes.
SMALL = "HAS_GPU = False"
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path):
    """Return the source and the tags of each cell of code."""
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return [("".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in code]


@pytest.fixture
def machine(monkeypatch):
    """Import the module that the first cells import."""
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    yield importlib.import_module("machine")
    del sys.modules["machine"]


@by_name
def test_the_first_cell_finds_the_gpu_before_cuda_is_used(path, machine):
    (first, _), *others = cells(path)
    call = ast.parse(first).body[-1].value.func.id
    assert call == ("need_gpu" if path.stem == NEEDS_LIBRARIES else "gpu_or_host")
    assert callable(getattr(machine, call))
    assert len(ast.parse(first).body) == 2  # the import and the call
    assert any("import bridge.autoinit" in source for source, _ in others)


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem != NEEDS_LIBRARIES], ids=lambda path: path.stem
)
def test_cells_tagged_gpu_are_those_that_say_why_they_need_one(path, machine):
    for source, tags in cells(path):
        lines = source.splitlines(keepends=True)
        assert (machine.skipped(lines) != lines) == ("gpu" in tags), source


@pytest.mark.parametrize(
    ("gpus", "call", "sentence"),
    [
        (0, lambda m: m.need_gpu("torch"), "This machine has no GPU, which this notebook needs"),
        (1, lambda m: m.need_gpu("no_such_package"), "Not installed .*: no_such_package. `make"),
        (0, lambda m: m.gpu_or_host("no_such_package"), "Not installed .*: no_such_package. `make"),
        (1, lambda m: m.gpu_or_host(devices=2), "needs 2 GPUs, and CUDA sees 1"),
    ],
    ids=["no GPU", "a package on a GPU", "a package on host memory", "one GPU of two"],
)
def test_a_notebook_that_cannot_run_stops_with_a_sentence(
    machine, monkeypatch, gpus, call, sentence
):
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    with pytest.raises(machine.Stop, match=sentence) as stopped:
        call(machine)
    assert stopped.value._render_traceback_() == [str(stopped.value)]


@by_name
def test_what_a_notebook_imports_and_names_is_there(path, machine):
    tree = ast.parse("\n".join(source for source, _ in cells(path)))
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 2
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or node.names[0].name
            if module.partition(".")[0] not in OPTIONAL:
                exec(ast.unparse(node), names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", ast.unparse(node)):
            first, *rest = ast.unparse(node).split(".")
            found = names.get(first)
            while rest and isinstance(found, ModuleType):
                assert hasattr(found, rest[0]), ast.unparse(node)
                found = getattr(found, rest.pop(0))


@by_name
@pytest.mark.alone  # some measure memory, or which of two streams is first
def test_the_cells_that_need_no_gpu_run(path, python):
    """All that are not tagged `gpu`, one after the other, as a script."""
    script = ["import sys", "import matplotlib", "matplotlib.use('agg')"]
    script.append(f"sys.path.insert(0, {str(path.parent)!r})")
    for source, tags in cells(path):
        if "gpu" not in tags:
            script.append(source)
        if "gpu_or_host(" in source:
            script.append(SMALL)
    done = python("\n".join(script), devices=2 if path.stem == "09_many_gpus" else 1)
    assert (done.returncode, done.stderr) == (0, "")

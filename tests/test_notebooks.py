"""The notebooks: what is in them is there, and what can run on the host driver runs."""

from __future__ import annotations

import ast
import base64
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT

pytestmark = pytest.mark.nightly
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# What a cell tagged `parameters` sets is set anew behind it where the host's driver is to run it.
SMALL = {
    "02_legacy_kernels": "N, STEPS = 64, 8",
    "03_compile_at_run_time": "N, FACTORS, BLOCKS = 5000, [1, 4], [32, 256]",
    "04_custom_operations": "N = 5000",
    "06_one_pool": "STEP = 64 << 20",
    "08_from_numpy_to_the_gpu": "SIZES, FRAMES, HEIGHT, WIDTH = [32], 2, 30, 40",
    "09_many_gpus": "N, STEPS = 64, 8",
}
OPTIONAL = {"jax", "numba", "torch"}
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def whole_cells(path, kind="code"):
    """Return the cells of a kind as they are in the file, with their outputs."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def cells(path, kind="code"):
    """Return the source and the tags of each cell of a kind."""
    return [
        ("".join(cell["source"]), cell["metadata"].get("tags", []))
        for cell in whole_cells(path, kind)
    ]


def test_the_notebooks_are_numbered():
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{n:02}_" for n in range(1, 10)]


@by_name
def test_a_notebook_asks_and_answers_has_a_picture_of_its_own_and_was_executed(path):
    texts, code = [text for text, _ in cells(path, "markdown")], whole_cells(path)
    assert "**Question: " in texts[0]
    assert texts[-1].startswith("**Answer:**")

    kept = Path("pictures", f"{path.stem}.png")
    assert f"]({kept})" in texts[0]
    (cell,) = [cell for cell in code if "picture" in cell["metadata"].get("tags", [])]
    (drawn,) = [output["data"] for output in cell["outputs"] if "data" in output]
    assert base64.b64decode(drawn["image/png"]) == (path.parent / kept).read_bytes()

    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert not any(output.get("name") == "stderr" for output in outputs)


@by_name
def test_what_a_notebook_imports_and_names_is_there(path):
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
    script = ["import matplotlib", "matplotlib.use('agg')"]
    for source, tags in cells(path):
        if "gpu" not in tags:
            script.append(source)
        if "parameters" in tags:
            script.append(SMALL[path.stem])
    done = python("\n".join(script), devices=2 if path.stem == "09_many_gpus" else 1)
    assert (done.returncode, done.stderr) == (0, "")

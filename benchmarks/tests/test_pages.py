"""The benchmark calls kernels as the pages do."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("guide", "kernels", "recipes"))]
KINDS = {ast.Constant: "int", ast.Tuple: "tuple", ast.List: "list"}


def kinds_of_blocks(code):
    """Return how the sizes of each launch in a text are written."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    sizes = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "block"]
    return Counter(KINDS[type(size)] for size in sizes if type(size) in KINDS)


def of_pages(names):
    blocks = [re.findall(r"```python\n(.*?)```", (ROOT / n).read_text(), re.DOTALL) for n in names]
    return sum((kinds_of_blocks(code) for page in blocks for code in page), Counter())


def test_every_form_of_the_pages_is_measured_and_the_usual_one_is_compared():
    text = (ROOT / "benchmarks/kernels.py").read_text()
    kinds = of_pages(PAGES)
    assert sum(kinds.values()) >= 10
    assert {*kinds} <= {*kinds_of_blocks(text)}
    (compared,) = re.findall(r'"f\(cupy arrays\)": lambda: (.*),\n', text)
    assert [*kinds_of_blocks(compared)] == [kinds.most_common(1)[0][0]]
    assert kinds_of_blocks("f(x, block=[8]); f(x, block=8)") == {"list": 1, "int": 1}

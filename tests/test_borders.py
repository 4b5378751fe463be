"""The house: which floor may import which, what each file has, and where each promise is kept."""

import re
import subprocess
from graphlib import TopologicalSorter

import pytest
from processes import ROOT

PACKAGE = ROOT / "bridge"
FLOORS = "interop", "kernels", "compiler", "legacy"
MAY_IMPORT = {
    "errors": set(),
    "compiler": {"errors"},
    "interop": {"errors"},
    "kernels": {"errors", "interop", "compiler"},
    "legacy": {"errors", "compiler", "face"},
    "face": {"errors", "interop", "kernels", "compiler", "legacy", "face"},
}
# Imports against the order of the floors.
DOORS = {
    ("bridge.errors", "bridge.interop.contexts"): "tried there, to say what is missing",
    ("bridge.compiler.nvrtc", "bridge.interop.scopes"): "NVRTC's thread has a context",
    ("bridge.kernels.loaded", "bridge.legacy.names"): "advice for names of before CUDA 4",
    ("bridge.legacy.run", "bridge.interop.patches"): "the other hooks import both libraries",
    ("bridge.kernels.module", "bridge.legacy.textures"): "few programs have textures",
}


def modules():
    """Return the files of each module: a compiled one has types and a header, too."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.p*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.setdefault(name.removesuffix(".__init__"), []).append(path)
    return found


MODULES = modules()


def floor_of(module):
    floor = module.split(".")[1] if "." in module else "face"
    return floor if floor in (*FLOORS, "errors") else "face"


def imported(text, module, is_package):
    """Return what a file imports of the package, at any depth; ``ast`` does not read Cython."""
    text = re.sub(r"import \(([^()]*)\)", lambda f: "import " + f[1].replace("\n", " "), text)
    names = set(re.findall(r"(?m)^ *c?import (bridge[\w.]*)", text))
    names |= set(re.findall(r"import_module\(f?\"(bridge[\w.]*)", text))
    for dots, base, what in re.findall(r"(?m)^ *from (\.*)([\w.]*) c?import ([^#\n]+)", text):
        if dots:
            parts = module.split(".")
            home = parts[: len(parts) - len(dots) + is_package]
            base = ".".join([*home, *filter(None, [base])])
        elif base.split(".")[0] != "bridge":
            continue
        each = [f"{base}.{one.split()[0]}" for one in what.split(",") if one.strip()]
        names |= {one if one in MODULES else base for one in each}
    return {name for name in names if name in MODULES} - {module}


def arrows():
    found = {module: set() for module in MODULES}
    for module, paths in MODULES.items():
        for path in paths:
            found[module] |= imported(path.read_text(), module, path.stem == "__init__")
    return found


def wrong(graph):
    """Return the imports that no floor allows and no door is for."""
    return {
        (one, other)
        for one, others in graph.items()
        for other in others
        if floor_of(other) not in MAY_IMPORT[floor_of(one)] | {floor_of(one)}
    } - set(DOORS)


def test_imports_keep_to_the_floors():
    graph = arrows()
    assert wrong(graph) == set()
    assert all(other in graph[one] for one, other in DOORS)  # none is left that nobody uses


def test_imports_within_the_package_make_no_circle():
    graph = arrows()
    del graph["bridge"]  # whose names are imported when they are first used
    for one, other in DOORS:
        graph[one].discard(other)
    graph = {one: others - {"bridge"} for one, others in graph.items()}
    TopologicalSorter(graph).prepare()  # CycleError


@pytest.mark.parametrize("floor", ["compiler", "interop", "kernels"])
def test_a_floor_does_not_name_the_tools_for_old_programs(floor):
    word = re.compile(
        r"(?i)(?<!cupy\.cuda\.)\btextures?\b|texture_|_texture|skcuda|--strict|bridge run"
    )  # CuPy's texture objects are arguments
    doors = {one for one, other in DOORS if other.startswith("bridge.legacy.")}
    doors.add("bridge.compiler.fixes")  # its table has all that sources need
    modules = {name for name in MODULES if floor_of(name) == floor} - doors
    paths = [path for name in modules for path in MODULES[name]]
    assert [path for path in paths if word.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("bridge.interop.views", "from ..kernels.module import SourceModule"),
        ("bridge.interop.ordering", "from bridge.kernels.packing cimport Call"),
        ("bridge.compiler.program", "    from ..legacy import run"),
        ("bridge.kernels.function", "from ..legacy.skcuda import linalg"),
        ("bridge.compiler.alignment", "from ..interop.conversions import (\n    as_cupy,\n)"),
        ("bridge.errors", 'import_module("bridge.legacy.run")'),
    ],
)
def test_a_wrong_import_is_found(module, line):
    graph = arrows()
    graph[module] |= imported(line, module, is_package=False)
    assert len(wrong(graph)) == 1


def test_no_file_is_long():
    paths = [path for paths in MODULES.values() for path in paths]
    long = {p.name: n for p in paths if (n := len(p.read_text().splitlines())) > 450}
    assert long == {}


def test_make_files_lists_each_file_by_its_first_line():
    files = [path for path in PACKAGE.rglob("*.py*") if path.suffix in (".py", ".pyx")]
    done = subprocess.run(["make", "-s", "files"], cwd=ROOT, capture_output=True, text=True)
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {*listed} == {str(path.relative_to(ROOT)) for path in files}
    assert listed["bridge/errors.py"].startswith("Errors and warnings: ContextError,")


@pytest.mark.nightly
def test_the_page_on_trust_names_functions_and_tests_that_exist():
    page = (ROOT / "docs" / "trust.md").read_text()
    for file, name in re.findall(r"`([\w/]+\.pyx?)(?:::(\w+))?`", page):
        paths = [path for path in (ROOT / file, PACKAGE / file) if path.exists()]
        for folder in "tests", "benchmarks/tests", "hostcuda/tests":
            paths += [] if "/" in file else (ROOT / folder).rglob(file)
        defined = rf"(?m)^ *(?:cp?def|def|class)\b[^\n=(:]*\b{name} *[(:]" if name else ""
        found = [bool(re.search(defined, path.read_text())) for path in paths]
        assert found == [True], (file, name)
    promises = re.findall(r"(?m)^(\d+)\. \*\*", page)
    assert promises == re.findall(r"(?m)^\| (\d+) \|(?: `.*`.*\|){2}", page)


def test_no_test_imports_another_test():
    """What tests share is in ``tests/support``, and the fixtures are in ``conftest.py``."""
    wanted = re.compile(r"\b(?:from|import) +[\w., ]*\b(?:test_\w+|conftest)\b")
    files = (ROOT / "tests").rglob("*.py")
    assert [path.name for path in files if wanted.search(path.read_text())] == []

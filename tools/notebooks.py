"""Execute the notebooks, each in a fresh kernel: ``python tools/notebooks.py [--write] [NAME...]``.

An exception in a cell, a failed assert above all, fails the run.  A notebook that stops in its
first cell, because this machine lacks what it needs, is skipped.  With --write the outputs are
kept in the files, and the picture that a notebook opens with, that of its cell tagged `picture`,
in the folder ``pictures``.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
import time
from pathlib import Path

import nbclient
import nbformat

COLOURS = re.compile(r"\x1b\[[\d;]*m")
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
sys.path.insert(0, str(FOLDER))

import machine  # noqa: E402 - it is beside the notebooks


def execute(path: Path, write: bool) -> tuple[str, str]:
    """Run a notebook from its top to its end; return how it ended, and what was said then."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        if error.ename == machine.Stop.__name__:
            return "skipped", error.evalue
        return "FAILED", COLOURS.sub("", str(error))
    if write:
        path.parent.joinpath("pictures", f"{path.stem}.png").write_bytes(picture(notebook))
        nbformat.write(notebook, path)
    return "ok", ""


def picture(notebook: nbformat.NotebookNode) -> bytes:
    """Return what the cell tagged `picture` has drawn, as PNG."""
    cell = next(c for c in notebook.cells if "picture" in c.metadata.get("tags", []))
    drawn = next(o for o in cell.outputs if o.output_type == "display_data")
    return base64.b64decode(drawn.data["image/png"])


def main() -> int:
    """Execute the notebooks named on the command line, or all; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="how the file's name starts: 03")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    options = parser.parse_args()
    if options.write and not machine.count_gpus():
        parser.error("--write keeps what a GPU printed, and this machine has no GPU")
    paths = sorted(FOLDER.glob("*.ipynb"))
    if options.names:
        paths = [path for path in paths if path.name.startswith(tuple(options.names))]
    if not paths:
        parser.error(f"no notebook is called so: {', '.join(options.names)}")
    failed = 0
    for path in paths:
        start = time.perf_counter()
        ended, said = execute(path, options.write)
        failed += ended == "FAILED"
        print(f"{ended:<8}{path.name}  {time.perf_counter() - start:.0f} s\n{said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

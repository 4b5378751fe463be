#!/usr/bin/env python3
"""Run PyCUDA's own tests and examples, from its sdist, under ``python -m bridge run``.

Beside each stands how it ends with PyCUDA alone, which needs nvcc on PATH; `bridge run` gets a
PATH without it.  `make pycuda-suite` calls this.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WAYS = {
    "PyCUDA alone": [],
    "run": ["-m", "bridge", "run"],
    "run --pool": ["-m", "bridge", "run", "--pool"],
}
# What asks for a display, for input, or never ends.
INTERACTIVE = {"gl_interop", "light_field_3d_viewer", "mandelbrot_interactive", "game_of_life"}


def download(version: str, folder: Path) -> Path:
    """Return the unpacked sdist."""
    source = folder / f"pycuda-{version}"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as home:
            Path(home, ".aksetup-defaults.py").touch()  # without it setup.py waits for 30 seconds
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run(
                [*pip, "--no-binary", "pycuda", f"pycuda=={version}", "-d", str(folder)],
                check=True,
                env={**os.environ, "HOME": home},
            )
        with tarfile.open(folder / f"pycuda-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source


def environment(way: str) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "agg"}
    if WAYS[way]:
        folders = found["PATH"].split(os.pathsep)
        found["PATH"] = os.pathsep.join(f for f in folders if not Path(f, "nvcc").exists())
    return found


def run(way: str, arguments: list[str], folder: Path, limit: int) -> tuple[int, str]:
    """Return the exit status, and the last line."""
    try:
        done = subprocess.run(
            [sys.executable, *WAYS[way], *arguments],
            cwd=folder,
            env=environment(way),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no end after {limit} s"
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def main() -> int:
    """Print a line for each example, and the closing lines of the tests; 1 if one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="2026.1", help="of PyCUDA")
    parser.add_argument("--source", type=Path, help="the sdist, unpacked; else pip loads it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    source = options.source or download(options.version, ROOT / "build" / "pycuda")
    ways = list(WAYS) if shutil.which("nvcc") else list(WAYS)[1:]
    examples = sorted(
        path for path in (source / "examples").rglob("*.py") if path.stem not in INTERACTIVE
    )
    worse = []
    with ThreadPoolExecutor(options.jobs) as pool:
        tests = {
            way: pool.submit(run, way, ["-m", "pytest", "-q", "."], source / "test", 600)
            for way in ways
        }
        futures = [
            [pool.submit(run, way, [path.name], path.parent, 120) for way in ways]
            for path in examples
        ]
        for path, row in zip(examples, futures, strict=True):
            ends = [one.result() for one in row]
            print(f"{path.stem:40}" + "".join(f"{status:>4}" for status, _ in ends), flush=True)
            if any(status for status, _ in ends):
                for way, (status, line) in zip(ways, ends, strict=True):
                    print(f"    {way}: {status}, {line[:150]}")
            if ends[0][0] == 0 and any(status for status, _ in ends[1:]):
                worse.append(path.stem)
        for way, future in tests.items():
            print(f"tests, {way}: {future.result()[1]}")
    passed = {way: re.search(r"(\d+) passed", one.result()[1]) for way, one in tests.items()}
    print("passed:", {way: found and int(found[1]) for way, found in passed.items()})
    print("worse than PyCUDA alone:", ", ".join(worse) or "none")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Build the sdist and a wheel for each Python on PATH in ``dist/``, and try each: `make wheels`.

The wheels get the manylinux tag that the C library of this machine allows.  Each is installed in
an empty environment, beside PyCUDA, and runs the demo there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; if it fails, show its output and end."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: {' '.join(map(str, command))} failed")


def build(python: str, sdist: Path, folder: Path) -> Path:
    """Build a wheel from the sdist; return its path in ``dist/``."""
    built = folder / "built"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    run(*pip, "-w", built, sdist)
    run(sys.executable, "-m", "auditwheel", "repair", "-w", folder, *built.glob("*.whl"))
    (wheel,) = folder.glob("*.whl")
    return Path(shutil.copy(wheel, DIST))


def check(python: str, wheel: Path, cuda: str, gpu: bool, folder: Path) -> None:
    """Install a wheel in an empty environment, beside PyCUDA, and run the demo with it."""
    run(python, "-m", "venv", folder / "env")
    there = folder / "env/bin/python"
    run(there, ROOT / "tools/build_pycuda.py", "--cuda", cuda)
    run(there, "-m", "pip", "install", "-q", f"{wheel}[cuda{cuda}]")
    run(there, "-m", "pip", "check")
    if not gpu:
        run(there, "-m", "pip", "install", "-q", ROOT / "hostcuda")
    run(there, *([] if gpu else ["-m", "hostcuda"]), ROOT / "tools/demo.py", cwd=folder)
    run(there, "-c", "import bridge; assert 'site-packages' in bridge.__file__", cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", choices=("12", "13"), default="12", help="CUDA's major")
    parser.add_argument("--gpu", action="store_true", help="try the wheels on the GPU")
    parser.add_argument("--pythons", nargs="+", default=["3.10", "3.11", "3.12", "3.13", "3.14"])
    options = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    print(sdist.name, flush=True)
    for version in options.pythons:
        python = shutil.which(f"python{version}") or sys.exit(f"wheels: no python{version} on PATH")
        with tempfile.TemporaryDirectory() as name:
            wheel = build(python, sdist, Path(name))
            print(f"{wheel.name}, {wheel.stat().st_size >> 10} KB, built", end="", flush=True)
            check(python, wheel, options.cuda, options.gpu, Path(name))
            print(", installed and tried", flush=True)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    print(f"{len(os.listdir(DIST))} files in {DIST} are ready")


if __name__ == "__main__":
    main()

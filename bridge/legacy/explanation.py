"""``python -m bridge run --explain``: what was replaced, and which lines of the program used it."""

from __future__ import annotations

import atexit
import sys

from ..errors import program_frame

_REPLACEMENTS = {
    "pycuda.autoinit": "the primary context, which CuPy uses: import bridge.autoinit",
    "make_context": "the primary context: with bridge.primary_context()",
    "SourceModule": "compiled by NVRTC, takes CuPy arrays too, checked: bridge.SourceModule",
    "PyCUDA's kernels": "compiled by NVRTC: bridge.use_nvrtc()",
    "textures": "references over texture and surface objects: bridge.SourceModule.get_texref",
    "allocations": "CuPy's pool: allocator=bridge.pycuda_allocator()",
}
_uses: dict[str, dict[str, None]] | None = None  # lines of the program; None: without --explain


def start() -> None:
    """Record uses from now on, and print them at exit."""
    global _uses
    _uses = {}
    atexit.register(_print_uses)


def record_use(part: str) -> None:
    """Record the line of the program that uses a replaced part of PyCUDA."""
    if _uses is not None:
        _uses.setdefault(part, {})[line_of_program()] = None


def line_of_program() -> str:
    """Return the file and the number of the program's line that is running."""
    frame = program_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _print_uses() -> None:
    for part, lines in (_uses or {}).items():
        print(f"bridge run: {part} -> {_REPLACEMENTS[part]}", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)
    if not _uses:
        print("bridge run: this process used nothing that is replaced", file=sys.stderr)
    unseen = "pointers passed between the libraries (UnownedMemory, allocator=lambda ...)"
    print(f"bridge run: not looked for: {unseen}", file=sys.stderr)

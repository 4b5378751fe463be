"""The fix for sources with texture and surface references, which CUDA 12 removed."""

from __future__ import annotations

from ..compiler.fixes import Fix, include_header
from ..compiler.nvrtc import Program


def _declare_references(program: Program, log: str) -> Program:
    pattern = r"\b(texture|surface)\b\"? is (not a template|undefined)"
    return include_header(program, "bridge/textures.h", pattern, log)


TEXTURE_REFERENCES = Fix("texture references", after=_declare_references)

"""The fix for sources with texture and surface references, which CUDA 12 removed."""

from __future__ import annotations

import re

from ..compiler.fixes import Fix, include_header
from ..compiler.nvrtc import Program

_UNKNOWN = re.compile(r"\b(texture|surface)\b\"? is (not a template|undefined)")


def _declare_references(program: Program, log: str) -> Program:
    return include_header(program, "bridge/textures.h") if _UNKNOWN.search(log) else program


TEXTURE_REFERENCES = Fix("texture references", after=_declare_references)

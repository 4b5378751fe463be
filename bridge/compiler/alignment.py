"""Apply the alignments of structs that nvcc applies and NVRTC ignores.

nvcc and GCC apply an attribute behind the closing brace to the struct.  NVRTC 12.9 and 13.0 ignore
it, or apply it to the variable or typedef that follows.  In all other places, NVRTC and nvcc agree.
NVRTC reports the places of `aligned` and `packed`.  `move_alignments` moves those behind a brace.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import pycuda.driver as drv

from .nvrtc import FILE, Program, front_end_log
from .signature import NOISE

_WORDS = re.compile(r"align|packed", re.IGNORECASE)
# Reports that include/alignment.h causes: the file, the line, and the spaces before the place.
_REPORT = re.compile(
    r'^(.*)\((\d+)\): (?:warning #1097-D: unknown attribute "bridge_layout"|error: expected a ";")'
    r"\n  .*\n  (\s*)\^",
    re.MULTILINE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)', re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\r?\n)*[^\n]*", re.MULTILINE)
_DEFINE = re.compile(r"\s*#\s*define\s+(\w+)(?:\([^)]*\))?(.*)", re.DOTALL)
_SPLICE = re.compile(r"\\(?=\r?\n)")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|el|endif)", re.MULTILINE)
_HIDING = re.compile(r"^[ \t]*#[ \t]*(?:line\b|\d|pragma[ \t]+nv_diag).*", re.MULTILINE)
_ATTRIBUTE = r"(?:__attribute__|__\w*(?:align|ALIGN)\w*__)"
_GROUP = r"\([^()]*\)"
for _ in range(4):
    _GROUP = rf"\((?:[^()]|{_GROUP})*\)"
_ITEM = re.compile(rf"\b[A-Za-z_]\w*(?:\s*{_GROUP})?")  # a word, with arguments if it has any
_SPECIFIER = re.compile(rf"\s*(?:{_ITEM.pattern}|\[\[.*?\]\])")
_CLASS = re.compile(r"\b(?:struct|union|class)\b(?!\s*\.{0,3}\s*\w*\s*[,>=])")
_BASES = re.compile(r"(?<!:):(?!:).*", re.DOTALL)


def move_alignments(program: Program) -> Program:
    """Return the program with the ignored alignments moved to where NVRTC applies them."""
    folders = [f for f in program.folders if not Path(f, "cuda_runtime_api.h").is_file()]  # CUDA's
    given = [re.sub("^(-D|--define-macro=)", "#define ", o) for o in program.options]
    given = [re.sub("^--pre-include (.*)", r'#include "\1"', o.replace("=", " ", 1)) for o in given]
    texts = _read("\n".join((program.source, *given)), folders)
    if not any(map(_WORDS.search, texts.values())):
        return program
    macros: dict[str, str] = {}
    for text in texts.values():
        for directive in DIRECTIVE.findall(_bare(text)):
            if define := _DEFINE.match(_SPLICE.sub(blank, directive)):
                macros[define[1]] = f"{macros.get(define[1], '')} {define[2]}"
    while (moved := _move(program, texts, macros)) != program.source:
        # Once more: NVRTC stops at 100 errors, such as assertions of sizes.
        program = program._replace(source=moved)
    return program


def _move(program: Program, texts: dict[str, str], macros: dict[str, str]) -> str:
    """Return the source, with all moved that NVRTC's front end reports at once."""
    source = program.source
    shown = re.sub(r"[^\0-\x7f]", "_", _HIDING.sub(blank, source))  # a byte per character
    log = front_end_log(program._replace(source=shown), "bridge/alignment.h")
    edits = []
    for path, number, indent in dict.fromkeys(_REPORT.findall(log)):
        text = shown if path == FILE else texts.get(str(Path(path).resolve()), "")
        lines = text.split("\n")[: int(number)]
        column = len(lines[-1].encode()[: len(indent)].decode(errors="ignore"))
        start = sum(map(len, lines[:-1])) + len(lines) - 1 + column
        item = _ITEM.match(_code(text), start)
        owner = _owner(text, item, macros) if item else None
        if item is None or owner is None:
            continue
        written = source[start : item.end()] if path == FILE else item[0]
        if owner < 0 or path != FILE:
            raise drv.CompileError(
                f"NVRTC ignores the alignment in line {number} of {path}, {written!r}, which nvcc "
                "applies to a struct: the kernel would misread arrays made on the host. Write it "
                "after the word struct: `struct __align__(16) name { ... };`",
                ["nvrtc"],
            )
        edits.append((start, item.end(), re.sub(r"[^\n]", " ", written)))
        edits.append((owner, owner, " " + " ".join(_bare(written, "/").split())))
    for start, end, text in sorted(edits[::-1], key=lambda edit: edit[0], reverse=True):
        source = source[:start] + text + source[end:]  # no line changes its number
    return source


def _owner(text: str, item: re.Match[str], macros: dict[str, str]) -> int | None:
    """Return where an attribute behind a struct belongs: after the word struct.

    None if NVRTC reads the attribute as nvcc does, -1 if the beginning of the struct is not clear.
    """
    code, start = _code(text), item.start()
    whole, arguments = (_expand(part, macros) for part in (item[0], item[0].partition("(")[2]))
    if not _WORDS.search(whole):
        return None
    behind = r"\w" if re.search(_ATTRIBUTE, arguments) else _ATTRIBUTE
    if re.search(rf"\}}\s*{behind}", whole):  # a macro makes the struct
        return -1
    close = code.rfind("}", 0, start)
    others = _ITEM.findall(code[close + 1 : start])  # attributes, if nothing is left of it:
    left = _ITEM.sub(
        lambda other: "" if re.search(_ATTRIBUTE, _expand(other[0], macros)) else other[0],
        code[close + 1 : start],
    ).strip()
    if left or close < 0:
        body = re.search(r"(\w*)(?:\([^()]*\))?$", left)  # `{ ... }`, if a macro
        return -1 if body and _expand(body[1], macros).rstrip().endswith("}") else None
    opening, depth = close, 1
    while depth and opening:
        opening -= 1
        depth += (code[opening] == "}") - (code[opening] == "{")
    words = [word for word in re.findall(r"\w+", code[opening:close]) if word in macros]
    if sum(body.count("{") - body.count("}") for body in (_expand(word, macros) for word in words)):
        return -1
    begin = max(code.rfind(mark, 0, opening) for mark in ";{}") + 1
    word = _CLASS.search(code, begin, opening)
    if depth or not word or re.search(r"\benum\b", code[begin:opening]):
        return None
    owner = word.end()
    while (more := _SPECIFIER.match(code, owner)) and (
        re.search(rf"{_ATTRIBUTE}|alignas|\[\[", _expand(more[0], macros))
    ):
        others.append(more[0].strip())
        owner = more.end()
    if "(" in _BASES.sub("", code[owner:opening]):  # a function that returns a struct
        return None
    several = {_expand(other, macros).strip() for other in others}
    if "align" in whole and any("align" in part for part in several - {whole.strip()}):
        return -1  # nvcc takes the last one, NVRTC the largest
    level = 0
    for kind in _CONDITION.findall(_bare(text)[owner:start]):
        level += {"if": 1, "el": 0, "endif": -1}[kind]
        if level < (kind == "el"):
            return -1
    return -1 if level else owner


def _read(source: str, folders: Sequence[str]) -> dict[str, str]:
    """Return the texts of the source, by its name, and of the user's headers, by their paths."""
    texts, pending = {FILE: source}, [(source, Path("/dev/null"))]
    while pending:
        text, near = pending.pop()
        for name in _INCLUDE.findall(text):
            paths = (Path(folder, name) for folder in (str(near), *folders))
            path = next(filter(Path.is_file, paths), None)
            if path and (key := str(path.resolve())) not in texts:
                texts[key] = path.read_text(encoding="utf-8", errors="replace")
                pending.append((texts[key], path.parent))
    return texts


def blank(found: re.Match[str]) -> str:
    """Return spaces for a match, with its ends of lines."""
    return re.sub(r"[^\n]", " ", found[0])


def _bare(text: str, marks: str = "/\"'") -> str:
    """Blank the comments and literals that begin with one of the marks."""
    return NOISE.sub(lambda found: blank(found) if found[0][0] in marks else found[0], text)


@functools.lru_cache(8)
def _code(text: str) -> str:
    """Blank all but the code, and keep its positions."""
    return _SPLICE.sub(blank, DIRECTIVE.sub(blank, _bare(text)))


def _expand(text: str, macros: dict[str, str], seen: frozenset[str] = frozenset()) -> str:
    """Replace the names of macros by what they stand for, without their arguments."""

    def body(word: re.Match[str]) -> str:
        if word[0] in seen or word[0] not in macros:
            return word[0]
        return _expand(macros[word[0]], macros, seen | {word[0]})

    return re.sub(r"\b[A-Za-z_]\w*", body, text)

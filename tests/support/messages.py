"""The messages of the errors that the package can raise: their constant parts, in order."""

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parents[2] / "bridge"
# What is raised, and calls of errors' classes, and of functions that return an error.
START = re.compile(r"(?<=\braise )(?=[\w(])|(?<![\w.])(?=[\w.]*(?:Error|refusal|refused)\()")
SHORT, LONG = 6, 14  # how much of a message's text is telling


class Message(NamedTuple):
    """What is constant in a message, and the line where it is."""

    file: str
    line: int
    parts: tuple[str, ...]

    def matches(self, text: str) -> bool:
        return re.search(".*".join(map(re.escape, self.parts)), text, re.DOTALL) is not None

    def runs(self) -> set[str]:
        """Return pieces of the text, outside of code in backquotes."""
        outside = "\0".join("\n".join(self.parts).split("`")[::2])
        pieces = [piece.strip() for piece in re.split("[\0\n]", outside)]
        return {
            piece[i : i + LONG]
            for piece in pieces
            for i in range(max(len(piece) - LONG, 0) + 1)
            if len(piece) >= SHORT
        }


def call_at(text: str, start: int) -> ast.Call | None:
    """Return the call that starts there, also in Cython, whose casts are left out."""
    for end in re.finditer(r"\)", text[start : start + 3000]):
        piece = re.sub(r"<\w+ \*?> ?|<\w+>", "", text[start : start + end.end()])
        try:
            found = ast.parse(piece, mode="eval").body
        except SyntaxError:
            continue
        if isinstance(found, ast.Call):
            return found
    return None


def texts(node: ast.expr) -> list[tuple[str, ...]]:
    """Return what is constant in each text that an argument may be."""
    match node:
        case ast.Constant(value=str(text)):
            return [(text,)]
        case ast.JoinedStr(values=values):
            return [tuple(value.value for value in values if isinstance(value, ast.Constant))]
        case ast.IfExp(body=one, orelse=other):
            return texts(one) + texts(other)
    return []


def messages() -> list[Message]:
    """Return all, by file and line; some lines have several."""
    found: dict[Any, Message] = {}
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix not in (".py", ".pyx"):
            continue
        text = path.read_text()
        for start in START.finditer(text):
            line = text.count("\n", 0, start.start()) + 1
            call = call_at(text, start.start())
            for argument in call.args if call else []:
                for parts in texts(argument):
                    if " " in "".join(parts).strip():
                        file = str(path.relative_to(PACKAGE))
                        found.setdefault((file, parts), Message(file, line, parts))
    return list(found.values())

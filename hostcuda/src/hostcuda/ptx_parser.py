"""Read PTX, the text that NVRTC makes of CUDA C.

Source: PTX ISA, "Syntax" and "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class Unsupported(Exception):  # noqa: N818 (it says what it is)
    """The host cannot run this; the message says what, in which kernel, and where."""


def unknown(text: str, where: str = "") -> Unsupported:
    """Return the refusal of a text that is no PTX, or that is newer than this."""
    return Unsupported(f"hostcuda: PTX that is not known: {' '.join(text.split())[:60]!r}{where}")


BYTES = {"pred": 1, "f16x2": 4, "bf16x2": 4, "bf16": 2}
SPACES = "reg", "param", "local", "shared", "global", "const", "tex"
_IGNORED = {"visible", "weak", "common", "func", "entry", "noreturn", "extern", "attribute"}


def size_of(kind: str) -> int:
    """Return the bytes of a type such as u32."""
    if kind in BYTES:
        return BYTES[kind]
    digits = re.search(r"\d+", kind)
    return int(digits[0]) // 8 if digits else 0


@dataclass
class Variable:
    """A variable, register or parameter."""

    name: str
    space: str
    kind: str
    count: int | None = None  # of elements; None: it is no array
    align: int = 0
    values: list[str] = field(default_factory=list)
    lanes: int = 1  # of a vector
    is_extern: bool = False
    code: str = ""  # its name in C

    @property
    def bytes(self) -> int:
        """Return its size."""
        return size_of(self.kind) * self.lanes * (1 if self.count is None else self.count)


class Scope(dict[str, Variable]):
    """The names between two braces."""

    def __init__(self, outer: Scope | None = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> Variable | None:
        """Look a name up, in the outer scopes too."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope:
                return scope[name]
            scope = scope.outer
        return None


@dataclass
class Instruction:
    """One instruction, or a label (then `name` is empty)."""

    guard: str  # "%p1", "!%p1", or ""
    name: str
    modifiers: list[str]
    operands: list[str]
    line: int
    file: int  # 0: the kernel's own source
    scope: Scope
    label: str = ""  # in C

    @property
    def opcode(self) -> str:
        """Return it with its modifiers."""
        return ".".join([self.name, *self.modifiers])

    @property
    def own_line(self) -> int:
        """Return the line of the kernel's own source; 0 for one of a header."""
        return 0 if self.file else self.line

    @property
    def text(self) -> str:
        """Return the statement."""
        return f"{self.opcode} {', '.join(self.operands)}"


@dataclass
class Function:
    """A kernel, or a function that kernels call."""

    name: str
    is_entry: bool
    results: list[Variable]
    parameters: list[Variable]
    body: list[Instruction] | None = None  # None: only declared
    threads: int = 1024  # that a block may have
    variables: list[Variable] = field(default_factory=list)  # of all scopes
    shared: list[Variable] = field(default_factory=list)
    targets: dict[str, list[str]] = field(default_factory=dict)  # of brx.idx
    labels: dict[tuple[int, str], str] = field(default_factory=dict)  # in C, by id() of the scope

    def label(self, scope: Scope | None, name: str) -> str:
        """Return a label in C; one in braces hides others of its name."""
        while scope is not None:
            if (id(scope), name) in self.labels:
                return self.labels[id(scope), name]
            scope = scope.outer
        raise Unsupported(f"hostcuda: PTX's label {name} is not defined (in {self.name})")


@dataclass
class Module:
    """What a PTX text declares."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)


def split(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    if "[" not in text and "{" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


_SPACE = re.compile(r"\s+")
_LINE = re.compile(r"\.(loc|file|version|target|address_size)\b([^\n]*)\n?")
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)\s*")
_LOC = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_SOURCE = re.compile(r'\.file\s+(\d+)\s+"(?:[^"\n]*/)?kernel\.cu"')  # as `_nvrtc.py` calls it
_INSTRUCTION = re.compile(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([a-z]\w*)((?:\.[\w:]+)*)\s*", re.A)
_COMMENT = re.compile(r'("[^"\n]*")|//[^\n]*|/\*.*?\*/', re.S)
_END = re.compile(r"[;{]")
_HEADER = re.compile(r"[^;{]*")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(r"\1", text.rstrip("\0"))
        self.at = self.begun = 0
        self.module = Module()
        self.line = self.file = 0
        found = _SOURCE.search(self.text)
        self.source = int(found[1]) if found else 1
        self.inlined: dict[tuple[int, ...], tuple[int, ...]] = {}  # where places of a function are
        self.count = 0

    def skip(self) -> bool:
        """Skip white space; answer whether there is more."""
        found = _SPACE.match(self.text, self.at)
        if found:
            self.at = found.end()
        self.begun = self.at
        return self.at < len(self.text)

    def statement(self) -> str:
        """Read up to the next semicolon."""
        end = self.text.find(";", self.at)
        if end < 0:
            raise Unsupported(
                f"hostcuda: PTX that ends in a statement: {self.text[self.at :][:60]!r}"
            )
        found = self.text[self.at : end]
        self.at = end + 1
        return found.strip()

    def directive(self) -> bool:
        """Read a directive that ends with its line."""
        found = _LINE.match(self.text, self.at)
        if not found:
            return False
        self.at = found.end()
        kind, rest = found[1], found[2]
        if kind == "loc":
            self.place(_LOC.match(rest), _INLINED.search(rest))
        elif kind == "file":
            number, name = re.match(r'\s*(\d+)\s+"([^"]*)"', rest).groups()  # type: ignore[union-attr]
            self.module.files[int(number)] = name
        elif (
            kind == "target" and (target := re.match(r"\s*sm_(\d+)", rest)) and int(target[1]) > 90
        ):
            raise Unsupported(
                f"hostcuda: PTX for sm_{target[1]} is not supported: devices are sm_90"
            )
        elif kind == "address_size" and rest.strip() != "64":
            raise Unsupported(f"hostcuda: PTX's .address_size {rest.strip()} is not supported")
        return True

    def place(self, own: re.Match[str] | None, outer: re.Match[str] | None) -> None:
        """Remember a line: that of the kernel's own source, where what a header has is inlined."""
        if not own:
            return
        place = first = (*map(int, own.groups()),)
        self.inlined.pop(place, None)
        if outer:
            self.inlined[place] = (*map(int, outer.groups()),)
        for _ in self.inlined:  # there may be circles
            if place[0] == self.source:
                break
            place = self.inlined.get(place, place)
        if place[0] != self.source or not place[1]:
            place = first
        if place[1]:
            self.file, self.line = place[0] if place[0] != self.source else 0, place[1]

    def parse(self) -> Module:
        while self.skip():
            if self.directive():
                continue
            if self.text.startswith(".section", self.at):
                self.at = self.text.index("}", self.at) + 1
                continue
            head = _HEADER.match(self.text, self.at)[0]  # type: ignore[index]
            words = re.split(r"[\s(]+", head, maxsplit=6)
            if ".entry" in words or ".func" in words:
                self.function(head)
            elif head.startswith(".alias"):
                alias, target = split(self.statement()[6:])
                self.module.aliases[alias] = target
            elif head.startswith(".pragma"):
                self.statement()
            elif head.startswith("."):
                for variable in self.declare(self.statement()):
                    known = self.module.variables.get(variable.name)
                    if not known or known.is_extern:
                        self.module.variables[variable.name] = variable
                    elif not variable.is_extern:
                        self.twice(variable.name, words)
            else:
                raise unknown(head or self.text[self.at :])
        return self.module

    def declare(self, text: str) -> Iterator[Variable]:
        """Read a declaration of variables."""
        text, _, values = text.partition("=")
        space = kind = ""
        align, lanes, is_extern = 0, 1, False
        while found := re.match(r"\s*\.([\w:]+)(?:\s*\([^)]*\))?", text):
            word = found[1]
            text = text[found.end() :]
            if word in SPACES:
                space = word
            elif word == "align":
                number = re.match(r"\s*(\d+)", text)
                assert number
                align, text = int(number[1]), text[number.end() :]
            elif word in ("v2", "v4"):
                lanes = int(word[1])
            elif word == "extern":
                is_extern = True
            elif word == "ptr":  # of a parameter: where it points
                text = re.sub(r"^\s*(\.(?!align)\w+)?\s*(\.align\s+\d+)?", "", text)
            elif word not in _IGNORED:
                kind = word
        for name in split(text):
            found = re.match(r"([\w$%]+)\s*(?:<(\d+)>)?\s*((?:\[[^\]]*\]\s*)*)$", name)
            if not found:
                raise unknown(text)
            count = None
            for extent in re.findall(r"\[([^\]]*)\]", found[3]):
                count = (1 if count is None else count) * int(extent or "0", 0)
            align_here = align or size_of(kind) * lanes
            variable = Variable(found[1], space, kind, count, align_here, [], lanes, is_extern)
            if values:
                variable.values = split(values.strip().replace("{", "").replace("}", ""))
            if found[2]:  # a family of registers
                for number in range(int(found[2])):
                    yield Variable(f"{found[1]}{number}", space, kind, None, align_here)
            else:
                yield variable

    def function(self, head: str) -> None:
        """Read a kernel or a function."""
        self.at += len(head)
        is_entry = ".entry" in head
        found = re.search(r"\.(?:entry|func)\s*(\([^)]*\))?\s*([\w$]+)\s*(\(.*?\))?", head, re.S)
        if not found:
            raise unknown(head)
        cluster = re.search(r"\.reqnctapercluster\s+([\d,\s]+)", head)
        sizes = cluster[1].split(",") if cluster else ["0"] * (".explicitcluster" in head)
        if any(int(size) != 1 for size in sizes):
            raise Unsupported(f"hostcuda: clusters of blocks are not supported (in {found[2]})")
        lists = [
            [v for part in split((text or "()").strip()[1:-1]) for v in self.declare(part)]
            for text in (found[1], found[3])
        ]
        if any(v.space == "reg" for v in (*lists[0], *lists[1])):
            raise Unsupported(
                f"hostcuda: parameters in registers are not supported (in {found[2]})"
            )
        function = Function(found[2], is_entry, *lists)
        if most := re.search(r"\.(?:max|req)ntid\s+([\d,\s]+)", head):
            function.threads = math.prod(map(int, most[1].split(",")))
        self.line = self.file = 0
        self.inlined = {}
        if self.text[self.at] == "{":
            function.body = []
            self.body(function)
        else:
            self.at += 1
        known = self.module.functions.get(function.name)
        if not known or known.body is None:
            self.module.functions[function.name] = function
        elif function.body is not None:
            self.twice(function.name, head.split())

    def twice(self, name: str, words: list[str]) -> None:
        """Refuse what several linked texts define."""
        if not {".weak", ".common"} & {*words}:
            raise Unsupported(f"hostcuda: PTX that defines {name} twice is not supported")

    def body(self, function: Function) -> None:
        """Read a function's statements."""
        scope: Scope | None = None
        body = function.body
        assert body is not None
        while self.skip():
            letter = self.text[self.at]
            if letter == "{":
                self.at += 1
                scope = Scope(scope)
                if scope.outer is None:
                    scope.update({v.name: v for v in (*function.results, *function.parameters)})
            elif letter == "}":
                self.at += 1
                assert scope is not None
                scope = scope.outer
                if scope is None:
                    return
            elif letter == ";":
                self.at += 1
            else:
                assert scope is not None
                self.item(function, scope, body)
        raise Unsupported(f"hostcuda: PTX that ends in a function (in {function.name})")

    def item(self, function: Function, scope: Scope, body: list[Instruction]) -> None:
        """Read a label, a declaration or an instruction."""
        if self.directive():
            return
        label = _LABEL.match(self.text, self.at)
        if label:
            self.at = label.end()
            if self.text.startswith((".callprototype", ".calltargets"), self.at):
                self.statement()
            elif self.text.startswith(".branchtargets", self.at):
                function.targets[label[1]] = split(self.statement()[14:])
            else:
                self.count += 1
                code = f"l{self.count}"
                function.labels[id(scope), label[1]] = code
                body.append(Instruction("", "", [], [], self.line, self.file, scope, code))
            return
        text = self.statement()
        if text.startswith("."):
            if text.startswith((".pragma", ".branchtargets")):
                return
            for variable in self.declare(text):
                self.count += 1
                variable.code = f"v{self.count}"
                scope[variable.name] = variable
                (function.shared if variable.space == "shared" else function.variables).append(
                    variable
                )
            return
        found = _INSTRUCTION.match(text)
        if not found:
            raise unknown(text, f" (in {function.name})")
        guard = found[1] + found[2] if found[2] else ""
        modifiers = found[4].split(".")[1:] if found[4] else []
        body.append(
            Instruction(
                guard, found[3], modifiers, split(text[found.end() :]), self.line, self.file, scope
            )
        )


def _linked(text: str) -> str:
    """Rename what is visible in one of several texts alone, such as their strings."""
    parts = re.split(r"^(?=\.version\b)", text, flags=re.M)
    for n, part in enumerate(parts[2:], 2):
        heads = re.findall(r"^\.(?:global|const|shared|func)\b[^\[=;{]*", part, re.M)
        words = (re.findall(r"[^.\w$]([\w$]+)", re.sub(r"\([^)]*\)?", "", h)) for h in heads)
        for name in {found[-1] for found in words}:
            parts[n] = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])", f"{name}${n}", parts[n])
    return "".join(parts)


def parse(text: str) -> Module:
    """Parse PTX, or several texts that are linked.

    Raises
    ------
    Unsupported
        For what is not known.
    """
    parser = _Parser(_linked(text))
    try:
        return parser.parse()
    except Unsupported:
        raise
    except Exception:
        raise unknown(re.split(r"[;\n]", parser.text[parser.begun :])[0]) from None

"""nvcc's options, translated for NVRTC."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import warn

# nvcc's options with a value that NVRTC spells differently, or that are read here.
_WITH_VALUE = {
    "-D": "-D",
    "-U": "-U",
    **dict.fromkeys(("-std", "--std"), "-std="),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), "--ptxas-options="),
    **dict.fromkeys(("-I", "--include-path", "-isystem", "--system-include"), "folder"),
    **dict.fromkeys(("-arch", "--gpu-architecture"), "arch"),
    **dict.fromkeys(("-code", "--gpu-code", "-gencode", "--generate-code"), "code"),
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), "ignored"),
    **dict.fromkeys(("-ccbin", "--compiler-bindir", "-e", "--entries"), "ignored"),
}
# Options that NVRTC does not need: its own defaults, and options for host code.
_NEEDLESS = re.compile(
    r"-O\d?|-g|-m64|--?expt-relaxed-constexpr|(--expt|-expt|-)-extended-lambda"
    r"|-Wno-deprecated-gpu-targets|--?allow-unsupported-compiler"
)
# NVRTC accepts these linker options, but the code could not be loaded.
_REFUSED = re.compile(
    r"(-rdc|--relocatable-device-code)(=true)?|-d[cw]|--device-[cw]|-dlto|--dlink-time-opt"
)


def translate(options: Iterable[str]) -> tuple[str | None, list[str], list[str]]:
    """Translate nvcc's options: return the architecture, header folders and NVRTC's options."""
    arch: list[str] = []
    code: list[str] = []
    folders, rest = [], []
    pending = iter(options)
    for option in pending:
        name, separator, value = option.partition("=")
        if option[:2] in ("-D", "-U", "-I") and len(option) > 2:
            name, separator, value = option[:2], "=", option[2:].removeprefix("=")
        kind = _WITH_VALUE.get(name)
        if kind is None:
            if _REFUSED.fullmatch(option):
                raise ValueError(
                    f"SourceModule: the option {option} means nothing to NVRTC: it is for the "
                    "linker; leave it out, or compile with backend='nvcc' or "
                    "pycuda.compiler.DynamicSourceModule"
                )
            if option in ("-res-usage", "--resource-usage"):
                _ignore(option)
            elif not _NEEDLESS.fullmatch(option):
                rest.append(option)
            continue
        value = (value if separator else next(pending, "")).strip()
        if not value:
            raise ValueError(
                f"SourceModule: the option {name} has no value; give it one, in the same item "
                "of the list or in the next"
            )
        if kind == "ignored":
            _ignore(f"{name} {value}")
        elif kind == "folder":
            folders.append(value)
        elif kind == "arch":
            arch += [value] if value != "native" else []
        elif kind == "code":  # -gencode arch=compute_90,code=sm_90 names it last
            code += re.findall(r"(?:sm|compute)_\w+", value.rpartition("code=")[2]) or [value]
        elif kind == "--ptxas-options=":
            rest += [kind + part for part in re.split(r"[,\s]+", value)]
        else:
            rest.append(kind + value)
    wanted = set(code or arch[-1:])  # nvcc takes the last
    if len(wanted) > 1:
        raise ValueError(
            f"SourceModule: code for {' and '.join(sorted(wanted))} is asked for; NVRTC compiles "
            "for one architecture: name one, or none for the current device's"
        )
    return wanted.pop() if wanted else None, folders, rest


def _ignore(option: str) -> None:
    warn(f"the option {option} has no meaning for NVRTC: it is ignored")

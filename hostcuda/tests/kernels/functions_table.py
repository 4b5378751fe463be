"""Compare CUDA's mathematical functions on the host driver with a GPU's, on a million inputs.

On a machine with a GPU, `python functions_table.py --save FILE` keeps what the GPU gives, and
`python -m hostcuda functions_table.py --compare FILE` prints a table of the functions that differ.
The inputs are bit patterns from the whole range: also infinite, subnormal and not a number. Of
halves, all 65,536 are tried.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

COUNT = 1 << 20
ONE = """
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 exp10 expm1 log log2 log10
    log1p sqrt rsqrt cbrt rcbrt erf erfc erfinv erfcinv erfcx normcdf normcdfinv lgamma tgamma j0 j1
    y0 y1 sinpi cospi rint round trunc ceil floor logb cyl_bessel_i0 cyl_bessel_i1
"""
TWO = "pow atan2 fmod hypot remainder fdim nextafter copysign fmax fmin"
INTRINSIC = "__sinf __cosf __expf __exp10f __logf __log2f __log10f __tanf __frsqrt_rn"
ROUNDED = "__frcp_{} __fsqrt_{}"
HALF = "hsin hcos htanh hexp hexp2 hexp10 hlog hlog2 hlog10 hrcp hsqrt hrsqrt hrint hfloor"
PAIRS = {"x / y": "x / y", "x * y + x": "x * y + x", "fma": "fma(x, y, x)"}


def expressions(kind: str) -> dict[str, str]:
    """Return names and expressions of x and y in float, double, half or fast float."""
    if kind == "half":
        return {name: f"{name}(x)" for name in HALF.split()} | {"x / y": "x / y", "x + y": "x + y"}
    end = "f" if "float" in kind else ""
    found = {f"{name}{end}": f"{name}{end}(x)" for name in ONE.split()}
    found |= {f"{name}{end}": f"{name}{end}(x, y)" for name in TWO.split()}
    found |= {name: text.replace("fma", f"fma{end}") for name, text in PAIRS.items()}
    if kind == "float":
        rounded = [ROUNDED.format(*[mode] * 2).split() for mode in ("rn", "rz", "ru", "rd")]
        names = [*INTRINSIC.split(), *(name for names in rounded for name in names)]
        found |= {name: f"{name}(x)" for name in names}
        found |= {name: f"{name}(x, y)" for name in ("__fdividef", "__powf")}
    elif kind == "double":
        rounded = [f"__d{op}_{mode}" for op in ("rcp", "sqrt") for mode in ("rn", "rz", "ru", "rd")]
        found |= {name: f"{name}(x)" for name in rounded}
    return found


KINDS = {  # the type, its integers, options
    "float": ("float", "f4", "u4", ()),
    "fast float": ("float", "f4", "u4", ("--use_fast_math",)),
    "double": ("double", "f8", "u8", ()),
    "half": ("__half", "f2", "u2", ()),
}


def inputs(kind: str) -> tuple[Any, Any]:
    """Return two arrays of bit patterns, each the other's in another order."""
    _, dtype, bits, _ = KINDS[kind]
    number = np.arange(1 << 16 if kind == "half" else COUNT, dtype=np.uint64)
    noise = number * np.uint64(2654435761)
    if bits == "u4":
        number = number << np.uint64(12) | noise & np.uint64(4095)
    elif bits == "u8":
        number = (number << np.uint64(44)) + noise
    x = number.astype(bits).view(dtype)
    return x, np.roll(x, 12345)


def results(kind: str) -> Iterator[tuple[str, Any]]:
    """Run each function; give its name and what it returned."""
    name, _, _, options = KINDS[kind]
    found = expressions(kind)
    source = ["#include <cuda_fp16.h>"] * (kind == "half")
    for number, text in enumerate(found.values()):
        source.append(
            f'extern "C" __global__ void k{number}(const {name} *a, const {name} *b, {name} *to) {{'
            f"int i = blockIdx.x * 256 + threadIdx.x; {name} x = a[i], y = b[i]; to[i] = {text}; }}"
        )
    module = cupy.RawModule(code="\n".join(source), options=options)
    x, y = map(cupy.asarray, inputs(kind))
    to = cupy.empty_like(x)
    for number, function in enumerate(found):
        module.get_function(f"k{number}")((x.size // 256,), (256,), (x, y, to))
        yield function, to.get()


def ordinals(values: Any, bits: str) -> Any:
    """Return integers that count the floats from zero on, in both directions."""
    found = values.view(bits).astype(np.int64 if bits != "u8" else object)
    sign = 1 << (8 * values.itemsize - 1)
    return np.where(found < sign, found, sign - found)


def difference(kind: str, ours: Any, theirs: Any) -> str:
    """Say how far results are from a GPU's; "" if all bits are equal, but for NaN's."""
    x, _ = inputs(kind)
    bits = KINDS[kind][2]
    both_nan = np.isnan(ours) & np.isnan(theirs)
    differ = (ours.view(bits) != theirs.view(bits)) & ~both_nan
    if not differ.any():
        return ""
    at = differ & np.isfinite(ours) & np.isfinite(theirs)
    ulps = np.abs(ordinals(ours[at], bits) - ordinals(theirs[at], bits)) if at.any() else [0]
    near = at & (np.abs(x) <= 20)
    error = np.abs(ours[near].astype("f8") - theirs[near].astype("f8")).max() if near.any() else 0
    other = int((differ & ~at).sum())  # one of both is infinite, or not a number
    first = x[differ][0]
    return (
        f"{int(differ.sum())} of {x.size} | {int(max(ulps))} | {float(error):.2g} | {other} | "
        f"{first!r}: {ours[differ][0]!r}, not {theirs[differ][0]!r}"
    )


def main() -> None:
    """Save a GPU's results, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--compare", metavar="FILE")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    if options.save:
        found = {f"{k}: {name}": to for k in options.kinds for name, to in results(k)}
        np.savez(options.save, **found)
        return
    theirs = np.load(options.compare)
    print("| function | differ | most ulps | most, if abs(x) <= 20 | infinite or NaN | first |")
    print("|---|---|---|---|---|---|")
    equal = 0
    for kind in options.kinds:
        for name, ours in results(kind):
            text = difference(kind, ours, theirs[f"{kind}: {name}"])
            equal += not text
            if text:
                print(f"| {kind}: {name} | {text} |", flush=True)
    print(f"\n{equal} functions are equal; NVRTC {cupy.cuda.nvrtc.getVersion()}")


if __name__ == "__main__":
    main()

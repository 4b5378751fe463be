"""Each function of PyCUDA's arrays, with arrays of all layouts, dtypes and kinds.

A call is right if its result is that of the same call with arrays in C order, and NumPy's where the
call moves or views elements.  Or it is refused.  As a program, this judges all calls, or a sample.
"""

import argparse
import collections
import copy
import functools
import itertools
import operator
import pickle
import random
import warnings

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import cumath, gpuarray
from pycuda.gpuarray import GPUArray
from pycuda.scan import InclusiveScanKernel

import bridge
import bridge.autoinit
from bridge.interop import patches

SHAPE = 2, 3, 4
SHAPES = {"empty": (2, 0, 4), "0-d": (), "row": (4,)}
LAYOUTS = "C", "Fortran", "sliced", "reversed", "transposed", "broadcast", *SHAPES
G, X, N = "GPUArray", "CuPy", "NumPy"


def values(layout, char, seed):
    """Return what an array of a layout has, in C order."""
    shape = SHAPES.get(layout, SHAPE)
    numbers = np.random.default_rng(seed).permutation(24)[: int(np.prod(shape))].reshape(shape)
    if layout == "broadcast":
        numbers = np.broadcast_to(numbers[:1], shape)
    numbers = (numbers + 1) % (2 if char == "?" else 23)
    numbers = numbers * (1 + 0.5j) if char == "F" else numbers
    return np.array(numbers, char, order="C")


def laid_out(h, layout, xp=np):
    """Return an array of NumPy or CuPy with the values of `h`."""
    if layout == "Fortran":
        return xp.array(h, order="F")
    if layout == "sliced":
        wide = xp.zeros((2, 6, 4), h.dtype)
        wide[:, ::2] = xp.asarray(h)
        return wide[:, ::2]
    if layout == "reversed":
        return xp.array(np.ascontiguousarray(h[::-1]))[::-1]
    if layout == "transposed":
        return xp.array(np.ascontiguousarray(h.transpose(1, 0, 2))).transpose(1, 0, 2)
    if layout == "broadcast":
        return xp.broadcast_to(xp.array(h[:1]), h.shape)
    return xp.array(h, order="C")


def made(h, layout, kind=G):
    if kind != G:
        return laid_out(h, layout, np if kind == N else cupy)
    if layout == "empty":
        return GPUArray(h.shape, h.dtype)
    if layout in ("sliced", "reversed", "transposed"):
        return bridge.as_pycuda(laid_out(h, layout, cupy))
    return gpuarray.to_gpu(laid_out(h, layout))


def on_host(result):
    """Return the arrays and numbers of a result as a list of arrays."""
    if isinstance(result, tuple | list):
        return [one for item in result for one in on_host(item)]
    if isinstance(result, GPUArray):
        result = bridge.as_cupy(result)
    return [result.get() if isinstance(result, cupy.ndarray) else np.asarray(result)]


def difference(got, wanted, dtypes=True):
    if len(got) != len(wanted):
        return f"{len(got)} results for {len(wanted)}"
    for one, other in zip(got, wanted, strict=True):
        if one.shape != other.shape:
            return f"shape {one.shape} for {other.shape}"
        if dtypes and one.dtype != other.dtype:
            return f"{one.dtype} for {other.dtype}"
        is_number = one.dtype.kind in "biufc"
        equal = np.isclose(one, other, 1e-4, 1e-5, equal_nan=True) if is_number else one == other
        if not np.all(equal):
            return f"{one.ravel()[:4]} for {other.ravel()[:4]}"
    return ""


# ---- calls that compute: with operands in C order, they are PyCUDA's own -------------------------


def function(target, name, *more):
    """Return a function as it is when it is called, with patches or without."""
    return lambda *operands: getattr(target, name)(*operands, *more)


def method(name, *more):
    return lambda a, *operands: getattr(a, name)(*operands, *more)


def written(call):
    """Return a call that also returns its first operand, which `call` writes."""
    return lambda a, *others: (call(a, *others), a)


def with_out(target, name, times=1):
    """Return a call with an array, which is given `times` times, and `out`."""
    return lambda a, out: (getattr(target, name)(*[a] * times, out=out), out)


def indices(numbers=(5, 0, 3, 23)):
    return gpuarray.to_gpu(np.array(numbers, np.uint32))


FLOATS = "fabs ceil floor exp log log10 sqrt sin cos tan asin acos atan sinh cosh tanh"
OPERATORS = "add sub mul truediv pow eq ne lt le gt ge"
WRITING = "iadd isub imul itruediv ipow"
PAIRED = "maximum minimum logical_and logical_or"
SINGLE = "logical_not sum any all max min"
METHODS = "conj conjugate copy reverse __neg__ __abs__"
SUBSETS = "subset_sum subset_max subset_min"
ARITHMETIC = "add sub mul truediv iadd isub imul itruediv"  # PyCUDA's take an array without axes
NUMBERS = 2, 0, 0.5, np.float64(2.5), np.int32(3), np.complex64(1j)

ONE = {name: function(cumath, name) for name in (*FLOATS.split(), "frexp", "modf")}
ONE |= {name: function(gpuarray, name) for name in SINGLE.split()}
ONE |= {name: method(name) for name in METHODS.split()}
ONE |= {f"{name}(a, 2)": function(gpuarray, name, 2) for name in PAIRED.split()}
ONE |= {f"a {name} 2": written(function(operator, name, 2)) for name in WRITING.split()}
ONE |= {f"astype {char}": method("astype", np.dtype(char)) for char in "fdiF"}
for _name in OPERATORS.split():
    for _number in NUMBERS:
        ONE[f"a {_name} {_number!r}"] = function(operator, _name, _number)
        ONE[f"{_number!r} {_name} a"] = functools.partial(getattr(operator, _name), _number)
for _name in SUBSETS.split():
    ONE[_name] = lambda a, name=_name: getattr(gpuarray, name)(indices(), a)
ONE["take"] = lambda a: gpuarray.take(a, indices())
ONE["fill"] = written(method("fill", 7))
ONE["conj out"] = lambda a: a.conj(out=gpuarray.empty_like(a))
ONE["real"], ONE["imag"] = operator.attrgetter("real"), operator.attrgetter("imag")

IN_PLACE = {name: written(getattr(operator, name)) for name in WRITING.split()}
TWO = IN_PLACE | {name: getattr(operator, name) for name in OPERATORS.split()}
TWO |= {name: function(gpuarray, name) for name in (*PAIRED.split(), "dot")}
TWO |= {name: function(cumath, name) for name in ("fmod", "ldexp")}
TWO["where"] = lambda a, b: gpuarray.where(a, a, b)
TWO["if_positive"] = lambda a, b: gpuarray.if_positive(a, a, b)
TWO["mul_add"] = lambda a, b: a.mul_add(2, b, 3)
TWO["subset_dot"] = lambda a, b: gpuarray.subset_dot(indices(), a, b)

OUT = {f"{name} out": with_out(cumath, name) for name in FLOATS.split()}
OUT |= {f"{name} out": with_out(gpuarray, name, 2) for name in PAIRED.split()}
OUT |= {f"{name} out": with_out(gpuarray, name, 3) for name in ("where", "if_positive")}
OUT["mul_add out"] = lambda a, out: (a.mul_add(2, a, 3, out=out), out)
OF_GPUARRAYS = {*IN_PLACE, "mul_add", "mul_add out"}  # methods, of the first operand


def computed():
    """Yield a name, the call, and the layouts, dtypes and kinds of its operands."""
    for name, call in ONE.items():
        kinds = (G,) if " " in name or hasattr(GPUArray, name) else (G, X)
        for layout, char, kind in itertools.product(LAYOUTS, "fdiF?", kinds):
            yield name, call, [(layout, char, kind)]
    dtypes = "ff", "ii", "fi", "if", "Ff", "dd"
    for calls, chars in (TWO, dtypes), (OUT, ["ff"]):
        for name, call in calls.items():
            for one, other, (char, second), left, right in itertools.product(
                LAYOUTS, LAYOUTS, chars, (G, X), (G, X)
            ):
                by_cupy = right == X and name in OPERATORS.split()
                if left == G or not (name in OF_GPUARRAYS or by_cupy):
                    yield name, call, [(one, char, left), (other, second, right)]


def result_of(call, operands):
    """Return the operands on the host, and what a call with them gives, or its error."""
    hosts = [values(layout, char, seed) for seed, (layout, char, _) in enumerate(operands)]
    try:
        given = [made(h, o[0], o[2]) for h, o in zip(hosts, operands, strict=True)]
        return hosts, on_host(call(*given))
    except Exception as error:
        return hosts, error


def judge_computed(name, call, operands):
    hosts, got = result_of(call, operands)
    if isinstance(got, Exception):
        return got
    if any(h.size == 0 for h in hosts):
        return "" if all(one.size <= 1 for one in got) else f"{got} of no elements"
    shape = np.broadcast_shapes(*(h.shape for h in hosts))
    result = hosts[:1] if name in IN_PLACE else hosts[-1:] if name in OUT else []
    if any(h.shape != shape for h in (hosts if name == "dot" else result)):
        return f"computed with the shapes {[h.shape for h in hosts]}"
    if name not in ARITHMETIC.split():
        hosts = [np.broadcast_to(h, shape) for h in hosts]
    by_cupy = name in f"{OPERATORS} {WRITING}".split() and any(one[2] == X for one in operands)
    kinds = [one[2] if by_cupy else G for one in operands]
    return difference(got, on_host(call(*map(made, hosts, "CC", kinds))))


# ---- calls that move and view elements: as in NumPy ----------------------------------------------

S = slice
ALL = S(None)
INDICES = {
    "...": ..., ":": ALL, "1": 1, "-1": -1, ":, 1": (ALL, 1), "::-1": S(None, None, -1),
    ":, ::2": (ALL, S(None, None, 2)), "None": None, "..., 0": (..., 0), "1:0": S(1, 0),
    ":, 2:1": (ALL, S(2, 1)), "5:": S(5, None), ":, 5:2": (ALL, S(5, 2)), "1:1": S(1, 1),
    ":, -1:0:-1": (ALL, S(-1, 0, -1)), ":, 0:2:-1": (ALL, S(0, 2, -1)), "1, 2, 3": (1, 2, 3),
    ":, -3:-1": (ALL, S(-3, -1)), "0, ..., 1:2": (0, ..., S(1, 2)), "7": 7,
    "1, 2, 3, 0": (1, 2, 3, 0), ":, 2:5": (ALL, S(2, 5)), "-9:-8": S(-9, -8),
}  # fmt: skip


def doubled(a):
    return a * np.float32(2)


VIEWS = {
    "get": (method("get"), np.copy),
    "copy.copy": (copy.copy, np.copy),
    "deepcopy": (copy.deepcopy, np.copy),
    "pickle": (lambda a: pickle.loads(pickle.dumps(a)), np.copy),
    "str": (str, str),
    "ravel": (method("ravel"), np.ravel),
    "reshape": (method("reshape", 6, 4),) * 2,
    "reshape -1": (method("reshape", (-1, 2)),) * 2,
    "reshape F": (lambda a: a.reshape(4, 6, order="F"),) * 2,
    "reshape own": (lambda a: a.reshape(a.shape),) * 2,
    "gpuarray.reshape": (lambda a: gpuarray.reshape(a, a.size), np.ravel),
    "T": (operator.attrgetter("T"),) * 2,
    "T * 2": (lambda a: doubled(a.T),) * 2,
    "T + copy": (lambda a: a.T + a.T.copy(),) * 2,
    "transpose": (method("transpose", (1, 0, 2)),) * 2,
    "transpose twice": (method("transpose", (0, 0, 0)),) * 2,
    "squeeze": (lambda a: a[:1].squeeze(),) * 2,
    "squeeze nothing": (lambda a: a[1:1].squeeze(),) * 2,
    "iter": (list,) * 2,
    "bool": (lambda a: bool(a[0, 0, 0]),) * 2,
    "view": (lambda a: a[0].view(np.int16),) * 2,
    "a @ a.T": (lambda a: a[0] @ a[0].T,) * 2,
    "same place": (lambda a: operator.iadd(a[0], a[0]),) * 2,
}


def moved():
    """Yield a name, the call, NumPy's, and the operands."""
    for char, one in itertools.product("fF", LAYOUTS):
        a = one, char, G
        for name, (call, numpys) in VIEWS.items():
            yield name, call, numpys, [a]
        for text, index in INDICES.items():
            yield from indexed(f"a[{text}]", index, a)
        for name, keywords, kind in itertools.product(
            ("zeros_like", "ones_like", "empty_like"), ({}, {"dtype": "d"}, {"order": "F"}), (G, X)
        ):
            like = functools.partial(filled_like, name, keywords)
            yield f"{name} {keywords}", like, like, [(one, char, kind)]
        for kind in X, N:
            yield "to_gpu", gpuarray.to_gpu, np.copy, [(one, char, kind)]
        for other, kind in itertools.product(LAYOUTS, (G, X, N)):
            b = other, char, kind
            yield "set", written(method("set")), lambda a, b: (None, b), [a, b]
            yield "set_async", set_async, lambda a, b: b, [a, b]
            yield "get(b)", lambda a, b: (a.get(b), b)[1], lambda a, b: a, [a, b]
            yield "get_async", get_async, lambda a, b: a, [a, b]
            if kind != N:
                yield "multi_put", multi_put, lambda a, b: a.ravel()[::-1].reshape(b.shape), [a, b]
                for left, axis, name in itertools.product(
                    (G, X), range(3), ("concatenate", "stack")
                ):
                    call = functools.partial(joined, name, axis)
                    yield f"{name} {axis}", call, call, [(one, char, left), b]
    for layout, kind, out in itertools.product(LAYOUTS, (G, X), (None, 1, 2)):
        call = functools.partial(scanned, out)
        yield f"scan {out}", call, lambda h: np.cumsum(h[0, 0], dtype="f"), [(layout, "f", kind)]


def indexed(text, index, a):
    at = operator.itemgetter(index)
    for name, call in (
        (text, at),
        (f"{text}.copy()", lambda a: at(a).copy()),
        (f"{text} * 2", lambda a: doubled(at(a))),
        (f"{text} = 3", lambda a: (operator.setitem(a, index, 3), a)),
        (f"{text} += itself", lambda a: operator.iadd(at(a), at(a).copy())),
    ):
        yield name, call, call, [a]
    yield f"{text}.get()", lambda a: at(a).get(), at, [a]
    for layout, kind in itertools.product(("C", "Fortran", "reversed"), (G, X, N)):

        def assign(a, b, layout=layout, kind=kind):
            part = at(b)
            layout = layout if part.ndim == 3 else "C"
            a[index] = part if isinstance(a, np.ndarray) else made(part, layout, kind)
            return a

        yield f"{text} = {kind} {layout}", assign, assign, [a, ("C", a[1], N)]


def filled_like(name, keywords, a):
    library = np if isinstance(a, np.ndarray) else gpuarray
    keywords = {key: np.dtype(v) if key == "dtype" else v for key, v in keywords.items()}
    result = getattr(library, name)(a, **keywords)
    result.fill(3)
    return result


def joined(name, axis, *arrays):
    library = np if isinstance(arrays[0], np.ndarray) else gpuarray
    return getattr(library, name)(arrays, axis)


def set_async(a, b):
    stream = drv.Stream()
    a.set_async(b, stream)
    stream.synchronize()
    return a


def get_async(a, b):
    stream = drv.Stream()
    a.get_async(stream, b)
    stream.synchronize()
    return b


def multi_put(a, b):
    gpuarray.multi_put([a], indices(range(23, -1, -1)), out=[b])
    return b


def scanned(step, a):
    """Scan a row, into an array with this step, or in place."""
    out = gpuarray.zeros(4 * step, np.float32)[::step] if step else None
    result = InclusiveScanKernel(np.float32, "a + b")(a[0, 0], out)
    return result if out is None else out


def judge_moved(name, call, numpys, operands):
    hosts, got = result_of(call, operands)
    if isinstance(got, Exception):
        return got
    try:
        wanted = on_host(numpys(*hosts))
    except Exception as error:
        return f"{got[0].shape}, where NumPy raises {error!r}" if got else ""  # list(a) of no axes
    return difference(got, wanted, "bool" not in name)


def cases():
    """Yield each function that judges a call, and its arguments."""
    for judge, calls in (judge_computed, computed()), (judge_moved, moved()):
        for case in calls:
            layouts = {one[0] for one in case[-1]}
            if any(one[0] == "broadcast" and one[2] == G for one in case[-1]):
                continue  # as_pycuda refuses it
            if case[0].startswith(("subset", "take", "multi_put")) and layouts & {*SHAPES}:
                continue  # the indices would lie outside
            yield judge, case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int)
    parser.add_argument("--part", default="0/1", help="K/N: each N-th call, from the K-th on")
    parser.add_argument("--without", action="store_true", help="call PyCUDA's own functions")
    parser.add_argument("--verbose", action="store_true", help="print each call")
    options = parser.parse_args()
    if options.without:
        patches.undo("arrays")
    bridge.use_nvrtc()
    warnings.simplefilter("ignore")
    chosen = list(enumerate(cases()))
    if options.sample:
        chosen = sorted(random.Random(1).sample(chosen, options.sample), key=operator.itemgetter(0))
    counts = collections.Counter()
    first, step = map(int, options.part.split("/"))
    for number, (judge, case) in chosen[first::step]:
        verdict = judge(*case)
        try:
            drv.Context.synchronize()
        except drv.Error as error:
            verdict = error
        kind = "refused" if isinstance(verdict, Exception) else "WRONG" if verdict else "right"
        kind = "ILLEGAL" if "illegal" in str(verdict) else kind
        counts[kind] += 1
        if options.verbose or kind in ("WRONG", "ILLEGAL"):
            label = f"{case[0]}: {', '.join(' '.join(one) for one in case[-1])}"
            text = f"{type(verdict).__name__} {verdict}".replace("\n", " ")[:200]
            print(number, label, kind, text, sep="\t", flush=True)
        if kind == "ILLEGAL":
            break
    print(dict(counts))
    raise SystemExit(counts["WRONG"] + counts["ILLEGAL"] > 0)


if __name__ == "__main__":
    main()

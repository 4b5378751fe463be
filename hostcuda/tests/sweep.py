"""Call CuPy's functions with random inputs, and compare them with NumPy's, SciPy's or a GPU's.

Here, run `python -m hostcuda hostcuda/tests/sweep.py --save here.npz`.  On a GPU, which needs CuPy
alone, run `python hostcuda/tests/sweep.py --compare here.npz`.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

# Functions of CuPy; behind a module's name, of that module of SciPy and cupyx.
CALLS = """
abs(v) absolute(c) add(v, w) all(k) allclose(v, v) amax(a, 0) amin(a, 1) angle(c) any(k)
append(v, w) apply_along_axis(xp.sum, 0, a) arange(3, 40, 3) arccos(u) arccosh(1 + u) arcsin(u)
arcsinh(v) arctan(v) arctan2(v, w) arctanh(u / 2) argmax(a, 1) argmin(a) argpartition(v, 4)[4]
argsort(v) argwhere(k) around(v, 2) array([1, 2, 3]) array_equal(v, w) array_split(v, 3)[1]
asarray(v) atleast_2d(v) average(v, weights=u) bartlett(12) bincount(i) bitwise_and(i, j)
bitwise_or(i, j) bitwise_xor(i, j) blackman(12) broadcast_to(v, (3, 24))
can_cast('f4', 'f8') cbrt(v) ceil(v) choose(i % 3, xp.stack((v, w, u))) clip(v, -1, 1)
column_stack((v, w)) compress(k, v) concatenate((v, w)) conj(c) convolve(v, u[:5]) copysign(v, w)
corrcoef(a) correlate(v, u[:5]) cos(v) cosh(v) count_nonzero(k) cov(a) cross(a[:, :3], a[:, 2:5])
cumprod(u) cumsum(v, dtype='f8') deg2rad(v) degrees(v) delete(v, 3) diag(v[:4]) diag_indices(4)[0]
diagflat(v[:3]) diagonal(m) diff(v) digitize(v, t) divide(v, w) divmod(i, j + 1)[1] dot(m, b)
dsplit(a.reshape(2, 2, 6), 3)[1] dstack((v, w)) ediff1d(v) einsum('ij,jk->ki', m, m)
empty_like(v).shape[0] equal(i, j) exp(u) exp2(u) expand_dims(v, 1) expm1(u) extract(k, v) eye(4)
fabs(v) fft.fft(c) fft.fft2(a) fft.fftfreq(12) fft.fftn(a) fft.fftshift(v) fft.hfft(c) fft.ifft(c)
fft.ihfft(v) fft.irfft(c) fft.rfft(v) fft.rfft2(a) fft.rfftn(a) fix(v)
flatnonzero(k) flip(a) fliplr(a) flipud(a) float_power(u, 2) floor(v) floor_divide(i, j + 1)
fmax(v, w) fmin(v, w) fmod(v, w) frexp(v)[0] gcd(i, j) gradient(v) greater(v, w) hamming(12)
hanning(12) heaviside(v, .5) histogram(v, 7)[0] histogram2d(v, w, 5)[0] hsplit(a, 2)[0]
hstack((v, w)) hypot(v, w) i0(v) identity(4) imag(c) indices((2, 3)) inner(v, w)
interp(u, t, t * 2) intersect1d(i, j) invert(i) isclose(v, w) iscomplex(c) isfinite(v) isin(i, j)
isinf(v) isnan(v) isreal(c) ix_(v[:3] > 0, k[:4])[0] kaiser(12, 2.) kron(m, m) lcm(i, j + 1)
ldexp(v, i) left_shift(i, 1) less(v, w) lexsort(xp.stack((i, j))) linalg.cholesky(p)
linalg.cond(p, 1) linalg.det(m) linalg.eigh(p)[0] linalg.eigvalsh(p) linalg.inv(m)
linalg.lstsq(m, b, rcond=None)[0] linalg.matrix_power(m, 3) linalg.matrix_rank(m) linalg.norm(m)
linalg.norm(m, 2) linalg.pinv(m) abs(linalg.qr(m)[1]) linalg.slogdet(m)[1] linalg.solve(m, b)
linalg.solve(xp.stack((m, m)), xp.stack((m, p))) linalg.svd(m)[1] linalg.tensorinv(m, 1)
linspace(0, 1, 7) log(u + 1) log10(u + 1) log1p(u) log2(u + 1) logaddexp(v, w) logical_and(k, k)
logical_not(k) logical_or(k, ~k) logspace(0, 2, 5) matmul(m, p) max(a) maximum(v, w) mean(a, 1)
median(a, 0) meshgrid(v[:3], w[:4])[1] min(a) minimum(v, w) mod(i, j + 1) modf(v)[0]
moveaxis(a, 0, 1) multiply(v, w) nan_to_num(n) nanargmax(n) nancumsum(n) nanmax(n) nanmean(n)
nanmedian(n) nanmin(n) nanprod(n) nanstd(n) nansum(n) nanvar(n) negative(v) nextafter(v, w)
nonzero(k)[0] ones((2, 3)) outer(v, w) packbits(k) pad(v, 3, 'reflect') partition(v, 5)[5]
percentile(a, [10, 50]) piecewise(v, [v < 0, v >= 0], [-1, 1]) poly1d(t)(v) polyadd(v, w)
polyfit(t, t ** 2, 2) polymul(v[:3], w[:4]) polyval(v[:4], w) power(u, v) prod(u) ptp(a, 1)
quantile(v, .3) rad2deg(v) ravel(a) real(c)
reciprocal(u + 1) remainder(v, w) repeat(v, 2) reshape(a, (6, 4)) resize(v, (3, 5)) rint(v)
roll(v, 3) rollaxis(a, 1) rot90(a) round(v, 1) searchsorted(t, v) select([k, ~k], [v, w])
setdiff1d(i, j) setxor1d(i, j) sign(v) signbit(v) sin(v) sinc(v) sinh(v) sort(v) sort(a, 0)
sort_complex(c) split(v, 4)[1] sqrt(u) square(v) squeeze(a[:1]) stack((v, w)) std(a)
subtract(v, w) sum(a, 0) swapaxes(a, 0, 1) take(v, i) take_along_axis(a, i[:4, None] % 6, 1)
tan(v) tanh(v) tensordot(m, p, 1) tile(v, 3) trace(m) transpose(a) trapezoid(v) tri(4) tril(m)
trim_zeros(i) triu(m) true_divide(v, w) trunc(v) union1d(i, j) unique(i)
unique(i, return_counts=True)[1] unpackbits(xp.packbits(k)) unravel_index(i, (10, 20))[1]
unwrap(v) vander(v[:4]) var(a, 0) vdot(c, c) vsplit(a, 2)[0] vstack((v, w)) where(k, v, w)
zeros_like(v)
scipy.special: erf(v) erfc(v) erfinv(u / 2) expit(v) gamma(u + 1) gammaln(u + 1) j0(v) j1(v)
logit(u) ndtr(v) polygamma(xp.asarray([1]), u + 1) y0(u + 1) zeta(u + 2, 1.) entr(u)
digamma(u + 1) gammainc(u + 1, u)
scipy.ndimage: affine_transform(a, m[:2, :2]) convolve(a, m[:3, :3]) gaussian_filter(a, 1.)
label(k.reshape(4, 6))[0] laplace(a) map_coordinates(a, xp.stack((u, u))) maximum_filter(a, 3)
median_filter(a, 3) rotate(a, 30.) shift(a, 1.5) sobel(a)
sum(a, i.reshape(4, 6), xp.asarray([1, 2])) uniform_filter(a, 3) zoom(a, 2.)
binary_erosion(k.reshape(4, 6)) distance_transform_edt(k.reshape(4, 6)) center_of_mass(u)
scipy.signal: convolve2d(a, m[:3, :3]) fftconvolve(v, w) lfilter(u[:3], u[3:6] + 1, v)
sosfilt(xp.asarray([[1., 2, 1, 1, .1, .2]]), v) wiener(a) correlate(v, w) medfilt2d(a) detrend(v)
scipy.linalg: lu(m)[2] lu_solve(lib.lu_factor(m), b) solve_triangular(xp.triu(p), b) expm(m / 9)
toeplitz(v[:4]) block_diag(m, p) hilbert(4) circulant(v[:4])
scipy.interpolate: CubicSpline(t, t ** 2)(u + 1) interp1d(t, t ** 2)(u + 1)
make_interp_spline(t, t ** 3)(u + 1) PchipInterpolator(t, t ** 2)(u + 1)
BarycentricInterpolator(t[:4], t[:4] ** 2)(u)
scipy.sparse: csr_matrix(m).dot(b) csr_matrix(m).T.toarray()
(lib.csr_matrix(m) @ lib.csr_matrix(p)).toarray() csc_matrix(m).sum(0)
coo_matrix(m).tocsr().toarray() csr_matrix(k.reshape(4, 6).astype('f8')).toarray()
eye(4).toarray() diags(v[:4]).toarray() (lib.csr_matrix(m) + lib.csr_matrix(p)).toarray()
hstack((lib.csr_matrix(m), lib.csr_matrix(p))).toarray()
scipy.sparse.linalg: cg(sparse.csr_matrix(p), b)[0] gmres(sparse.csr_matrix(p), b)[0]
svds(sparse.csr_matrix(p), 2)[1] eigsh(sparse.csr_matrix(p), 2)[0]
spsolve(sparse.csr_matrix(p), b) norm(sparse.csr_matrix(p)) lsqr(sparse.csr_matrix(p), b)[0]
scipy.stats: entropy(u) trim_mean(v, .1)
scipy.fft: dct(v) idct(v) dst(v) rfft(v) dctn(a)
"""


def calls() -> list[tuple[str, str]]:
    """Return the module and the call of each: ("numpy", "abs(v)")."""
    found, module, depth, text = [], "numpy", 0, ""
    for letter in CALLS:
        depth += (letter in "([") - (letter in ")]")
        if not letter.isspace() or depth:  # a call ends at a space outside of brackets
            text += letter
            continue
        if text.endswith(":"):
            module = text[:-1]
        elif text:
            found.append((module, text))
        text = ""
    return found


def inputs(xp: Any) -> dict[str, Any]:
    """Return random arrays: their names are those in the calls."""
    rng = np.random.default_rng(7)
    m, v = rng.normal(size=(6, 6)), rng.normal(size=24)
    gaps = np.where(rng.random(24) < 0.2, np.nan, v)
    given = {
        **{"a": rng.normal(size=(4, 6)), "m": m, "p": m @ m.T + 6 * np.eye(6), "n": gaps, "v": v},
        **{
            "b": rng.normal(size=6),
            "w": rng.normal(size=24),
            "u": rng.random(24),
            "t": np.arange(6.0),
        },
        **{"i": rng.integers(0, 20, 24), "j": rng.integers(0, 20, 24), "k": v > 0},
        "c": v + 1j * rng.normal(size=24),
    }
    return {name: xp.asarray(value) for name, value in given.items()}


def evaluate(root: str, module: str, call: str) -> Any:
    """Call one function of "cupy" or of NumPy and SciPy; return an array of the host."""
    xp = importlib.import_module(root)
    if root == "cupy":
        module = "cupy" if module == "numpy" else f"cupyx.{module}"
    lib = importlib.import_module(module)
    names = {"xp": xp, "lib": lib, "linalg": xp.linalg, **inputs(xp)}
    if module.startswith(("scipy", "cupyx")):
        scipy = "cupyx.scipy" if root == "cupy" else "scipy"
        names["sparse"] = importlib.import_module(f"{scipy}.sparse")
    found = eval(call if call[0] == "(" else f"lib.{call}", names)
    if isinstance(found, tuple):
        found = found[0]
    return np.asarray(found.get() if hasattr(found, "get") else found)


def difference(one: Any, other: Any) -> float:
    """Return the greatest difference, by the greatest number; infinite if shapes or NaN differ."""
    if one.shape != other.shape:
        return np.inf
    if one.dtype.kind not in "fc":
        return 0.0 if (one == other).all() else np.inf
    gaps = np.isnan(one)
    if (gaps != np.isnan(other)).any():
        return np.inf
    away, size = np.abs(one - other)[~gaps], np.abs(other)[~gaps]
    return float(away.max() / (size.max() or 1)) if away.size else 0.0


def main() -> None:
    """Print how the calls end, and those that differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--save", type=Path, help="keep the results")
    parser.add_argument("--compare", type=Path, help="with these, in place of NumPy's and SciPy's")
    options = parser.parse_args()
    saved = dict(np.load(options.compare)) if options.compare else {}
    results: dict[str, Any] = {}
    ends: collections.Counter[str] = collections.Counter()
    warnings.simplefilter("ignore")
    for module, call in calls():
        name = f"{module}: {call}"
        try:
            if name not in saved and options.compare:
                continue
            expected = saved[name] if saved else evaluate("numpy", module, call)
        except AttributeError as error:
            print(f"not compared: {name}: {error}")
            continue
        try:
            results[name] = evaluate("cupy", module, call)
        except Exception as error:
            ends["raised"] += 1
            print(f"raised: {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        away = difference(results[name], expected)
        end = (
            "equal"
            if not away
            else "within 1e-12"
            if away < 1e-12
            else "within 1e-6"
            if away < 1e-6
            else "other"
        )
        ends[end] += 1
        if end in ("within 1e-6", "other"):
            print(f"{end}: {name}: {away:.2g}")
    print(*(f"{count} {end}" for end, count in ends.most_common()), sep=", ")
    if options.save:
        np.savez(options.save, **results)


if __name__ == "__main__":
    main()

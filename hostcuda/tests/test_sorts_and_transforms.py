"""Thrust's sorts, cuFFT and CuPy's generators on the host: their numbers, and their order."""

import subprocess
import sys

import cupy
import cupyx.scipy.fft
import numpy as np
import pytest

import hostcuda
from hostcuda import _libraries

DTYPES = "?bBhHiIqQefdFD"


def values(dtype, shape, seed=3):
    """Return numbers of which some are equal, and NaN where the dtype has them."""
    random = np.random.default_rng(seed)
    x = random.integers(-20, 20, shape)
    if np.dtype(dtype).kind in "bu":
        x = abs(x)
    x = x.astype(dtype)
    if dtype in "FD":
        x += (1j * random.integers(-2, 2, shape)).astype(dtype)
        x.flat[1::9] = [complex(1, np.nan), complex(np.nan, 1), complex(np.nan, np.nan)][x.ndim % 3]
    if dtype in "efdFD":
        x.flat[::7] = np.nan
        x.flat[3] = -np.inf
    return x


# ---- Thrust -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50,), (3, 70), (4, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sorts_are_numpys(dtype, shape):
    x = values(dtype, shape)
    for axis in range(x.ndim):
        y = cupy.asarray(x)
        np.testing.assert_array_equal(cupy.sort(y, axis).get(), np.sort(x, axis))
        np.testing.assert_array_equal(
            cupy.argsort(y, axis).get(), np.argsort(x, axis, kind="stable")
        )


@pytest.mark.parametrize("dtype", "hefD")
def test_lexsort_is_numpys(dtype):
    keys = np.stack([values(dtype, 40), values(dtype, 40, seed=4)])
    np.testing.assert_array_equal(cupy.lexsort(cupy.asarray(keys)).get(), np.lexsort(keys))


SORTING = {
    "unique": lambda xp, x: xp.unique(x, return_index=True, return_counts=True),
    "median": lambda xp, x: xp.median(x, axis=0),
    "percentile": lambda xp, x: xp.percentile(x, [10, 50, 99], axis=1),
    "partition": lambda xp, x: xp.sort(xp.partition(x, 9)[..., :10]),
    "argpartition": lambda xp, x: xp.sort(xp.take(x, xp.argpartition(x[0, :20], 4)[:5])),
    "setdiff1d": lambda xp, x: xp.setdiff1d(x, x[:, :3]),
    "searchsorted": lambda xp, x: xp.searchsorted(xp.sort(x[0]), x[1]),
    "isin": lambda xp, x: xp.isin(x, x[0, :4]),
    "empty": lambda xp, x: xp.sort(x[:0]),
}


@pytest.mark.parametrize("name", SORTING)
def test_functions_that_sort_run(name):
    x = np.random.default_rng(5).integers(-30, 30, (4, 60)).astype(np.float32)
    expected, found = SORTING[name](np, x), SORTING[name](cupy, cupy.asarray(x))
    pairs = zip(expected, found, strict=True) if name == "unique" else [(expected, found)]
    for one, other in pairs:
        np.testing.assert_array_equal(other.get(), one)


@pytest.mark.filterwarnings("ignore:cupyx.jit")  # of CuPy's module, when it is imported
@pytest.mark.parametrize("bits", [2, 5, 9])
def test_sequences_of_maximum_length_are_scipys(bits):
    signal = pytest.importorskip("scipy.signal")
    from cupyx.scipy.signal import max_len_seq

    for one, other in zip(signal.max_len_seq(bits), max_len_seq(bits), strict=True):
        np.testing.assert_array_equal(other.get(), one)


def test_reductions_that_ask_for_cub_are_right():
    import cupy._core._accelerator as accelerator
    from cupy.cuda import cub

    before = accelerator.get_routine_accelerators()
    accelerator.set_routine_accelerators(["cub"])
    try:
        x = cupy.arange(100.0)[::-1].copy()
        assert [int(v) for v in (x.sum(), x.argmin(), x.max(), x.cumsum()[-1])] == [
            4950,
            99,
            99,
            4950,
        ]
        assert cupy.histogram(x, 4)[0].tolist() == [25] * 4
    finally:
        accelerator.set_routine_accelerators(before)
    with pytest.raises(NotImplementedError, match="hostcuda: CUB"):
        cub.device_reduce(x, cub.CUPY_CUB_SUM, (0,), (), None, False)


# ---- cuFFT --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8, 30, 67, 97, 1000, 67 * 71])
@pytest.mark.parametrize("dtype", "fdFD")
def test_transforms_of_all_lengths(dtype, n):
    random = np.random.default_rng(n)
    x = random.standard_normal((3, n)) + 1j * random.standard_normal((3, n))
    x = (x.real if dtype in "fd" else x).astype(dtype)
    y, close = cupy.asarray(x), {"rtol": 0, "atol": (2e-5 if dtype in "fF" else 1e-13) * n}
    np.testing.assert_allclose(cupy.fft.fft(y).get(), np.fft.fft(x), **close)
    np.testing.assert_allclose(cupy.fft.ifft(y).get(), np.fft.ifft(x), **close)
    np.testing.assert_allclose(cupy.fft.irfft(y, n).get(), np.fft.irfft(x, n), **close)
    if dtype in "fd":
        np.testing.assert_allclose(cupy.fft.rfft(y).get(), np.fft.rfft(x), **close)
    assert cupy.fft.fft(y).dtype == np.result_type(dtype, np.complex64)


@pytest.mark.parametrize(
    "axes", [(0,), (0, 1), (2, 3), (1, 2, 3), (0, 1, 2), (1, 3), (3, 1)], ids=str
)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("order", "CF")
def test_transforms_along_axes(name, axes, order):
    x = np.random.default_rng(6).standard_normal((3, 4, 5, 6))
    x = x if name == "rfftn" else x + 1j * x[::-1]
    for norm in "backward", "ortho", "forward":
        expected = getattr(np.fft, name)(x, axes=axes, norm=norm)
        for module in cupy.fft, cupyx.scipy.fft:
            found = getattr(module, name)(cupy.array(x, order=order), axes=axes, norm=norm)
            np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)


def test_plans_are_used_and_transforms_may_be_in_place():
    x = np.random.default_rng(7).standard_normal((4, 6)) + 0j
    y = cupy.asarray(x)
    plan = cupyx.scipy.fft.get_fft_plan(y, axes=(0, 1))
    found = cupyx.scipy.fft.fft2(y, plan=plan, overwrite_x=True)
    assert found.data.ptr == y.data.ptr
    np.testing.assert_allclose(y.get(), np.fft.fft2(x), rtol=1e-12, atol=1e-12)
    with cupyx.scipy.fft.get_fft_plan(y, axes=1), pytest.raises(ValueError, match="does not match"):
        cupy.fft.fft(y[:, :3])


# ---- generators ---------------------------------------------------------------------------------

MOMENTS = {  # mean and variance
    "random": (lambda g: g.random(20000), 1 / 2, 1 / 12),
    "floats": (lambda g: g.random(20000, np.float32), 1 / 2, 1 / 12),
    "integers": (lambda g: g.integers(-5, 5, 20000, endpoint=True), 0, 10),
    "long integers": (lambda g: g.integers(0, 1 << 40, 20000) / 2**40, 1 / 2, 1 / 12),
    "normal": (lambda g: g.standard_normal(20000), 0, 1),
    "float normal": (lambda g: g.standard_normal(20000, np.float32), 0, 1),
    "exponential": (lambda g: g.exponential(2.0, 20000), 2, 4),
    "gamma": (lambda g: g.gamma(cupy.array([[2.0], [2.0]]), 3.0, (2, 10000)), 6, 18),
    "small gamma": (lambda g: g.standard_gamma(0.5, 20000), 0.5, 0.5),
    "chisquare": (lambda g: g.chisquare(3.0, 20000), 3, 6),
    "beta": (lambda g: g.beta(2.0, 3.0, 20000), 2 / 5, 1 / 25),
    "poisson": (lambda g: g.poisson(cupy.full(20000, 4.0)), 4, 4),
    "geometric": (lambda g: g.geometric(0.3, 20000), 1 / 0.3, 0.7 / 0.09),
    "binomial": (lambda g: g.binomial(10, 0.3, 20000), 3, 2.1),
    "hypergeometric": (lambda g: g.hypergeometric(10, 20, 5, 20000), 5 / 3, 250 / 261),
    "logseries": (lambda g: g.logseries(0.5, 20000), 1.4427, 0.8039),
}


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("bits", ["XORWOW", "MRG32k3a", "Philox4x3210"])
def test_numbers_have_their_distribution(name, bits):
    draw, mean, variance = MOMENTS[name]
    x = draw(cupy.random.Generator(getattr(cupy.random, bits)(1))).get().ravel()
    assert abs(x.mean() - mean) < 4 * (variance / len(x)) ** 0.5
    assert 0.9 < x.var() / variance < 1.1


def test_generators_repeat_and_differ():
    first, same, other = (cupy.random.default_rng(seed).random(9).tolist() for seed in (3, 3, 4))
    assert first == same != other
    g = cupy.random.default_rng(3)
    assert g.random((), np.float32).dtype == np.float32
    assert g.random(9).tolist() != first
    assert g.integers(0, 1, 50).tolist() == [0] * 50
    assert g.binomial(cupy.array([0, 5, 5]), cupy.array([0.5, 0.0, 1.0])).tolist() == [0, 0, 5]


# ---- in the order of their stream ---------------------------------------------------------------

CALLS = {
    "sort": lambda x: x.sort(),
    "argsort": lambda x: cupy.argsort(x),
    "lexsort": lambda x: cupy.lexsort(x.reshape(2, -1)),
    "fft": lambda x: cupy.fft.fft(x),
    "default_rng": lambda x: x.bits.random(4),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_queued_on_the_current_stream(name):
    x = cupy.arange(10.0)
    call = CALLS[name]
    if name == "default_rng":
        generator = cupy.random.default_rng(1)
        call = lambda x: generator.random(4)  # noqa: E731
    call(x)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        waits, queued = hostcuda.host_waits(), hostcuda.pending()
        call(x)
        assert hostcuda.host_waits() == waits
        assert hostcuda.pending(stream.ptr) > 0
        assert hostcuda.pending() - queued == hostcuda.pending(stream.ptr)


def test_a_sort_can_be_captured():
    x = cupy.array([3.0, 1.0, 2.0])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        stream.begin_capture()
        x.sort()
        graph = stream.end_capture()
        assert x.tolist() == [3, 1, 2]
        graph.launch(stream)
        assert x.tolist() == [1, 2, 3]


RACE = """
import cupy, numpy as np
x = cupy.asarray(np.arange(8.0)[::-1].copy())
cupy.cuda.Device().synchronize()
with cupy.cuda.Stream(non_blocking=True):
    x.sort()
with cupy.cuda.Stream(non_blocking=True):
    x += x[0]
cupy.cuda.Device().synchronize()
print(x)
"""


def test_a_race_with_a_library_is_named(tmp_path):
    (tmp_path / "program.py").write_text(RACE)
    command = [sys.executable, "-m", "hostcuda", "--orders", "6", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "a race: thrust::sort of program.py:6 (on stream" in done.stderr + done.stdout


# ---- what is wrong ------------------------------------------------------------------------------


@pytest.mark.damages
def test_addresses_that_no_block_holds_end_the_context():
    from cupy.cuda import thrust

    thrust.sort(np.dtype("f"), 1 << 40, 0, (4,))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="IllegalAddress"):
        cupy.cuda.Device().synchronize()
    assert hostcuda.failures(untold=False)[0].startswith("thrust::sort: reads 16 bytes")


def test_another_cupy_is_refused(tmp_path):
    strange = tmp_path / "thrust.so"
    strange.write_bytes(b"another function\0")
    _libraries.check_linked("cupy.cuda.thrust", cupy.cuda.thrust.__file__)
    with pytest.raises(ImportError, match="has no function _Z11thrust_sort"):
        _libraries.check_linked("cupy.cuda.thrust", str(strange))


def test_several_devices_and_callbacks_of_cufft_are_refused():
    from cupy.cuda import cufft

    with pytest.raises(cufft.CuFFTError, match="NOT_SUPPORTED"):
        cufft.Plan1d(64, cufft.CUFFT_C2C, 2, devices=[0])
    with pytest.raises(NotImplementedError, match="hostcuda: a callback of cuFFT"):
        cupy.fft.config.set_cufft_callbacks(cb_load="")

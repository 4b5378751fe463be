"""``pytest --hostcuda``: run tests of PyCUDA and CuPy code without a GPU."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

import hostcuda


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostcuda", "CUDA on host memory")
    group.addoption("--hostcuda", action="store_true", help="run without a GPU, on host memory")
    group.addoption("--hostcuda-devices", type=int, metavar="N", help="how many devices there are")
    group.addoption(
        "--hostcuda-order",
        choices=hostcuda.ORDERS,
        help="when queued work runs, where CUDA allows several moments",
    )
    group.addoption("--hostcuda-seed", type=int, default=0, help="of the random order")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages: writes outside of memory on purpose")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Install the driver before any conftest imports PyCUDA or CuPy."""
    options = early_config.known_args_namespace
    if options.hostcuda:
        try:
            hostcuda.install(
                options.hostcuda_devices, order=options.hostcuda_order, seed=options.hostcuda_seed
            )
        except hostcuda.Unsupported as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let a test fail that damages memory."""
    if not hostcuda.installed():
        return (yield)
    before = len(hostcuda.damaged())
    result = yield
    hostcuda.finish()
    damage = hostcuda.damaged()[before:]
    if damage and not item.get_closest_marker("damages"):
        pytest.fail("\n".join(f"hostcuda: {one}" for one in damage), pytrace=False)
    return result


@pytest.fixture(name="hostcuda")
def _hostcuda() -> Any:
    """The module `hostcuda`: ``launches()``, ``host_waits()``, ``damaged()``; skips on a GPU."""
    if not hostcuda.installed():
        pytest.skip("needs pytest --hostcuda")
    hostcuda.clear()
    return hostcuda

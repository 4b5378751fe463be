"""``pytest --hostcuda``: run tests of PyCUDA and CuPy code without a GPU."""

from __future__ import annotations

import faulthandler
import importlib.metadata
import os
import re
import traceback
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

import hostcuda

_REPORT = os.environ.get("HOSTCUDA_REPORT")  # of `--orders`: print no durations, no addresses

# What a text says that the host cannot run: of a library, of the translator, of PyCUDA.
_REFUSED = re.compile(
    r"hostcuda: (.+?)(?: \(.*?\))? (?:is not supported|needs \w+ here)"
    r"|(cu\w+) failed: operation not supported"
)
_NOT_SUPPORTED = re.compile("cudaErrorNotSupported|(?:CUDA_ERROR|CUFFT)_NOT_SUPPORTED")
# An AssertionError is the test's own, unless `cupy.testing` wraps another error in it.
_OF_CUPY_TESTING = "Only cupy raises error", "Different types of errors occurred", "\nFail: "
# The byte 0xCD as float32, float64, and integers of 32 and 64 bits, as NumPy prints them.
_UNWRITTEN = (
    r"-4\.316\d*e\+08|-431602080\b|-6\.277\d*e\+66|-842150451\b|\b3452816845\b"
    r"|-3617008641903833651\b|\b14829735431805717965\b"
)
_HINTS = {  # for what a report says
    _UNWRITTEN: "{} is the content of memory that nothing has written; --hostcuda-check names the "
    "kernel that reads it",
    "(?i)out of memory": "a device has as much memory as --hostcuda-memory says, by default 1GiB",
}


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
    group.addoption("--hostcuda-memory", metavar="SIZE", help="of each device: 4GiB, 512MiB")
    pool = {"dest": "hostcuda_pool", "action": "store_const", "default": ""}
    text = "let CuPy's arrays share blocks, as on a GPU"
    group.addoption("--hostcuda-pool", const="yes", help=text, **pool)
    text = "give each CuPy array a block: more wrong accesses are found (with -check the default)"
    group.addoption("--hostcuda-no-pool", const="no", help=text, **pool)
    group.addoption(
        "--hostcuda-check",
        action="store_true",
        help="find reads of memory that nothing has written, and races of work and of threads",
    )
    group.addoption(
        "--hostcuda-strict",
        action="store_true",
        help="let tests fail that need what the host cannot run; they are skipped otherwise",
    )


@pytest.hookimpl(trylast=True)  # after pytest has enabled faulthandler
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages: damages memory, or lets a kernel fail, on purpose")
    if _REPORT:
        config.pluginmanager.set_blocked("terminalreporter")
        faulthandler.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Install the driver before any conftest imports PyCUDA or CuPy."""
    options = early_config.known_args_namespace
    names = {name for name in vars(options) if name.startswith("hostcuda_")} - {"hostcuda_strict"}
    settings = [getattr(options, name) for name in names]
    if hostcuda.installed() and any(settings):
        raise pytest.UsageError(
            "the driver was installed before pytest began, so that --hostcuda-devices, -order, "
            "-seed, -memory, -pool and -check come too late: give `python -m hostcuda` its own "
            "--devices, --order, --seed, --memory, --pool and --check, before `-m pytest`; or set "
            "HOSTCUDA_DEVICES, HOSTCUDA_ORDER, HOSTCUDA_MEMORY, HOSTCUDA_CHECK beside HOSTCUDA=1"
        )
    try:
        (hostcuda.install if options.hostcuda else hostcuda.install_by_variable)(
            options.hostcuda_devices,
            order=options.hostcuda_order,
            seed=options.hostcuda_seed,
            pool={"": None, "yes": True, "no": False}[options.hostcuda_pool],
            check=options.hostcuda_check,
            memory=options.hostcuda_memory,
        )
    except hostcuda.Unsupported as error:
        raise pytest.UsageError(str(error)) from None
    if any(settings) and not hostcuda.installed():
        raise pytest.UsageError("the options --hostcuda-... need --hostcuda")


def pytest_report_header() -> str | None:
    if not hostcuda.installed():
        return None
    return f"hostcuda {importlib.metadata.version('hostcuda')}: {hostcuda.settings()}"


def _refusal(error: BaseException) -> tuple[str, str] | None:
    """Answer what the host cannot run, and a sentence of it, if an error says that."""
    text = str(error)
    if not isinstance(error, Exception) or (
        isinstance(error, AssertionError) and not text.startswith(_OF_CUPY_TESTING)
    ):
        return None
    for line in text.splitlines():
        if found := _REFUSED.search(line):
            return found[1] or found[2], line[found.start() :]
    if _NOT_SUPPORTED.search(text):  # of CuPy: the function that raised it, or that checked
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        name = next(n for n in reversed(names) if ".check_" not in n).rpartition(".")[2]
        return name, f"hostcuda: {name} is not supported"
    return None


def _skip(report: Any, error: BaseException, config: pytest.Config) -> bool:
    """Make a report of a failure that of a skip, if the failure is a refusal."""
    if config.getoption("--hostcuda-strict") or not (refusal := _refusal(error)):
        return False
    path, line, _ = getattr(report, "location", None) or (report.nodeid, 0, "")
    report.outcome = "skipped"
    report.hostcuda_refused, reason = refusal  # xdist passes it on
    report.longrepr = str(path), (line or 0) + 1, reason
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    ours = call.excinfo
    report = yield
    if not hostcuda.installed() or not report.failed or not call.excinfo:
        return report
    if ours and ours is not call.excinfo:  # pytest puts in the failure of a `unittest.TestCase`
        report.sections.append((f"Captured hostcuda {call.when}", str(ours.value)))
    if _skip(report, call.excinfo.value, item.config):
        skipped = pytest.skip.Exception(report.longrepr[2]).with_traceback(call.excinfo.tb)
        call.excinfo = pytest.ExceptionInfo.from_exception(skipped)  # for which --pdb does not stop
        return report
    for pattern, hint in _HINTS.items():
        if found := re.search(pattern, report.longreprtext):
            report.sections.append(("hostcuda", f"hostcuda: {hint.format(found[0])}"))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = Counter(
        report.hostcuda_refused
        for report in terminalreporter.stats.get("skipped", [])
        if hasattr(report, "hostcuda_refused")
    )
    if counts:
        shown = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        terminalreporter.write_sep("-", "tests skipped")
        terminalreporter.write_line(f"hostcuda refused: {shown}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print how a test ends, and what it damaged, for `--orders` to compare."""
    if _REPORT and (report.when == "call" or not report.passed):
        shown = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
        damage = [line for line in shown.splitlines() if line.startswith("hostcuda: ")]
        print(f"{report.nodeid} {report.outcome}", *dict.fromkeys(damage), sep="\n", flush=True)
        if report.failed:
            with open(_REPORT, "a") as file:
                print(
                    f" {report.nodeid} ".center(100, "_"), report.longreprtext, sep="\n", file=file
                )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Print which module was not imported, for `--orders`."""
    if _REPORT and not report.passed:
        print(report.nodeid, report.outcome, report.longreprtext, flush=True)


def _damage(before: int, untold: bool = True) -> str:
    hostcuda.finish()
    found = [*hostcuda.damaged()[before:], *hostcuda.failures(untold)]
    return "\n".join(f"hostcuda: {one}" for one in found)


def _watch(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    """Let a phase of a test fail that damages memory; if it fails anyway, add what it damaged."""
    if not hostcuda.installed():
        return (yield)
    if item.get_closest_marker("damages"):
        try:
            return (yield)
        finally:
            hostcuda.finish()
            hostcuda.revive()
    before = len(hostcuda.damaged())
    try:
        try:
            result = yield
        except BaseException:
            if text := _damage(before, untold=False):
                item.add_report_section(phase, "hostcuda", text)
            raise
        # pytest keeps the failure of a `unittest.TestCase` here, and does not raise it.
        if text := _damage(before, untold=not getattr(item, "_excinfo", None)):
            pytest.fail(text, pytrace=False)
        return result
    finally:
        hostcuda.revive()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _watch(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _watch(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _watch(item, "teardown"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a module fail that damages memory when it is imported."""
    before = len(hostcuda.damaged()) if hostcuda.installed() else 0
    report = yield
    if hostcuda.installed() and (text := _damage(before)):
        report.outcome, report.longrepr = "failed", text
        hostcuda.revive()
    elif hostcuda.installed() and report.failed and report.call and report.call.excinfo:
        _skip(report, report.call.excinfo.value, collector.config)
    return report


@pytest.fixture(name="hostcuda")
def _hostcuda() -> Generator[Any, None, None]:
    """The module `hostcuda`: ``launches()``, ``host_waits()``, ``damaged()``; skips on a GPU."""
    if not hostcuda.installed():
        pytest.skip("needs pytest --hostcuda")
    hostcuda.finish()
    with hostcuda.recording():
        yield hostcuda

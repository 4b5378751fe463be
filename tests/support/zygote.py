"""Run scripts, each in a fork of this process, which has imported both libraries and used neither.

A fork takes a tenth of the time of a new interpreter.  `processes.Zygote` starts this and writes a
line of JSON for each script: the script, the files for its output, and the number of devices.  The
answers are the id of the forked process, and its exit status.

In place of a script there may be the arguments of ``python -m``, with a folder and an environment.
"""

import faulthandler
import json
import os
import runpy
import signal
import sys
import warnings
from types import ModuleType
from typing import Any


def serve() -> dict[str, Any] | None:
    """Fork for each line of input.  Return the request in a fork, and None at the end."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            request: dict[str, Any] = json.loads(line)
            return request
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


driver: Any = None
if "host" in sys.argv:
    import hostcuda

    hostcuda.install()
    driver = hostcuda._driver

import cupy  # noqa: E402, F401
import numpy  # noqa: E402, F401
import pycuda.gpuarray  # noqa: E402, F401

faulthandler.register(signal.SIGUSR1)  # where its threads are, if it comes to no end
if request := serve():
    for number, name in (0, os.devnull), (1, request["stdout"]), (2, request["stderr"]):
        file = os.open(name, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    if driver is not None:
        driver.hostcuda_configure(request["devices"], 1 << 30)
    sys.modules["__main__"] = main = ModuleType("__main__")
    if "script" in request:
        sys.argv[:] = ["-c"]
        exec(compile(request["script"], "<string>", "exec"), vars(main))
    else:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.path[:0] = [request["cwd"]]
        sys.argv[:] = request["arguments"]
        sys.warnoptions.clear()
        warnings.resetwarnings()  # and those of Python without options
        for kind in DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning:
            warnings.simplefilter("ignore", kind)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]  # as `python -m` does

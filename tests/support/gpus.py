"""How many GPUs there are, by the driver: PyCUDA can be imported only where there is one."""

import contextlib
import ctypes
import sys


def count_gpus() -> int:
    count = ctypes.c_int()
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


# `count_gpus` would count the devices of hostcuda, which `pytest --hostcuda` has installed already.
GPUS = 0 if getattr(sys.modules.get("hostcuda"), "_driver", None) else count_gpus()
ON_GPU = GPUS > 0
# A test that is skipped for this reason may be skipped on a GPU, too.
PACKAGE_MISSING = "not installed: "

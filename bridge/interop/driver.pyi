"""Types of ``driver.pyx``."""

import ctypes

libcuda: ctypes.CDLL

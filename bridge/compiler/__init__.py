"""CUDA C compiled with NVRTC, from sources and options written for nvcc."""

from .program import Request as Request, examine as examine, recorders as recorders

"""Kernels: compiled by NVRTC, checked against the compiler's types, launched in order."""

"""CUDA C compiled with NVRTC, from sources and options written for nvcc."""

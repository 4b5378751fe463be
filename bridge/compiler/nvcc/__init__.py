"""What sources for nvcc need so that NVRTC compiles them alike."""

"""Types of DLPack's tensors (``dlpack.pyx``): nothing is for Python."""

// pycuda-helpers.hpp includes it; what it declares is gone since CUDA 12.

// CuPy's complex numbers need these two words of CCCL, whose own header wants a CUDA toolkit.
#pragma once
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }

#pragma once
#include <stdint.h>
#define CUDA_VERSION CUDART_VERSION

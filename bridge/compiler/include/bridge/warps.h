// The warp functions of before CUDA 9, over the threads that are active where they are called.
// A source's own of the same parameters is preferred: it has no pack.
#pragma once
#define BRIDGE_WARP(name, parameters)                                                             \
  template <class T, class... W>                                                                  \
  __attribute__((deprecated("since CUDA 9: here it runs over __activemask(), which differs where " \
                            "the threads of a warp have diverged; write " #name "_sync")))       \
  __device__ inline T name(T value, parameters by, W... width) {                                   \
    return name##_sync(__activemask(), value, by, width...);                                      \
  }
BRIDGE_WARP(__shfl, int)
BRIDGE_WARP(__shfl_up, unsigned)
BRIDGE_WARP(__shfl_down, unsigned)
BRIDGE_WARP(__shfl_xor, int)
#undef BRIDGE_WARP
#define BRIDGE_VOTE(name, type)                                                                   \
  __attribute__((deprecated("since CUDA 9: here it runs over __activemask(), which differs where " \
                            "the threads of a warp have diverged; write __" #name "_sync")))     \
  __device__ inline type bridge_##name(int predicate) {                                           \
    return __##name##_sync(__activemask(), predicate);                                            \
  }
BRIDGE_VOTE(any, int)
BRIDGE_VOTE(all, int)
BRIDGE_VOTE(ballot, unsigned)
#undef BRIDGE_VOTE
#define __any bridge_any
#define __all bridge_all
#define __ballot bridge_ballot

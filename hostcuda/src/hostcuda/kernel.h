// What the driver and a compiled kernel module share. Both sides include this file.
#pragma once
#include <cstddef>

#define HOSTCUDA_FREE_SHARED_BYTES 49152  // without a word: 48 KiB
#define HOSTCUDA_SHARED_BYTES \
  232448  // dynamic shared memory a block may ask for: 227 KiB, as sm_90

struct hostcuda_size {
  unsigned x, y, z;
};

struct hostcuda_limits {  // what NVRTC says of a kernel
  int registers, shared, local, constant;  // per thread, bytes of the block, per thread, in all
  unsigned threads;                        // of a block, at most
};

// A module exports an array of these, `hostcuda_kernels`, that ends with a null function.
struct hostcuda_kernel {
  const char *name;                // as NVRTC mangles it
  void (*function)();              // the __global__ function, found by its symbol
  void (*call)(void **arguments);  // run it as one thread
  int count;                       // of its parameters; their sizes, and CUDA's offsets
  const size_t *sizes, *offsets;
  size_t bytes;  // of the packed parameters
  hostcuda_limits limits;
  char *shared;  // the module's dynamic shared memory, and 512 bytes behind it
  const struct hc_entry *translated;  // from PTX (translated.h); null: from CUDA C
};

#pragma GCC visibility push(default)
extern "C" {
// The thread that runs now (one at a time), defined by the driver (threads.cpp).
extern unsigned hostcuda_thread;             // its number in the block
extern unsigned long long hostcuda_slots[];  // one word per thread, for warp shuffles and votes

// Wait for the other threads of the block, or of the warp.
enum hostcuda_barrier_kind { hostcuda_block_barrier, hostcuda_warp_barrier };
void hostcuda_barrier(hostcuda_barrier_kind);
void hostcuda_trap();  // end the kernel, and with it the context

// The texel that a texture object answers, as four words (textures.cpp): of index `i`; or at one to
// three coordinates, in a layer.
void hostcuda_fetch(unsigned long long texture, int i, unsigned *words);
void hostcuda_sample(unsigned long long texture, int dimensions, const float *coordinates, int layer,
                     unsigned *words);
void hostcuda_gather(unsigned long long texture, const float *coordinates, int component,
                     unsigned *words);
// Where a surface object has `size` bytes, `x` in bytes; null: nowhere.
enum hostcuda_boundary { hostcuda_boundary_zero, hostcuda_boundary_clamp, hostcuda_boundary_trap };
char *hostcuda_surface(unsigned long long surface, int x, int y, int z, int size, int mode);
}
#pragma GCC visibility pop

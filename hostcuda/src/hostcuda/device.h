// CUDA C for g++: what a kernel may say, said on the host. Included before every kernel source.
//
// __global__ and __shared__ are left alone here: _build.py reads them in the preprocessed source.
#pragma once
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define clock hostcuda_clock_of_host
#include <time.h>
#undef clock

#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernel.h"

// Of CUDA's headers, such as cuComplex.h: what these declare is here.
#define __VECTOR_TYPES_H__
#define __VECTOR_FUNCTIONS_H__

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_INF HUGE_VAL
#define CUDART_NAN NAN

// ---- vector types ------------------------------------------------------------------------------

#define HOSTCUDA_VECTORS(name, type, align2, align4)                                 \
  struct name##1 { type x; };                                                        \
  struct __align__(align2) name##2 { type x, y; };                                   \
  struct name##3 { type x, y, z; };                                                  \
  struct __align__(align4) name##4 { type x, y, z, w; };                             \
  static inline name##1 make_##name##1(type x) { return {x}; }                       \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
  static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
HOSTCUDA_VECTORS(char, signed char, 2, 4)
HOSTCUDA_VECTORS(uchar, unsigned char, 2, 4)
HOSTCUDA_VECTORS(short, short, 4, 8)
HOSTCUDA_VECTORS(ushort, unsigned short, 4, 8)
HOSTCUDA_VECTORS(int, int, 8, 16)
HOSTCUDA_VECTORS(uint, unsigned, 8, 16)
HOSTCUDA_VECTORS(long, long, 16, 16)
HOSTCUDA_VECTORS(ulong, unsigned long, 16, 16)
HOSTCUDA_VECTORS(longlong, long long, 16, 16)
HOSTCUDA_VECTORS(ulonglong, unsigned long long, 16, 16)
HOSTCUDA_VECTORS(float, float, 8, 16)
HOSTCUDA_VECTORS(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- where a thread is, and how it waits --------------------------------------------------------

extern "C" {
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
}
static const int warpSize = 32;

static inline void __trap() { hostcuda_trap(); }
static inline void __syncthreads() { hostcuda_barrier(hostcuda_block_barrier); }
static inline void __syncwarp(unsigned = ~0u) { hostcuda_barrier(hostcuda_warp_barrier); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}
static inline long long clock64() {
  static long long ticks;
  return ++ticks;
}
static inline int clock() { return int(clock64()); }
static inline unsigned __activemask() { return ~0u; }

// Every thread of the warp shows a word, and then reads another's.
template <class T>
static T hostcuda_exchange(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof hostcuda_slots[0], "a shuffle moves at most eight bytes");
  memcpy(&hostcuda_slots[hostcuda_thread], &value, sizeof value);
  __syncwarp();
  memcpy(&value, &hostcuda_slots[hostcuda_thread / 32 * 32 + lane % 32], sizeof value);
  __syncwarp();
  return value;
}
static inline int hostcuda_lane() { return hostcuda_thread % 32; }
// The lane to read from, or this one where that lies outside of the group of `width` lanes.
static inline int hostcuda_within(int source, int width) {
  return source / width == hostcuda_lane() / width && source >= 0 ? source : hostcuda_lane();
}
template <class T>
static T __shfl_sync(unsigned, T v, int source, int width = 32) {
  return hostcuda_exchange(v, hostcuda_lane() / width * width + source % width);
}
template <class T>
static T __shfl_up_sync(unsigned, T v, unsigned delta, int width = 32) {
  return hostcuda_exchange(v, hostcuda_within(hostcuda_lane() - int(delta), width));
}
template <class T>
static T __shfl_down_sync(unsigned, T v, unsigned delta, int width = 32) {
  return hostcuda_exchange(v, hostcuda_within(hostcuda_lane() + int(delta), width));
}
template <class T>
static T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) {
  return hostcuda_exchange(v, hostcuda_within(hostcuda_lane() ^ mask, width));
}

// ---- votes: every thread shows whether its condition holds, and then sees those of all -----------

static inline unsigned hostcuda_threads() { return blockDim.x * blockDim.y * blockDim.z; }
static inline unsigned hostcuda_warp_mask() {  // the threads that there are
  unsigned n = hostcuda_threads() - hostcuda_thread / 32 * 32;
  return n < 32 ? (1u << n) - 1 : ~0u;
}
static inline unsigned __ballot_sync(unsigned mask, int holds) {
  hostcuda_slots[hostcuda_thread] = holds != 0;
  __syncwarp();
  unsigned first = hostcuda_thread / 32 * 32, bits = 0;
  for (unsigned lane = 0; lane < 32 && first + lane < hostcuda_threads(); ++lane)
    bits |= unsigned(hostcuda_slots[first + lane] & 1) << lane;
  __syncwarp();
  return bits & mask;
}
static inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
static inline int __all_sync(unsigned mask, int holds) {
  return __ballot_sync(mask, holds) == (mask & hostcuda_warp_mask());
}
static inline int __syncthreads_count(int holds) {
  hostcuda_slots[hostcuda_thread] = holds != 0;
  __syncthreads();
  int count = 0;
  for (unsigned i = 0; i < hostcuda_threads(); ++i) count += int(hostcuda_slots[i] & 1);
  __syncthreads();
  return count;
}
static inline int __syncthreads_or(int holds) { return __syncthreads_count(holds) != 0; }
static inline int __syncthreads_and(int holds) {
  return __syncthreads_count(holds) == int(hostcuda_threads());
}

// ---- atomics: threads run one at a time ---------------------------------------------------------

#define HOSTCUDA_ATOMIC(name, type, result)       \
  static inline type name(type *at, type value) { \
    type old = *at;                               \
    *at = (result);                               \
    return old;                                   \
  }
#define HOSTCUDA_ATOMIC_INTEGERS(name, result) \
  HOSTCUDA_ATOMIC(name, int, result)           \
  HOSTCUDA_ATOMIC(name, unsigned, result)      \
  HOSTCUDA_ATOMIC(name, unsigned long long, result)
HOSTCUDA_ATOMIC_INTEGERS(atomicAdd, old + value)
HOSTCUDA_ATOMIC(atomicAdd, float, old + value)
HOSTCUDA_ATOMIC(atomicAdd, double, old + value)
HOSTCUDA_ATOMIC(atomicSub, int, old - value)
HOSTCUDA_ATOMIC(atomicSub, unsigned, old - value)
HOSTCUDA_ATOMIC_INTEGERS(atomicExch, value)
HOSTCUDA_ATOMIC(atomicExch, float, value)
HOSTCUDA_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
HOSTCUDA_ATOMIC(atomicMin, long long, value < old ? value : old)
HOSTCUDA_ATOMIC_INTEGERS(atomicMax, value > old ? value : old)
HOSTCUDA_ATOMIC(atomicMax, long long, value > old ? value : old)
HOSTCUDA_ATOMIC_INTEGERS(atomicAnd, old &value)
HOSTCUDA_ATOMIC_INTEGERS(atomicOr, old | value)
HOSTCUDA_ATOMIC_INTEGERS(atomicXor, old ^ value)
HOSTCUDA_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
HOSTCUDA_ATOMIC(atomicDec, unsigned, !old || old > value ? value : old - 1)
#define HOSTCUDA_CAS(type)                                            \
  static inline type atomicCAS(type *at, type expected, type value) { \
    type old = *at;                                                   \
    if (old == expected) *at = value;                                 \
    return old;                                                       \
  }
HOSTCUDA_CAS(int)
HOSTCUDA_CAS(unsigned)
HOSTCUDA_CAS(unsigned long long)
HOSTCUDA_CAS(unsigned short)

// ---- arithmetic ---------------------------------------------------------------------------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(a) < C(b) ? C(b) : C(a);
}

template <class T>
static T __ldg(const T *p) {
  return *p;
}

template <class To, class From>
static To hostcuda_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int v) { return hostcuda_bits<float>(v); }
static inline int __float_as_int(float v) { return hostcuda_bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return hostcuda_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return hostcuda_bits<unsigned>(v); }
static inline double __longlong_as_double(long long v) { return hostcuda_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return hostcuda_bits<long long>(v); }
static inline int __double2hiint(double v) { return int(hostcuda_bits<long long>(v) >> 32); }
static inline int __double2loint(double v) { return int(hostcuda_bits<long long>(v)); }
static inline double __hiloint2double(int hi, int lo) {
  return hostcuda_bits<double>((long long)hi << 32 | unsigned(lo));
}

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline int __mul24(int a, int b) { return a * b; }
static inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((unsigned long long)a * b >> 32);
}
static inline unsigned __brev(unsigned v) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i, v >>= 1) reversed = reversed << 1 | (v & 1);
  return reversed;
}

// The C library has these since glibc 2.42 and 2.41.
#if !__GLIBC_PREREQ(2, 42)
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
#endif
#if !__GLIBC_PREREQ(2, 41)
static inline float sinpif(float x) { return sinf(float(M_PI) * x); }
static inline double sinpi(double x) { return sin(M_PI * x); }
static inline float cospif(float x) { return cosf(float(M_PI) * x); }
static inline double cospi(double x) { return cos(M_PI * x); }
#endif
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  unsigned long long both = a | (unsigned long long)b << 32;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) found |= unsigned(both >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}
static inline unsigned long long __brevll(unsigned long long v) {
  return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline unsigned __sad(int a, int b, unsigned c) { return unsigned(a < b ? b - a : a - b) + c; }
static inline unsigned __usad(unsigned a, unsigned b, unsigned c) {
  return (a < b ? b - a : a - b) + c;
}
// From floating point to integers as a GPU does it: NaN is 0, and what is too large the largest.
template <class To, class From>
static To hostcuda_to_integer(From x) {
  if (x != x) return 0;
  const From limit = ldexp(From(1), int(8 * sizeof(To)) - (To(-1) < To(0)));
  const To most = To(-1) < To(0) ? To(~(To(1) << (8 * sizeof(To) - 1))) : To(-1);
  if (x >= limit) return most;
  return x < (To(-1) < To(0) ? -limit : From(0)) ? To(-1) < To(0) ? To(-most - 1) : To(0) : To(x);
}
#define HOSTCUDA_TO_INTEGER(from, type, to, integer)                                           \
  static inline integer __##from##2##to##_rn(type x) { return hostcuda_to_integer<integer>(rint(x)); } \
  static inline integer __##from##2##to##_rz(type x) { return hostcuda_to_integer<integer>(trunc(x)); } \
  static inline integer __##from##2##to##_rd(type x) { return hostcuda_to_integer<integer>(floor(x)); } \
  static inline integer __##from##2##to##_ru(type x) { return hostcuda_to_integer<integer>(ceil(x)); }
HOSTCUDA_TO_INTEGER(float, float, int, int)
HOSTCUDA_TO_INTEGER(float, float, uint, unsigned)
HOSTCUDA_TO_INTEGER(float, float, ll, long long)
HOSTCUDA_TO_INTEGER(double, double, int, int)
HOSTCUDA_TO_INTEGER(double, double, uint, unsigned)
HOSTCUDA_TO_INTEGER(double, double, ll, long long)
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline double __int2double_rn(int x) { return x; }
static inline float __double2float_rn(double x) { return float(x); }
template <class T>
static T __ldcs(const T *p) {
  return *p;
}
template <class T>
static void __stcs(T *p, T value) {
  *p = value;
}
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicCAS_block atomicCAS
#define atomicCAS_system atomicCAS
static inline float rcbrtf(float x) { return 1 / cbrtf(x); }
static inline float rhypotf(float x, float y) { return 1 / hypotf(x, y); }
static inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
static inline double norm3d(double x, double y, double z) { return sqrt(x * x + y * y + z * z); }
static inline float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline double rcbrt(double x) { return 1 / cbrt(x); }
static inline double rhypot(double x, double y) { return 1 / hypot(x, y); }
static inline double normcdf(double x) { return erfc(-x * M_SQRT1_2) / 2; }
static inline double erfcinv(double y) {  // Newton's method; erfc is convex on each side of 1
  double x = y > 1 ? -1 : 1, step = 1;
  if (y <= 0 || y >= 2) return y == 0 ? HUGE_VAL : y == 2 ? -HUGE_VAL : NAN;
  for (int i = 0; i < 100 && fabs(step) > 1e-16; ++i) {
    step = (erfc(x) - y) * sqrt(M_PI) / 2 * exp(x * x);
    if (fabs(step) > 1) step = copysign(1, step);
    x += step;
  }
  return x;
}
static inline double erfinv(double y) { return erfcinv(1 - y); }
static inline double normcdfinv(double y) { return -M_SQRT2 * erfcinv(2 * y); }
static inline float erfinvf(float y) { return float(erfinv(y)); }
static inline float erfcinvf(float y) { return float(erfcinv(y)); }
static inline float normcdff(float x) { return float(normcdf(x)); }
static inline float normcdfinvf(float y) { return float(normcdfinv(y)); }
static inline void sincos(float x, float *s, float *c) { sincosf(x, s, c); }
static inline float saturate(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static inline float __saturatef(float x) { return saturate(x); }
// Macros, because the C library has functions of these names.
#define __expf(x) expf(x)
#define __exp10f(x) powf(10, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
static inline float __fdividef(float x, float y) { return x / y; }
static inline double ddivide(double x, double y) { return x / y; }
#define HOSTCUDA_ROUNDED(suffix)                                                           \
  static inline float __fadd_##suffix(float a, float b) { return a + b; }                  \
  static inline float __fsub_##suffix(float a, float b) { return a - b; }                  \
  static inline float __fmul_##suffix(float a, float b) { return a * b; }                  \
  static inline float __fdiv_##suffix(float a, float b) { return a / b; }                  \
  static inline float __fmaf_##suffix(float a, float b, float c) { return fmaf(a, b, c); } \
  static inline float __frcp_##suffix(float a) { return 1 / a; }                           \
  static inline float __fsqrt_##suffix(float a) { return sqrtf(a); }                       \
  static inline double __dadd_##suffix(double a, double b) { return a + b; }               \
  static inline double __dsub_##suffix(double a, double b) { return a - b; }               \
  static inline double __dmul_##suffix(double a, double b) { return a * b; }               \
  static inline double __ddiv_##suffix(double a, double b) { return a / b; }               \
  static inline double __fma_##suffix(double a, double b, double c) { return fma(a, b, c); }
HOSTCUDA_ROUNDED(rn)
HOSTCUDA_ROUNDED(rz)
HOSTCUDA_ROUNDED(ru)
HOSTCUDA_ROUNDED(rd)

// ---- textures and surfaces ----------------------------------------------------------------------

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaSurfaceBoundaryMode {
  cudaBoundaryModeZero = hostcuda_boundary_zero,
  cudaBoundaryModeClamp = hostcuda_boundary_clamp,
  cudaBoundaryModeTrap = hostcuda_boundary_trap
};

template <class T, class = void>
struct hostcuda_channel {
  using type = T;
};
template <class T>
struct hostcuda_channel<T, std::void_t<decltype(T::x)>> {
  using type = decltype(T::x);
};
// A texel of type T, a number or a vector, from the words of its channels.
template <class T>
static T hostcuda_texel(const unsigned *words) {
  using Channel = typename hostcuda_channel<T>::type;
  Channel channels[sizeof(T) / sizeof(Channel)];
  for (unsigned word, i = 0; i < sizeof channels / sizeof *channels; ++i) {
    word = words[i];
    if (std::is_same<Channel, float>::value)
      memcpy(&channels[i], &word, sizeof channels[i]);
    else
      channels[i] = Channel(word);
  }
  T texel;
  memcpy(&texel, channels, sizeof texel);
  return texel;
}
#define HOSTCUDA_TEXTURE(name, parameters, arguments, fetch)              \
  template <class T>                                                      \
  static T name(cudaTextureObject_t texture, HOSTCUDA_LIST parameters) {  \
    unsigned words[4];                                                    \
    fetch;                                                                \
    return hostcuda_texel<T>(words);                                      \
  }                                                                       \
  template <class T>                                                      \
  static void name(T *to, cudaTextureObject_t texture, HOSTCUDA_LIST parameters) { \
    *to = name<T>(texture, HOSTCUDA_LIST arguments);                      \
  }
#define HOSTCUDA_LIST(...) __VA_ARGS__
#define HOSTCUDA_SAMPLE(dimensions, layer, ...) \
  const float at[] = {__VA_ARGS__};             \
  hostcuda_sample(texture, dimensions, at, layer, words)
HOSTCUDA_TEXTURE(tex1Dfetch, (int i), (i), hostcuda_fetch(texture, i, words))
HOSTCUDA_TEXTURE(tex1D, (float x), (x), HOSTCUDA_SAMPLE(1, 0, x))
HOSTCUDA_TEXTURE(tex2D, (float x, float y), (x, y), HOSTCUDA_SAMPLE(2, 0, x, y))
HOSTCUDA_TEXTURE(tex3D, (float x, float y, float z), (x, y, z), HOSTCUDA_SAMPLE(3, 0, x, y, z))
HOSTCUDA_TEXTURE(tex1DLayered, (float x, int layer), (x, layer), HOSTCUDA_SAMPLE(1, layer, x))
HOSTCUDA_TEXTURE(tex2DLayered, (float x, float y, int layer), (x, y, layer),
                 HOSTCUDA_SAMPLE(2, layer, x, y))

#define HOSTCUDA_SURFACE(name, parameters, arguments, x, y, z)                                     \
  template <class T>                                                                               \
  static T name##read(cudaSurfaceObject_t surface, HOSTCUDA_LIST parameters,                       \
                      cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                       \
    T value{};                                                                                     \
    const char *from = hostcuda_surface(surface, x, y, z, sizeof value, mode);                     \
    if (from) memcpy(&value, from, sizeof value);                                                  \
    return value;                                                                                  \
  }                                                                                                \
  template <class T>                                                                               \
  static void name##read(T *to, cudaSurfaceObject_t surface, HOSTCUDA_LIST parameters,             \
                         cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                    \
    *to = name##read<T>(surface, HOSTCUDA_LIST arguments, mode);                                   \
  }                                                                                                \
  template <class T>                                                                               \
  static void name##write(T value, cudaSurfaceObject_t surface, HOSTCUDA_LIST parameters,          \
                          cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                   \
    char *to = hostcuda_surface(surface, x, y, z, sizeof value, mode);                             \
    if (to) memcpy(to, &value, sizeof value);                                                      \
  }
HOSTCUDA_SURFACE(surf1D, (int x), (x), x, 0, 0)
HOSTCUDA_SURFACE(surf2D, (int x, int y), (x, y), x, y, 0)
HOSTCUDA_SURFACE(surf3D, (int x, int y, int z), (x, y, z), x, y, z)
HOSTCUDA_SURFACE(surf1DLayered, (int x, int layer), (x, layer), x, 0, layer)
HOSTCUDA_SURFACE(surf2DLayered, (int x, int y, int layer), (x, y, layer), x, y, layer)

// ---- the table of kernels -----------------------------------------------------------------------

alignas(16) static char hostcuda_dynamic_shared[HOSTCUDA_SHARED_BYTES + 512];  // extern __shared__ T x[];

// What a launch stores for a parameter; a reference is an address.
template <class P>
using hostcuda_stored =
    std::conditional_t<std::is_reference<P>::value, std::remove_reference_t<P> *,
                       std::remove_const_t<P>>;
template <class P>
static P hostcuda_argument(void *stored) {
  if constexpr (std::is_reference<P>::value)
    return **(hostcuda_stored<P> *)stored;
  else
    return *(hostcuda_stored<P> *)stored;
}

template <class... P>
struct hostcuda_parameters {
  static constexpr int count = sizeof...(P);
  struct Layout {
    size_t sizes[count + 1] = {sizeof(hostcuda_stored<P>)...}, offsets[count + 1] = {}, bytes = 0;
    constexpr Layout() {  // CUDA packs parameters at their natural alignment
      size_t aligns[count + 1] = {alignof(hostcuda_stored<P>)...};
      for (int i = 0; i < count; ++i) {
        bytes = (bytes + aligns[i] - 1) / aligns[i] * aligns[i];
        offsets[i] = bytes;
        bytes += sizes[i];
      }
    }
  };
  static constexpr Layout layout{};
};

template <auto Function>
struct hostcuda_entry;
template <class... P, void (*Function)(P...)>
struct hostcuda_entry<Function> {
  template <size_t... I>
  static void call(void **arguments, std::index_sequence<I...>) {
    (void)arguments;
    Function(hostcuda_argument<P>(arguments[I])...);
  }
  static void call(void **arguments) { call(arguments, std::index_sequence_for<P...>()); }
  static hostcuda_kernel make(const char *name, hostcuda_limits limits) {
    auto &layout = hostcuda_parameters<P...>::layout;
    return {name,           (void (*)())Function, call,   sizeof...(P),           layout.sizes,
            layout.offsets, layout.bytes,         limits, hostcuda_dynamic_shared};
  }
};

// What nvcc gives every source unasked, out of the host's headers, and NVRTC does not.
// Included before a source, outside of its extern "C".
#pragma once

// "Incompatible redefinition of macro": many sources bring an M_PI or INFINITY of their own, and
// so does CCCL.
#pragma nv_diag_suppress 47

// math.h
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)
#define HUGE_VALF __int_as_float(0x7f800000)
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000ll)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

// limits.h, and stdint.h's signed types: those that CCCL gives NVRTC, whose headers a source may
// include as well.
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-SHRT_MAX - 1)
#define SHRT_MAX 0x7fff
#define USHRT_MAX 0xffff
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffff
#define LONG_MIN (-LONG_MAX - 1)
#define LONG_MAX LLONG_MAX
#define ULONG_MAX ULLONG_MAX
#define LLONG_MIN (-LLONG_MAX - 1)
#define LLONG_MAX 0x7fffffffffffffffLL
#define ULLONG_MAX 0xffffffffffffffffUL
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;

// sys/types.h, stddef.h, stdlib.h
typedef unsigned char u_char;
typedef unsigned short ushort, u_short;
typedef unsigned int uint, u_int;
typedef unsigned long ulong, u_long;
typedef long ssize_t;
typedef unsigned char u_int8_t;
typedef unsigned short u_int16_t;
typedef unsigned int u_int32_t;
typedef unsigned long long u_int64_t;
#define offsetof(type, member) __builtin_offsetof(type, member)
#define RAND_MAX 2147483647

// assert.h, which nvcc includes
#ifdef NDEBUG
#define assert(condition) ((void)0)
#endif

// A word of C that C++17 has no more.
#define register

// cmath: pow takes two numbers of any types; NVRTC's takes a few pairs.
template <class T> struct bridge_number {};
#define BRIDGE_NUMBER(T) template <> struct bridge_number<T> { typedef double type; };
BRIDGE_NUMBER(bool)
BRIDGE_NUMBER(char)
BRIDGE_NUMBER(signed char)
BRIDGE_NUMBER(unsigned char)
BRIDGE_NUMBER(short)
BRIDGE_NUMBER(unsigned short)
BRIDGE_NUMBER(int)
BRIDGE_NUMBER(unsigned int)
BRIDGE_NUMBER(long)
BRIDGE_NUMBER(unsigned long)
BRIDGE_NUMBER(long long)
BRIDGE_NUMBER(unsigned long long)
BRIDGE_NUMBER(float)
BRIDGE_NUMBER(double)
#undef BRIDGE_NUMBER

template <class A, class B, class = typename bridge_number<B>::type>
inline __device__ typename bridge_number<A>::type pow(A a, B b) {
  return pow(double(a), double(b));
}

// pow of PyCUDA's complex<float> and a double: ambiguous by the standard; nvcc follows GCC, which
// takes the one in single precision.
namespace pycuda {
template <class T> struct complex;
}
template <class T> struct bridge_single {};
template <> struct bridge_single<float> { typedef pycuda::complex<float> complex; };
namespace pycuda {
template <class T>
inline __device__ typename bridge_single<T>::complex pow(const complex<T> &a, double b) {
  return pow(a, T(b));
}
template <class T>
inline __device__ typename bridge_single<T>::complex pow(double a, const complex<T> &b) {
  return pow(T(a), b);
}
}

// The host's functions that C++ has in std as well
namespace std {
using ::memcpy; using ::memset; using ::printf; using ::malloc; using ::free; using ::size_t;
using ::abs; using ::acos; using ::acosh; using ::asin; using ::asinh; using ::atan; using ::atan2;
using ::atanh; using ::cbrt; using ::ceil; using ::copysign; using ::cos; using ::cosh; using ::erf;
using ::erfc; using ::exp; using ::exp2; using ::expm1; using ::fabs; using ::fdim; using ::floor;
using ::fma; using ::fmax; using ::fmin; using ::fmod; using ::frexp; using ::hypot; using ::ilogb;
using ::isfinite; using ::isinf; using ::isnan; using ::ldexp; using ::lgamma; using ::log;
using ::log10; using ::log1p; using ::log2; using ::logb; using ::modf; using ::nearbyint;
using ::nextafter; using ::pow; using ::remainder; using ::rint; using ::round; using ::scalbn;
using ::signbit; using ::sin; using ::sinh; using ::sqrt; using ::tan; using ::tanh; using ::tgamma;
using ::trunc;
}

// What nvcc gives every source unasked, out of the host's headers, and NVRTC does not.
// Included before a source, outside of its extern "C".
#pragma once
#ifdef __CUDACC_RTC__

// "Incompatible redefinition of macro": many sources bring an M_PI or INFINITY of their own, and
// so does CCCL.
#pragma nv_diag_suppress 47

// math.h
#ifdef __has_builtin
#if __has_builtin(__builtin_bit_cast)  // constants, but NVRTC 12.0 has none
#define BRIDGE_FLOAT(bits) __builtin_bit_cast(float, bits)
#define BRIDGE_DOUBLE(bits) __builtin_bit_cast(double, bits)
#endif
#endif
#ifndef BRIDGE_FLOAT
#define BRIDGE_FLOAT __int_as_float
#define BRIDGE_DOUBLE __longlong_as_double
#endif
#define NAN BRIDGE_FLOAT(0x7fffffff)
#define SNANF BRIDGE_FLOAT(0x7fa00000)
#define SNAN BRIDGE_DOUBLE(0x7ff4000000000000ll)
#define INFINITY BRIDGE_FLOAT(0x7f800000)
#define HUGE_VALF BRIDGE_FLOAT(0x7f800000)
#define HUGE_VAL BRIDGE_DOUBLE(0x7ff0000000000000ll)
#define MAXFLOAT 3.40282347e+38f
#define FP_NAN 0
#define FP_INFINITE 1
#define FP_ZERO 2
#define FP_SUBNORMAL 3
#define FP_NORMAL 4
#define FP_ILOGB0 (-2147483647 - 1)
#define FP_ILOGBNAN (-2147483647 - 1)
#define MATH_ERRNO 1
#define MATH_ERREXCEPT 2
#define math_errhandling 3
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
#define M_Ef 2.7182818284590452354f
#define M_LOG2Ef 1.4426950408889634074f
#define M_LOG10Ef 0.43429448190325182765f
#define M_LN2f 0.69314718055994530942f
#define M_LN10f 2.30258509299404568402f
#define M_PIf 3.14159265358979323846f
#define M_PI_2f 1.57079632679489661923f
#define M_PI_4f 0.78539816339744830962f
#define M_1_PIf 0.31830988618379067154f
#define M_2_PIf 0.63661977236758134308f
#define M_2_SQRTPIf 1.12837916709551257390f
#define M_SQRT2f 1.41421356237309504880f
#define M_SQRT1_2f 0.70710678118654752440f

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
#define LONG_LONG_MIN LLONG_MIN
#define LONG_LONG_MAX LLONG_MAX
#define ULONG_LONG_MAX ULLONG_MAX
#define SSIZE_MAX LONG_MAX
#define BOOL_MAX 1
#define BOOL_WIDTH 1
#define CHAR_WIDTH 8
#define SCHAR_WIDTH 8
#define UCHAR_WIDTH 8
#define SHRT_WIDTH 16
#define USHRT_WIDTH 16
#define INT_WIDTH 32
#define UINT_WIDTH 32
#define LONG_WIDTH 64
#define ULONG_WIDTH 64
#define LLONG_WIDTH 64
#define ULLONG_WIDTH 64
#define WORD_BIT 32
#define LONG_BIT 64
#define __WORDSIZE 64
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;

// sys/types.h, stddef.h, stdbool.h, stdlib.h, stdio.h, time.h
typedef unsigned char u_char;
typedef unsigned short ushort, u_short;
typedef unsigned int uint, u_int;
typedef unsigned long ulong, u_long;
typedef long ssize_t;
typedef unsigned char u_int8_t;
typedef unsigned short u_int16_t;
typedef unsigned int u_int32_t;
typedef unsigned long long u_int64_t;
#define offsetof(type, member) ((size_t)__INTADDR__(&((type *)0)->member))
#define _Bool bool
#define __bool_true_false_are_defined 1
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 2147483647
#define EOF (-1)
#define CLOCKS_PER_SEC ((clock_t)1000000)

// endian.h, and GCC's own names.  Without, `#if BYTE_ORDER == BIG_ENDIAN` would compare 0 with 0.
#define LITTLE_ENDIAN 1234
#define BIG_ENDIAN 4321
#define PDP_ENDIAN 3412
#define BYTE_ORDER LITTLE_ENDIAN
#define __LITTLE_ENDIAN LITTLE_ENDIAN
#define __BIG_ENDIAN BIG_ENDIAN
#define __PDP_ENDIAN PDP_ENDIAN
#define __BYTE_ORDER LITTLE_ENDIAN
#define __FLOAT_WORD_ORDER LITTLE_ENDIAN
#define __ORDER_LITTLE_ENDIAN__ LITTLE_ENDIAN
#define __ORDER_BIG_ENDIAN__ BIG_ENDIAN
#define __ORDER_PDP_ENDIAN__ PDP_ENDIAN
#define __BYTE_ORDER__ LITTLE_ENDIAN
#define __FLOAT_WORD_ORDER__ LITTLE_ENDIAN

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
#endif

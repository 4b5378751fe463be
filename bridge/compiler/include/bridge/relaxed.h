// With --expt-relaxed-constexpr nvcc takes the constexpr functions of the host's C++ library in
// device code: overloads of cmath for integers and for mixed types, and std::min and std::max.
#pragma once
#ifdef __CUDACC_RTC__
template <class T> struct bridge_integer : bridge_number<T> {};
template <> struct bridge_integer<float> {};
template <> struct bridge_integer<double> {};
#define BRIDGE_ONE(name)                                                                   \
  template <class T> __device__ inline typename bridge_integer<T>::type name(T x) {        \
    return name(double(x));                                                                \
  }
BRIDGE_ONE(acos) BRIDGE_ONE(acosh) BRIDGE_ONE(asin) BRIDGE_ONE(asinh) BRIDGE_ONE(atan)
BRIDGE_ONE(atanh) BRIDGE_ONE(cbrt) BRIDGE_ONE(ceil) BRIDGE_ONE(cos) BRIDGE_ONE(cosh) BRIDGE_ONE(erf)
BRIDGE_ONE(erfc) BRIDGE_ONE(exp) BRIDGE_ONE(exp2) BRIDGE_ONE(expm1) BRIDGE_ONE(fabs)
BRIDGE_ONE(floor) BRIDGE_ONE(lgamma) BRIDGE_ONE(log) BRIDGE_ONE(log10) BRIDGE_ONE(log1p)
BRIDGE_ONE(log2) BRIDGE_ONE(nearbyint) BRIDGE_ONE(rint) BRIDGE_ONE(round) BRIDGE_ONE(sin)
BRIDGE_ONE(sinh) BRIDGE_ONE(sqrt) BRIDGE_ONE(tan) BRIDGE_ONE(tanh) BRIDGE_ONE(tgamma)
BRIDGE_ONE(trunc)
#undef BRIDGE_ONE
// Two numbers of different types: in double precision, which a float and an integer have as well.
template <class A, class B> struct bridge_mixed { typedef double type; };
template <class T> struct bridge_mixed<T, T> : bridge_integer<T> {};
#define BRIDGE_TWO(name)                                                                  \
  template <class A, class B, class = typename bridge_number<A>::type,                           \
            class = typename bridge_number<B>::type>                                             \
  __device__ inline typename bridge_mixed<A, B>::type name(A x, B y) {                    \
    return name(double(x), double(y));                                                           \
  }
BRIDGE_TWO(atan2) BRIDGE_TWO(copysign) BRIDGE_TWO(fdim) BRIDGE_TWO(fmax) BRIDGE_TWO(fmin)
BRIDGE_TWO(fmod) BRIDGE_TWO(hypot) BRIDGE_TWO(nextafter) BRIDGE_TWO(remainder)
#undef BRIDGE_TWO
namespace std {
template <class T> __device__ constexpr const T &min(const T &a, const T &b) { return b < a ? b : a; }
template <class T> __device__ constexpr const T &max(const T &a, const T &b) { return a < b ? b : a; }
template <class T> __device__ inline void swap(T &a, T &b) { T c = a; a = b; b = c; }
}
#endif

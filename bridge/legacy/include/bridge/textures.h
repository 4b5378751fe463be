// Texture and surface references, which CUDA 12 removed, over texture and surface objects.
// Included before a source that declares some. `bridge.legacy.textures` reads what a declaration
// says from the module's memory, and writes the object there.
#pragma once

#ifndef cudaTextureType1D
#define cudaTextureType1D 1
#define cudaTextureType2D 2
#define cudaTextureType3D 3
#define cudaTextureType1DLayered 0xF1
#define cudaTextureType2DLayered 0xF2
#endif
#ifndef cudaSurfaceType1D
#define cudaSurfaceType1D 1
#define cudaSurfaceType2D 2
#define cudaSurfaceType3D 3
#define cudaSurfaceType1DLayered 0xF1
#define cudaSurfaceType2DLayered 0xF2
#endif

// The channels of a texel: a number, or a vector of one, two or four.
template <class T> struct bridge_no_void { typedef void type; };
template <class T, class = void> struct bridge_texel {
  typedef T channel;
  enum { channels = 1 };
  typedef float fraction;
};
template <int n> struct bridge_floats;
template <> struct bridge_floats<1> { typedef float1 type; };
template <> struct bridge_floats<2> { typedef float2 type; };
template <> struct bridge_floats<4> { typedef float4 type; };
template <class T> struct bridge_texel<T, typename bridge_no_void<decltype(T::x)>::type> {
  typedef decltype(T::x) channel;
  enum { channels = sizeof(T) / sizeof(channel) };
  typedef typename bridge_floats<channels>::type fraction;
};

template <class T, int dim = 1, enum cudaTextureReadMode mode = cudaReadModeElementType>
struct texture {
  typedef typename bridge_texel<T>::channel channel;
  cudaTextureObject_t object = 0;
  int magic = 0x74786574, dimensions = dim, channels = bridge_texel<T>::channels;
  int bytes = sizeof(channel);
  int kind = channel(0.5f) != channel(0) ? 'f' : channel(-1) < channel(0) ? 'i' : 'u';
  int fractions = mode == cudaReadModeNormalizedFloat;
};
template <class T, int dim = 1> struct surface {
  cudaSurfaceObject_t object = 0;
  int magic = 0x66727573, dimensions = dim, channels = 0, bytes = 0, kind = 0, fractions = 0;
};

// What a fetch returns.
template <class T, enum cudaTextureReadMode mode> struct bridge_fetched { typedef T type; };
template <class T> struct bridge_fetched<T, cudaReadModeNormalizedFloat> {
  typedef typename bridge_texel<T>::fraction type;
};

#define BRIDGE_LIST(...) __VA_ARGS__
#define BRIDGE_FETCH(name, dim, parameters, arguments)                             \
  template <class T, enum cudaTextureReadMode mode>                                \
  __device__ inline typename bridge_fetched<T, mode>::type name(                   \
      const texture<T, dim, mode> &t, BRIDGE_LIST parameters) {                    \
    return name<typename bridge_fetched<T, mode>::type>(t.object, BRIDGE_LIST arguments); \
  }
BRIDGE_FETCH(tex1Dfetch, 1, (int x), (x))
BRIDGE_FETCH(tex1D, 1, (float x), (x))
BRIDGE_FETCH(tex2D, 2, (float x, float y), (x, y))
BRIDGE_FETCH(tex3D, 3, (float x, float y, float z), (x, y, z))
BRIDGE_FETCH(tex1DLayered, cudaTextureType1DLayered, (float x, int layer), (x, layer))
BRIDGE_FETCH(tex2DLayered, cudaTextureType2DLayered, (float x, float y, int layer), (x, y, layer))

#define BRIDGE_SURFACE(name, dim, parameters, arguments)                                     \
  template <class T, class S>                                                                \
  __device__ inline void name##write(                                                        \
      T value, const surface<S, dim> &s, BRIDGE_LIST parameters,                             \
      enum cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                            \
    name##write(value, s.object, BRIDGE_LIST arguments, mode);                               \
  }                                                                                          \
  template <class T, class S>                                                                \
  __device__ inline void name##read(                                                         \
      T *value, const surface<S, dim> &s, BRIDGE_LIST parameters,                            \
      enum cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                            \
    *value = name##read<T>(s.object, BRIDGE_LIST arguments, mode);                           \
  }                                                                                          \
  template <class T, class S>                                                                \
  __device__ inline T name##read(                                                            \
      const surface<S, dim> &s, BRIDGE_LIST parameters,                                      \
      enum cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {                            \
    return name##read<T>(s.object, BRIDGE_LIST arguments, mode);                             \
  }
BRIDGE_SURFACE(surf1D, 1, (int x), (x))
BRIDGE_SURFACE(surf2D, 2, (int x, int y), (x, y))
BRIDGE_SURFACE(surf3D, 3, (int x, int y, int z), (x, y, z))
BRIDGE_SURFACE(surf1DLayered, cudaSurfaceType1DLayered, (int x, int layer), (x, layer))
BRIDGE_SURFACE(surf2DLayered, cudaSurfaceType2DLayered, (int x, int y, int layer), (x, y, layer))

// PyCUDA's <pycuda-helpers.hpp> has these before CUDA 12: texels that are pairs of integers, read and
// written as double and complex numbers.
namespace pycuda {
template <class T> struct complex;
}
template <class T> __device__ inline T bridge_number_of(T texel) { return texel; }
template <class D = double> __device__ inline D bridge_number_of(int2 v) {
  return __hiloint2double(v.y, v.x);
}
template <class C = pycuda::complex<float>> __device__ inline C bridge_number_of(uint2 v) {
  return C(__uint_as_float(v.x), __uint_as_float(v.y));
}
template <class C = pycuda::complex<double>> __device__ inline C bridge_number_of(int4 v) {
  return C(__hiloint2double(v.y, v.x), __hiloint2double(v.w, v.z));
}
__device__ inline uint2 bridge_texel_of_pair(float x, float y) {
  return make_uint2(__float_as_uint(x), __float_as_uint(y));
}
__device__ inline int4 bridge_texel_of_pair(double x, double y) {
  return make_int4(__double2loint(x), __double2hiint(x), __double2loint(y), __double2hiint(y));
}
template <class T> __device__ inline T bridge_texel_of(T number) { return number; }
__device__ inline int2 bridge_texel_of(double x) {
  return make_int2(__double2loint(x), __double2hiint(x));
}
template <class T> __device__ inline auto bridge_texel_of(const pycuda::complex<T> &z) {
  return bridge_texel_of_pair(z.real(), z.imag());
}

#define BRIDGE_FP_FETCH(name, dim, parameters, arguments)                                    \
  template <class T, enum cudaTextureReadMode mode>                                          \
  __device__ inline auto fp_##name(const texture<T, dim, mode> &t, BRIDGE_LIST parameters) { \
    return bridge_number_of(name(t, BRIDGE_LIST arguments));                                    \
  }
BRIDGE_FP_FETCH(tex1Dfetch, 1, (int x), (x))
BRIDGE_FP_FETCH(tex2D, 2, (int x, int y), (x, y))
BRIDGE_FP_FETCH(tex3D, 3, (int x, int y, int z), (x, y, z))
BRIDGE_FP_FETCH(tex2DLayered, cudaTextureType2DLayered, (float x, float y, int layer),
                (x, y, layer))

#define BRIDGE_FP_SURFACE(name, dim)                                                           \
  template <class T>                                                                           \
  __device__ inline void fp_##name##write(T number, const surface<void, dim> &s, int x, int y, \
                                          int z, enum cudaSurfaceBoundaryMode mode) {          \
    auto texel = bridge_texel_of(number);                                                      \
    name##write(texel, s, x * int(sizeof texel), y, z, mode);                                  \
  }                                                                                            \
  template <class T>                                                                           \
  __device__ inline void fp_##name##read(T *number, const surface<void, dim> &s, int x, int y, \
                                         int z, enum cudaSurfaceBoundaryMode mode) {           \
    decltype(bridge_texel_of(*number)) texel;                                                  \
    name##read(&texel, s, x * int(sizeof texel), y, z, mode);                                  \
    *number = bridge_number_of(texel);                                                            \
  }
BRIDGE_FP_SURFACE(surf3D, 3)
BRIDGE_FP_SURFACE(surf2DLayered, cudaSurfaceType2DLayered)

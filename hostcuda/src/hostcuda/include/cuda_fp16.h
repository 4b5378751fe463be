// Half precision, as far as CuPy's float16 needs it: storage, and conversion from and to float.
#pragma once

static inline float __half_bits2float(unsigned short bits) {
  unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  float size = exponent ? ldexpf(1024 + fraction, int(exponent) - 25) : ldexpf(fraction, -24);
  return sign ? -size : size;
}

static inline unsigned short __float2half_bits(float value) {
  unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
  float size = fabsf(value);
  if (size != size) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00u;  // rounds to infinity
  int exponent;
  frexpf(size, &exponent);
  if (!size || exponent < -13) exponent = -13;  // subnormal: the spacing stops shrinking
  // The fraction in units of the last place, rounded to even; a carry runs into the exponent.
  unsigned units = unsigned(nearbyintf(ldexpf(size, 11 - exponent)));
  return sign | (((exponent + 13) << 10) + units);
}

struct __half_raw {
  unsigned short x;
};

struct half {
  unsigned short bits;
  half() {}
  half(const __half_raw &raw) : bits(raw.x) {}
  half(float value) : bits(__float2half_bits(value)) {}
  operator float() const { return __half_bits2float(bits); }
  operator __half_raw() const { return {bits}; }
};
typedef half __half;

static inline unsigned short __half_as_ushort(half value) { return value.bits; }
static inline half __ushort_as_half(unsigned short bits) { return half(__half_raw{bits}); }

static inline float __half2float(half value) { return value; }
static inline half __float2half(float value) { return half(value); }
static inline half __float2half_rn(float value) { return half(value); }
static inline half __hadd(half a, half b) { return half(float(a) + float(b)); }
static inline half __hsub(half a, half b) { return half(float(a) - float(b)); }
static inline half __hmul(half a, half b) { return half(float(a) * float(b)); }

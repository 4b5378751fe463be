// PTX's arithmetic in C++, for translated modules. Source of what each function answers: the PTX
// ISA, "Instruction Set".
#pragma once
#include "translated.h"

#define HC_RARE(condition) __builtin_expect(!!(condition), 0)

template <class To, class From>
static inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// ---- memory --------------------------------------------------------------------------------------

// Turned right by the size's bits, an offset that is no multiple of the size is a huge number.
template <int N>
static inline u64 multiple(u64 offset) {
  constexpr int by = N == 1 ? 0 : N == 2 ? 1 : N == 4 ? 2 : N == 8 ? 3 : N == 16 ? 4 : 5;
  return by ? offset >> by | offset << (64 - by) : offset;
}
template <int N>
static inline char *at(hc_thread *t, hc_site *site, u64 address) {
  if (HC_RARE(multiple<N>(address - site->start) >= site->count)) return hc_access(t, site, address);
  return (char *)address;
}
template <int N>
static inline char *at_shared(hc_thread *t, hc_site *site, char *shared, u64 bytes, u64 offset) {
  if (HC_RARE(multiple<N>(offset) >= bytes / N)) return hc_access(t, site, offset);
  return shared + offset;
}
template <int N>
static inline char *at_local(hc_thread *t, hc_site *site, char *start, u64 bytes, u64 address) {
  if (HC_RARE(multiple<N>(address - u64(start)) >= bytes / N)) return hc_access(t, site, address);
  return (char *)address;
}
template <class T> static inline T load(const char *p) { return *(const T *)p; }
template <class T> static inline void store(char *p, T value) { *(T *)p = value; }
template <class T> static inline T load_volatile(const char *p) { return *(const volatile T *)p; }
template <class T> static inline void store_volatile(char *p, T value) { *(volatile T *)p = value; }

// ---- integers ------------------------------------------------------------------------------------

template <class T> static inline T div(T a, T b) { return b == 0 ? T(-1) : T(a / b); }
template <class T> static inline T rem(T a, T b) { return b == 0 ? a : T(a % b); }
#define HC_SIGNED_DIVISION(T)                                                                    \
  template <> inline T div(T a, T b) { return b == 0 ? T(-1) : b == T(-1) ? T(0 - a) : T(a / b); } \
  template <> inline T rem(T a, T b) { return b == 0 ? a : b == T(-1) ? T(0) : T(a % b); }
HC_SIGNED_DIVISION(s16)
HC_SIGNED_DIVISION(s32)
HC_SIGNED_DIVISION(s64)

static inline u16 mul_hi(u16 a, u16 b) { return u16(u32(a) * b >> 16); }
static inline s16 mul_hi(s16 a, s16 b) { return s16(s32(a) * b >> 16); }
static inline u32 mul_hi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
static inline s32 mul_hi(s32 a, s32 b) { return s32(s64(a) * b >> 32); }
static inline u64 mul_hi(u64 a, u64 b) { return u64((unsigned __int128)a * b >> 64); }
static inline s64 mul_hi(s64 a, s64 b) { return s64((__int128)a * b >> 64); }
static inline s32 low24(s32 a) { return s32(u32(a) << 8) >> 8; }
static inline u32 low24(u32 a) { return a & 0xffffff; }
static inline s32 mul24_lo(s32 a, s32 b) { return s32(s64(low24(a)) * low24(b)); }
static inline u32 mul24_lo(u32 a, u32 b) { return low24(a) * low24(b); }
static inline s32 mul24_hi(s32 a, s32 b) { return s32(s64(low24(a)) * low24(b) >> 16); }
static inline u32 mul24_hi(u32 a, u32 b) { return u32(u64(low24(a)) * low24(b) >> 16); }

static inline s32 sat_s32(s64 x) {
  return x > 0x7fffffff ? 0x7fffffff : x < -0x80000000ll ? s32(0x80000000) : s32(x);
}
template <class T> static inline T shl(T a, u32 by) { return by >= 8 * sizeof(T) ? 0 : T(a << by); }
template <class T> static inline T shr(T a, u32 by) {
  constexpr u32 most = 8 * sizeof(T) - 1;
  return by <= most ? T(a >> by) : T(-1) < T(0) ? T(a >> most) : T(0);
}
static inline u32 shf_l(u32 a, u32 b, u32 n) { return n ? n > 31 ? a : b << n | a >> (32 - n) : b; }
static inline u32 shf_r(u32 a, u32 b, u32 n) { return n ? n > 31 ? b : b << (32 - n) | a >> n : a; }
static inline u32 least(u32 a, u32 b) { return a < b ? a : b; }

template <class T> static inline T bfe(T a, u32 start, u32 length) {
  constexpr u32 width = 8 * sizeof(T);
  start &= 255, length &= 255;
  if (!length) return 0;
  u32 last = least(start + length - 1, width - 1);  // the sign, where the field ends outside
  T sign = T(-1) < T(0) ? T(0 - (a >> last & 1)) : T(0);
  if (start >= width) return sign;
  if (length > width - start) length = width - start;
  if (length == width) return a;
  T mask = T((T(1) << length) - 1);
  return T((a >> start & mask) | (sign & ~mask));
}
template <class T> static inline T bfi(T a, T b, u32 start, u32 length) {
  constexpr u32 width = 8 * sizeof(T);
  start &= 255, length &= 255;
  if (!length || start >= width) return b;
  T mask = length >= width ? T(-1) : T((T(1) << length) - 1);
  mask <<= start;
  return T((b & ~mask) | (a << start & mask));
}
static inline u32 popc(u32 a) { return __builtin_popcount(a); }
static inline u32 popc(u64 a) { return __builtin_popcountll(a); }
static inline u32 clz(u32 a) { return a ? __builtin_clz(a) : 32; }
static inline u32 clz(u64 a) { return a ? __builtin_clzll(a) : 64; }
static inline u32 brev(u32 a) {
  a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
  a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
  a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(a);
}
static inline u64 brev(u64 a) { return u64(brev(u32(a))) << 32 | brev(u32(a >> 32)); }
static inline u32 bfind(u32 a) { return 31 - clz(a); }
static inline u32 bfind(u64 a) { return 63 - clz(a); }
static inline u32 bfind(s32 a) { return bfind(u32(a < 0 ? ~a : a)); }
static inline u32 bfind(s64 a) { return bfind(u64(a < 0 ? ~a : a)); }
template <class T> static inline u32 bfind_shift(T a) {
  u32 found = bfind(a);
  return found == ~0u ? found : u32(8 * sizeof(T) - 1) - found;
}
static inline u32 fns(u32 mask, u32 base, s32 offset) {
  if (base > 31) return ~0u;
  if (!offset) return mask >> base & 1 ? base : ~0u;
  int step = offset > 0 ? 1 : -1, left = offset > 0 ? offset : -offset;
  for (int i = int(base); i >= 0 && i < 32; i += step)
    if (mask >> i & 1 && --left == 0) return u32(i);
  return ~0u;
}
static inline u32 prmt(u32 a, u32 b, u32 selector) {
  u64 both = u64(b) << 32 | a;
  u32 found = 0;
  for (int i = 0; i < 4; ++i) {
    u32 choice = selector >> 4 * i & 15, byte = u32(both >> 8 * (choice & 7)) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;
    found |= byte << 8 * i;
  }
  return found;
}
template <class A, class B, class C> static inline C dp4a(u32 a, u32 b, C c) {
  for (int i = 0; i < 4; ++i) c += C(A(a >> 8 * i)) * C(B(b >> 8 * i));
  return c;
}
template <class A, class B, class C> static inline C dp2a(u32 a, u32 b, C c, int high) {
  for (int i = 0; i < 2; ++i) c += C(A(a >> 16 * i)) * C(B(b >> 8 * (i + 2 * high)));
  return c;
}
template <class T> static inline T sad(T a, T b, T c) { return T((a < b ? b - a : a - b) + c); }

// Of each byte or half; put together, or added to `c`.
template <class T> static inline u32 absolute_differences(u32 a, u32 b, u32 c, bool add) {
  u32 sum = add ? c : 0;
  for (u32 at = 0; at < 32; at += 8 * sizeof(T)) {
    s32 x = T(a >> at), y = T(b >> at);
    u32 difference = u32(x < y ? y - x : x - y);
    sum += add ? difference : (difference & (sizeof(T) == 1 ? 0xff : 0xffff)) << at;
  }
  return sum;
}
template <class T> static inline T add_carry(T a, T b, u32 in, u32 &out) {
  unsigned __int128 sum = (unsigned __int128)a + b + in;
  out = u32(sum >> 8 * sizeof(T)) & 1;
  return T(sum);
}
// The flag is the carry of a + ~b, the borrow's complement: addc after sub.cc sees it (a GPU's way).
template <class T> static inline T sub_carry(T a, T b, u32 in, u32 &out) {
  return add_carry(a, T(~b), in, out);
}

// ---- floats --------------------------------------------------------------------------------------

static inline f32 flush(f32 x) {
  return bits<u32>(x) & 0x7f800000 ? x : bits<f32>(bits<u32>(x) & 0x80000000);
}
// A GPU flushes what is subnormal before it is rounded to a subnormal number's bits.
template <class F> static inline f32 flush(f32 x, F scaled) {
  bool is_least = (bits<u32>(x) & 0x7fffffff) == 0x800000;
  return flush(is_least && __builtin_fabsf(scaled()) < 0x1p-62f ? bits<f32>(bits<u32>(x) - 1) : x);
}
template <class T> static inline T sat(T x) { return x > T(0) ? x < T(1) ? x : T(1) : T(0); }
static inline bool is_nan(f32 x) { return x != x; }
static inline bool is_nan(f64 x) { return x != x; }
static inline f32 nan_of(f32) { return bits<f32>(0x7fffffffu); }
static inline f64 nan_of(f64 x) { return x + x; }  // of a NaN, it keeps the sign
static inline bool sign(f32 x) { return bits<u32>(x) >> 31; }
static inline bool sign(f64 x) { return bits<u64>(x) >> 63; }
static inline f32 negate(f32 x) { return bits<f32>(bits<u32>(x) ^ 0x80000000u); }
static inline f32 absolute(f32 x) { return bits<f32>(bits<u32>(x) & 0x7fffffffu); }
// A GPU adds zero to a double for its sign or size, which leaves the sign of NaN.
static inline f64 negate(f64 x) { return HC_RARE(is_nan(x)) ? x + x : -x; }
static inline f64 absolute(f64 x) { return HC_RARE(is_nan(x)) ? x + x : __builtin_fabs(x); }
static inline f32 copy_sign(f32 from, f32 to) { return __builtin_copysignf(to, from); }
static inline f64 copy_sign(f64 from, f64 to) { return __builtin_copysign(to, from); }
// What arithmetic makes of NaN on a GPU; a processor keeps bits of the operand.
static inline f32 canonical(f32 x) { return is_nan(x) ? nan_of(x) : x; }
// The larger or smaller of the sizes, with both signs.
static inline f32 with_signs(f32 size, f32 a, f32 b) { return sign(a) != sign(b) ? negate(size) : size; }
template <class T> static inline T fmin(T a, T b) {
  if (HC_RARE(is_nan(a) || is_nan(b))) return is_nan(a) ? is_nan(b) ? nan_of(a) : b : a;
  return a < b ? a : b < a ? b : sign(a) ? a : b;
}
template <class T> static inline T fmax(T a, T b) {
  if (HC_RARE(is_nan(a) || is_nan(b))) return is_nan(a) ? is_nan(b) ? nan_of(a) : b : a;
  return a > b ? a : b > a ? b : sign(a) ? b : a;
}
template <class T> static inline T fmin_nan(T a, T b) {
  return is_nan(a) || is_nan(b) ? nan_of(a) : fmin(a, b);
}
template <class T> static inline T fmax_nan(T a, T b) {
  return is_nan(a) || is_nan(b) ? nan_of(a) : fmax(a, b);
}
static inline f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
static inline f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
static inline f32 root(f32 x) { return __builtin_sqrtf(x); }
static inline f64 root(f64 x) { return __builtin_sqrt(x); }
// By way of a double, which is right but for the last rounding.
static inline f32 rsqrt_approx(f32 x) { return f32(1 / __builtin_sqrt(f64(x))); }
static inline f64 high_word(f64 x) { return bits<f64>(bits<u64>(x) & 0xffffffff00000000ull); }
// Of the high words alone, by way of a float (equal to an H200 for all 2^20 fractions).
static inline f64 rcp_approx(f64 x) {
  u64 raw = bits<u64>(high_word(x));
  s32 exponent = s32(raw >> 52 & 2047);
  u64 sign = raw & 1ull << 63;
  if (!exponent) return bits<f64>(sign | 0x7ff0000000000000ull);
  if (exponent == 2047) return is_nan(x) ? nan_of(x) : bits<f64>(sign);
  f32 fraction = f32(bits<f64>((raw & ((1ull << 52) - 1)) | 1023ull << 52));
  u64 found = bits<u64>(high_word(f64(1 / fraction)));
  exponent = s32(found >> 52) + 1023 - exponent;
  return bits<f64>(exponent <= 0 ? sign : sign | u64(exponent) << 52 | (found & ((1ull << 52) - 1)));
}
// Of the high words alone, too: those of the float's (on an H200 for all 2^21 of two exponents).
static inline f64 rsqrt_start(f64 x) {
  u64 raw = bits<u64>(high_word(x));
  s32 exponent = s32(raw >> 52);  // with the sign
  if (exponent <= 0 || exponent >= 2047) return exponent ? 1 / __builtin_sqrt(high_word(x)) : __builtin_inf();
  s32 odd = (exponent & 1) ^ 1;  // 1023 is odd
  f64 fraction = bits<f64>((raw & ((1ull << 52) - 1)) | u64(1023 + odd) << 52);
  f64 found = high_word(f64(rsqrt_approx(f32(fraction))));
  return found * bits<f64>(u64(1023 - (exponent - 1023 - odd) / 2) << 52);
}
// A step of third order from there, as ptxas writes it.
static inline f64 rsqrt_approx(f64 x) {
  if (!(x > 0 && x < __builtin_inf())) return 1 / __builtin_sqrt(x);
  if (x < 0x1p-1022) return rsqrt_approx(x * 0x1p108) * 0x1p54;
  f64 y = rsqrt_start(x), e = __builtin_fma(x, -(y * y), 1.0);
  return __builtin_fma(__builtin_fma(e, 0.375, 0.5), y * e, y);
}
static inline f32 div_approx(f32 a, f32 b) {  // a quotient by a huge number is 0
  f32 size = absolute(b);
  if (HC_RARE(size > 0x1p126f && size < __builtin_inff())) return a == a ? a * 0.0f : a;
  return a / b;
}

// ---- conversions ---------------------------------------------------------------------------------

static inline f32 integral(hc_rounding how, f32 x) {
  return how == hc_rn   ? __builtin_rintf(x)
         : how == hc_rz ? __builtin_truncf(x)
         : how == hc_rm ? __builtin_floorf(x)
                        : __builtin_ceilf(x);
}
static inline f64 integral(hc_rounding how, f64 x) {
  return how == hc_rn   ? __builtin_rint(x)
         : how == hc_rz ? __builtin_trunc(x)
         : how == hc_rm ? __builtin_floor(x)
                        : __builtin_ceil(x);
}
// What is too large becomes the largest; NaN is 0, or the highest bit where 64 bits are involved.
template <class To, class From> static inline To to_integer(hc_rounding how, From x) {
  constexpr bool is_signed = To(-1) < To(0);
  constexpr int width = 8 * sizeof(To);
  constexpr To highest = To(u64(1) << (width - 1));
  if (HC_RARE(is_nan(x))) return sizeof(From) == 8 || sizeof(To) == 8 ? highest : To(0);
  x = integral(how, x);
  const From limit = From(u64(1) << (width - 1)) * (is_signed ? 1 : 2);
  if (HC_RARE(x >= limit)) return is_signed ? To(~highest) : To(-1);
  if (HC_RARE(is_signed ? x < -limit : x < 0)) return is_signed ? highest : To(0);
  return To(x);
}
template <class To, class From> static inline To clamp(From x) {  // between integers
  constexpr bool to_signed = To(-1) < To(0), from_signed = From(-1) < From(0);
  constexpr u64 most = (to_signed ? u64(1) << (8 * sizeof(To) - 1) : 0) - 1 &
                       (sizeof(To) == 8 ? ~0ull : (1ull << (8 * sizeof(To) % 64)) - 1);
  if (from_signed && x < From(0)) {
    if (!to_signed) return 0;
    return s64(x) < s64(~most) ? To(~most) : To(x);
  }
  return u64(x) > most ? To(most) : To(x);
}

// ---- half precision: 16 bits in a u16 -------------------------------------------------------------

static inline f32 from_half(u16 h) {
  u32 sign = u32(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return bits<f32>(sign | 0x7f800000 | fraction << 13);
  if (exponent) return bits<f32>(sign | (exponent + 112) << 23 | fraction << 13);
  f32 size = f32(fraction) * 0x1p-24f;
  return sign ? negate(size) : size;
}
static inline f32 from_bf16(u16 h) { return bits<f32>(u32(h) << 16); }

// Any narrow format: rounded from a double, which holds what is to be rounded exactly or "to odd".
template <int EXPONENT, int FRACTION> static inline u16 narrow(hc_rounding how, f64 x) {
  constexpr int bias = (1 << (EXPONENT - 1)) - 1, drop = 52 - FRACTION;
  constexpr u16 infinity = u16(((1 << EXPONENT) - 1) << FRACTION);
  u64 raw = bits<u64>(x);
  u16 sign = u16(raw >> 63 << (EXPONENT + FRACTION));
  if (is_nan(x)) return 0x7fff;
  int exponent = int(raw >> 52 & 2047) - 1023;
  if (exponent == 1024) return sign | infinity;
  u64 whole = raw & ((1ull << 52) - 1);
  if (exponent == -1023) return sign | ((whole && how == (sign ? hc_rm : hc_rp)) ? 1 : 0);
  whole |= 1ull << 52;
  int lose = exponent < 1 - bias ? drop + 1 - bias - exponent : drop;
  u64 kept = lose > 63 ? 0 : whole >> lose, rest = lose > 63 ? whole : whole & ((1ull << lose) - 1);
  u64 half = lose > 63 ? ~0ull : 1ull << (lose - 1);
  bool up = how == hc_rn ? rest > half || (rest == half && kept & 1)
            : how == hc_rz ? false
                           : rest && how == (sign ? hc_rm : hc_rp);
  kept += up;
  u64 found = exponent < 1 - bias ? kept : kept + (u64(exponent + bias - 1) << FRACTION);
  if (found >= infinity) found = infinity - (how == hc_rz || how == (sign ? hc_rp : hc_rm));
  return u16(sign | found);
}
static inline u16 to_half(hc_rounding how, f64 x) { return narrow<5, 10>(how, x); }
static inline u16 to_half(f64 x) { return narrow<5, 10>(hc_rn, x); }
static inline u16 to_bf16(hc_rounding how, f64 x) { return narrow<8, 7>(how, x); }
static inline u16 to_bf16(f64 x) { return narrow<8, 7>(hc_rn, x); }
// The last bit of the sum is set if something was lost, so that a second rounding is right.
static inline f64 odd_sum(f64 a, f64 b) {
  f64 sum = a + b, part = sum - a, lost = (a - (sum - part)) + (b - part);
  if (lost != 0 && lost - lost == 0 && !(bits<u64>(sum) & 1))
    return bits<f64>(bits<u64>(sum) + ((lost > 0) == (sum > 0) ? 1 : -1));
  return sum;
}
// An integer, "to odd" too: the last bit of the highest 53 is set if something was lost.
static inline f64 odd(u64 a) { return f64(a >> 53 ? (a & ~0x7ffull) | u64((a & 0x7ff) != 0) << 11 : a); }
static inline f64 odd(s64 a) { return a < 0 ? -odd(0 - u64(a)) : odd(u64(a)); }
static inline u16 relu(u16 h) { return (h & 0x7fff) > 0x7c00 ? 0x7fff : h & 0x8000 ? 0 : h; }
static inline u16 relu_bf16(u16 h) { return (h & 0x7fff) > 0x7f80 ? 0x7fff : h & 0x8000 ? 0 : h; }
static inline u16 flush_half(u16 h) { return h & 0x7c00 ? h : h & 0x8000; }

static inline u16 to_half_ftz(f64 x) {  // from 2^-14 - 2^-26, it rounds to the least normal one
  return to_half(__builtin_fabs(x) < 0x1.ffep-15 ? x * 0.0 : x);
}

#define HC_HALVES(name, from, to)                                                           \
  static inline u16 name##_add(u16 a, u16 b) { return to(f64(from(a)) + f64(from(b))); }    \
  static inline u16 name##_sub(u16 a, u16 b) { return to(f64(from(a)) - f64(from(b))); }    \
  static inline u16 name##_mul(u16 a, u16 b) { return to(f64(from(a)) * f64(from(b))); }    \
  static inline u16 name##_fma(u16 a, u16 b, u16 c) {                                       \
    return to(odd_sum(f64(from(a)) * f64(from(b)), f64(from(c))));                          \
  }                                                                                         \
  static inline u16 name##_min(u16 a, u16 b) { return to(fmin(from(a), from(b))); }         \
  static inline u16 name##_max(u16 a, u16 b) { return to(fmax(from(a), from(b))); }         \
  static inline u16 name##_min_nan(u16 a, u16 b) { return to(fmin_nan(from(a), from(b))); } \
  static inline u16 name##_max_nan(u16 a, u16 b) { return to(fmax_nan(from(a), from(b))); } \
  static inline u16 name##_neg(u16 a) { return a ^ 0x8000; }                                \
  static inline u16 name##_abs(u16 a) { return a & 0x7fff; }                                \
  static inline u16 name##_sat(u16 a) { return to(sat(from(a))); }                          \
  static inline u16 name##_ex2(u16 a) { return to(__builtin_exp2f(from(a))); }              \
  static inline u16 name##_tanh(u16 a) { return to(__builtin_tanhf(from(a))); }
HC_HALVES(f16, from_half, to_half)
HC_HALVES(f16_ftz, from_half, to_half_ftz)
HC_HALVES(bf16, from_bf16, to_bf16)
static inline u32 pair(u16 low, u16 high) { return u32(high) << 16 | low; }

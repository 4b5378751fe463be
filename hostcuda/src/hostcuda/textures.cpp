// CUDA arrays, texture objects and surface objects. Source of what a fetch answers: CUDA C++
// Programming Guide, "Texture Fetching".
#include "textures.h"

#include <cmath>
#include <limits>

#include "api.h"
#include "fibers.h"

namespace {

// ---- CUDA arrays --------------------------------------------------------------------------------

CUresult create(const CUDA_ARRAY3D_DESCRIPTOR &d, CUarray *out) {
  ENTER_LIVING_CONTEXT;
  CHECK(!(d.Flags & CUDA_ARRAY3D_CUBEMAP), CUDA_ERROR_NOT_SUPPORTED);
  Array array = {d, {}};
  Image &image = array.image;
  image.size[0] = d.Width, image.size[1] = std::max<size_t>(d.Height, 1);
  image.size[2] = std::max<size_t>(d.Depth, 1);
  image.channels = d.NumChannels, image.format = d.Format;
  CHECK(d.Width && image.valid(), CUDA_ERROR_INVALID_VALUE);
  image.row = d.Width * image.texel(), image.slice = image.row * image.size[1];
  TRY(may_be_unsafe());
  TRY(allocate(ctx, image.bytes(), Kind::device, 0, (void **)&image.data));
  *out = new_handle<CUarray>();
  arrays[*out] = array;
  return CUDA_SUCCESS;
}

// ---- what a fetch reads -------------------------------------------------------------------------

float half_to_float(uint16_t bits) {
  unsigned exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? std::ldexp(float(1024 + fraction), int(exponent) - 25)
                              : std::ldexp(float(fraction), -24);
  return bits & 0x8000 ? -size : size;
}

bool as_integer(const Texture &t) {  // 32-bit integers are never read as fractions of one
  bool integers = t.image.format != CU_AD_FORMAT_HALF && t.image.format != CU_AD_FORMAT_FLOAT;
  return integers && (t.how.flags & CU_TRSF_READ_AS_INTEGER || t.image.channel_bytes() == 4);
}

template <class T>
float fraction(int value) {
  return std::max(float(value) / std::numeric_limits<T>::max(), -1.0f);
}

// Round to so many bits, and to no less than 2 to the power of `least`.
double rounded(double x, int bits, int least) {
  int exponent;
  std::frexp(x, &exponent);
  double step = std::ldexp(1, std::max(exponent - bits, least));
  return std::nearbyint(x / step) * step;
}

// Eight bits are left on an H200 (of 14 of the 256 values, the last differs there).
float from_srgb(double x) {
  return float(rounded(x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4), 8, -14));
}

// A channel of a texel: an integer, or a float.
union Channel {
  uint32_t integer;
  float real;
};

bool is_signed(const Image &image) { return image.format & CU_AD_FORMAT_SIGNED_INT8; }

bool is_srgb(const Texture &t, unsigned channel) {
  return t.how.flags & CU_TRSF_SRGB && t.image.format == CU_AD_FORMAT_UNSIGNED_INT8 &&
         !as_integer(t) && channel < (t.image.channels == 4 ? 3u : 1u);
}

// Outside of the image, the bits of a float that the program gave: as many as of an integer texel,
// or its value as a texel of fractions has it (so on an H200).
Channel border(const Texture &t, unsigned channel) {
  Channel c;
  c.real = t.how.borderColor[channel];
  const int spare = 32 - 8 * int(t.image.channel_bytes());
  if (as_integer(t)) {
    c.integer = c.integer << spare >> spare;
    if (is_signed(t.image)) c.integer = uint32_t(int32_t(c.integer << spare) >> spare);
  } else if (t.image.format < CU_AD_FORMAT_HALF) {
    const float most = float((1u << (32 - spare - is_signed(t.image))) - 1);
    c.real = std::trunc(std::clamp(c.real, is_signed(t.image) ? -1.0f : 0.0f, 1.0f) * most) / most;
  }
  return c;
}

// What is at these indices; -1: the border.
Channel read(const Texture &t, const long *i, unsigned channel) {
  const Image &image = t.image;
  if (std::min({i[0], i[1], i[2]}) < 0) return border(t, channel);
  const char *at = image.data + i[2] * image.slice + i[1] * image.row + i[0] * image.texel() +
                   channel * image.channel_bytes();
  Channel c = {};
  bool whole = as_integer(t);
  auto load = [&](auto value) {
    using T = decltype(value);
    memcpy(&value, at, sizeof value);
    if (whole)
      c.integer = uint32_t(value);
    else
      c.real = fraction<T>(value);
  };
  switch (image.format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      load(uint8_t());
      if (is_srgb(t, channel)) c.real = from_srgb(c.real);
      break;
    case CU_AD_FORMAT_SIGNED_INT8: load(int8_t()); break;
    case CU_AD_FORMAT_UNSIGNED_INT16: load(uint16_t()); break;
    case CU_AD_FORMAT_SIGNED_INT16: load(int16_t()); break;
    case CU_AD_FORMAT_HALF:
      uint16_t bits;
      memcpy(&bits, at, sizeof bits);
      c.real = half_to_float(bits);
      break;
    default:  // 32 bits
      memcpy(&c, at, sizeof c);
  }
  return c;
}

// What a linear fetch has of a texel, and answers: fractions have 16 bits, a half has 11.
double precise(const Texture &t, double x, unsigned channel) {
  if (t.image.format == CU_AD_FORMAT_FLOAT) return x;
  if (t.image.format == CU_AD_FORMAT_HALF || is_srgb(t, channel)) return rounded(x, 11, -24);
  const double most = is_signed(t.image) ? 0x7fff : 0xffff;
  return std::floor(x * most + 0.5 + 1e-6) / most;  // a half goes up
}

// The index of a texel as the address mode takes it; -1: the border.
long resolve(long i, long n, CUaddress_mode mode, bool normalized) {
  auto modulo = [](long value, long by) { return (value % by + by) % by; };
  if (mode == CU_TR_ADDRESS_MODE_WRAP && normalized) return modulo(i, n);
  if (mode == CU_TR_ADDRESS_MODE_MIRROR && normalized) {
    long j = modulo(i, 2 * n);
    return j < n ? j : 2 * n - 1 - j;
  }
  if (mode == CU_TR_ADDRESS_MODE_BORDER) return i < 0 || i >= n ? -1 : i;
  return std::min(std::max(i, 0l), n - 1);
}

enum Boundary { boundary_zero, boundary_clamp, boundary_trap };

// Handles of texture and surface objects are far from other numbers among a kernel's arguments.
const uint64_t FIRST_OBJECT = 0x7e57000000000000;
uint64_t last_object = FIRST_OBJECT;

[[noreturn]] void bad_texel(const hc_thread *thread, u32 line, const char *what) {
  fail(thread, CUDA_ERROR_LAUNCH_FAILED, what, line);
}

const Texture &object(uint64_t handle, bool surface, const hc_thread *thread, u32 line) {
  Texture *found = lookup(textures, handle);
  if (found && found->surface == surface) return *found;
  if (!found && handle > FIRST_OBJECT && handle <= last_object)
    bad_texel(thread, line, "used a texture or surface object that was destroyed before it ran");
  bad_texel(thread, line, surface ? "used what is no surface object" : "used what is no texture object");
}

}  // namespace

void hc_texel(hc_thread *thread, u64 handle, s32 i, u32 *words, u32 line) {
  const Texture &t = object(handle, false, thread, line);
  memset(words, 0, 4 * sizeof *words);  // outside, the answer is zero
  if (i < 0 || size_t(i) >= t.image.size[0]) return;
  const long at[] = {i, 0, 0};
  for (unsigned c = 0; c < t.image.channels; ++c) words[c] = read(t, at, c).integer;
}

void hc_texture(hc_thread *thread, u64 handle, u32 dimensions, const f32 *coordinates, s32 layer, u32 *words,
                u32 line) {
  const Texture &t = object(handle, false, thread, line);
  const Image &image = t.image;
  bool linear = t.how.filterMode == CU_TR_FILTER_MODE_LINEAR;
  bool normalized = t.how.flags & CU_TRSF_NORMALIZED_COORDINATES;
  // A layer before the first is the last one, and a line is a row of a plane (seen on an H100).
  long first[3] = {0, 0, long(std::min<unsigned long>(layer, image.size[2] - 1))};
  int weight[3] = {};  // of the texel behind the first one, of 256: eight bits, as on a GPU
  const float row[] = {coordinates[0], 0};
  if (dimensions == 1) coordinates = row, dimensions = 2;
  for (u32 d = 0; d < dimensions; ++d) {
    float x = normalized ? coordinates[d] * image.size[d] : coordinates[d];
    if (linear) x -= 0.5f;
    x = std::fmin(std::fmax(x, -1e9f), 1e9f);
    float whole = std::floor(x);
    first[d] = long(whole);
    if (linear) weight[d] = int(std::floor((x - whole) * 256 + 0.5f));
  }
  // So do the products of weights: those of x and z, and then with that of y (equal to an H200 in all
  // of 40,000 fetches from planes, and in 94 % of those from volumes).
  const int both = (weight[0] * weight[2] + 128) / 256;
  double sum[4] = {};
  memset(words, 0, 4 * sizeof *words);
  for (int corner = 0; corner < 1 << dimensions; ++corner) {
    const bool next[] = {bool(corner & 1), bool(corner & 2), bool(corner & 4)};
    int share = next[0] ? next[2] ? both : weight[0] - both
                        : next[2] ? weight[2] - both : 256 - weight[0] - weight[2] + both;
    const int below = (share * weight[1] + 127 + next[0]) / 256;
    share = next[1] ? below : share - below;
    if (!share) continue;
    long at[3] = {first[0], first[1], first[2]};
    for (u32 d = 0; d < dimensions; ++d)
      at[d] = resolve(at[d] + next[d], long(image.size[d]), t.how.addressMode[d], normalized);
    for (unsigned c = 0; c < image.channels; ++c) {
      Channel found = read(t, at, c);
      words[c] = found.integer;
      if (linear) sum[c] += share * precise(t, found.real, c);
    }
  }
  for (unsigned c = 0; c < image.channels && linear; ++c) {
    const float mixed = float(precise(t, sum[c] / 256, c));
    memcpy(&words[c], &mixed, sizeof mixed);
  }
}

// One component of the four texels that a linear fetch would mix.
void hc_gather(hc_thread *thread, u64 handle, const f32 *coordinates, u32 component, u32 *words, u32 line) {
  const Texture &t = object(handle, false, thread, line);
  const Image &image = t.image;
  bool normalized = t.how.flags & CU_TRSF_NORMALIZED_COORDINATES;
  long first[2];
  for (int d = 0; d < 2; ++d) {
    float x = (normalized ? coordinates[d] * image.size[d] : coordinates[d]) - 0.5f;
    first[d] = long(std::floor(std::fmin(std::fmax(x, -1e9f), 1e9f)));
  }
  const int right[] = {0, 1, 1, 0}, below[] = {1, 1, 0, 0};
  for (int i = 0; i < 4; ++i) {
    long x = resolve(first[0] + right[i], long(image.size[0]), t.how.addressMode[0], normalized);
    long y = resolve(first[1] + below[i], long(image.size[1]), t.how.addressMode[1], normalized);
    const long at[] = {x, y, 0};
    words[i] = component < image.channels ? read(t, at, component).integer : 0;
  }
}

// Where a surface object has `size` bytes, `x` in bytes; null: nowhere.
char *hc_surface(hc_thread *thread, u64 handle, s32 x, s32 y, s32 z, u32 bytes, u32 mode, u32 line) {
  const Image &image = object(handle, true, thread, line).image;
  const int size = int(bytes);
  if (x % size) bad_texel(thread, line, "used a surface at an x that is no multiple of the bytes to read or write");
  int inside[] = {x, y, z};
  const size_t room[] = {image.size[0] * image.texel() / size, image.size[1], image.size[2]};
  inside[0] /= size;
  for (int d = 0; d < 3; ++d) {
    if (inside[d] >= 0 && size_t(inside[d]) < room[d]) continue;
    if (mode == boundary_trap) bad_texel(thread, line, "used a surface outside of its texels");
    if (mode == boundary_zero) return nullptr;
    inside[d] = inside[d] < 0 ? 0 : int(room[d]) - 1;
  }
  return image.data + inside[2] * image.slice + inside[1] * image.row + size_t(inside[0]) * size;
}

// ---- entry points -------------------------------------------------------------------------------

API cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *description) {
  return create(*description, out);
}
API cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  return create({d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, out);
}

API cuArrayDestroy(CUarray handle) {
  ENTER;
  FIND(array, arrays, handle);
  Block *b = lookup(driver.blocks, uintptr_t(array->image.data));
  arrays.erase(handle);
  CHECK(b, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  settle_context(b->ctx);
  release(b);
  return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle) {
  ENTER;
  FIND(array, arrays, handle);
  *out = array->description;
  return CUDA_SUCCESS;
}
API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle) {
  ENTER;
  FIND(array, arrays, handle);
  auto &d = array->description;
  *out = {d.Width, d.Height, d.Format, d.NumChannels};
  return CUDA_SUCCESS;
}

namespace {

CUresult image_of(const CUDA_RESOURCE_DESC &resource, Image *image) {
  Image found;
  if (resource.resType == CU_RESOURCE_TYPE_ARRAY) {
    Array *array = lookup(arrays, resource.res.array.hArray);
    CHECK(array, CUDA_ERROR_INVALID_HANDLE);
    found = array->image;
  } else if (resource.resType == CU_RESOURCE_TYPE_LINEAR) {
    auto &memory = resource.res.linear;
    found.data = (char *)memory.devPtr, found.channels = memory.numChannels;
    found.format = memory.format;
    CHECK(found.valid(), CUDA_ERROR_INVALID_VALUE);
    found.size[0] = memory.sizeInBytes / found.texel(), found.size[1] = found.size[2] = 1;
  } else if (resource.resType == CU_RESOURCE_TYPE_PITCH2D) {
    auto &memory = resource.res.pitch2D;
    found.data = (char *)memory.devPtr, found.channels = memory.numChannels;
    found.format = memory.format, found.row = memory.pitchInBytes;
    found.size[0] = memory.width, found.size[1] = memory.height, found.size[2] = 1;
    CHECK(found.valid() && memory.pitchInBytes % TEXTURE_PITCH == 0 &&
              memory.pitchInBytes >= memory.width * found.texel(),
          CUDA_ERROR_INVALID_VALUE);
  } else {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CHECK(found.size[0] && found.size[1] && uintptr_t(found.data) % ALIGNMENT == 0,
        CUDA_ERROR_INVALID_VALUE);
  CHECK(holds(find_block(found.data), found.data, found.bytes()), CUDA_ERROR_INVALID_VALUE);
  *image = found;
  return CUDA_SUCCESS;
}

}  // namespace

API cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
                      const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view) {
  ENTER_LIVING_CONTEXT;
  CHECK(!view, CUDA_ERROR_NOT_SUPPORTED);
  Texture t = {{}, *how, false};
  TRY(image_of(*resource, &t.image));
  CHECK(!as_integer(t) || how->filterMode == CU_TR_FILTER_MODE_POINT,
        CUDA_ERROR_INVALID_VALUE);
  return textures[*out = ++last_object] = t, CUDA_SUCCESS;
}
API cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) {
  ENTER_LIVING_CONTEXT;
  Texture t = {{}, {}, true};
  CHECK(resource->resType == CU_RESOURCE_TYPE_ARRAY, CUDA_ERROR_INVALID_VALUE);
  TRY(image_of(*resource, &t.image));
  return textures[*out = ++last_object] = t, CUDA_SUCCESS;
}
API cuTexObjectDestroy(CUtexObject object) {
  ENTER;
  CHECK(textures.erase(object), CUDA_ERROR_INVALID_VALUE);
  return CUDA_SUCCESS;
}

// CuPy's side (runtime.cpp) of CUDA arrays, textures and surfaces. The runtime's structures are as its
// documentation lays them out: its headers include more than pip's packages bring. Enumerations have
// the driver's numbers.
#include "runtime.h"
#include "textures.h"

struct channel_description {
  int bits[4], kind;  // 0 signed, 1 unsigned, 2 floating point
};
struct position {
  size_t x, y, z;
};
struct pitched {
  void *start;
  size_t pitch, width, height;
};
struct copy_parameters {
  CUarray from_array;
  position from_at;
  pitched from;
  CUarray to_array;
  position to_at;
  pitched to;
  position extent;
  int kind;
};
struct resource_description {
  int type;
  union {
    CUarray array;
    struct {
      CUdeviceptr start;
      channel_description channels;
      size_t size, height, pitch;  // bytes; or texels, rows and bytes from row to row
    } memory;
  };
};
struct texture_description {
  int address[3], filter, read_mode, srgb;  // read mode 0: as they are, 1: as fractions of one
  float border[4];
  int normalized;
};

static CUarray_format format_of(const channel_description &c, unsigned *count) {
  *count = 0;
  while (*count < 4 && c.bits[*count]) ++*count;
  const CUarray_format integers[][2] = {{CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT8},
                                        {CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT16},
                                        {CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_UNSIGNED_INT32}};
  if (c.kind == 2) return c.bits[0] == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
  return integers[c.bits[0] == 8 ? 0 : c.bits[0] == 16 ? 1 : 2][c.kind == 1];
}
static CUresult make_array(intptr_t channels, size_t width, size_t height, size_t depth,
                           unsigned flags, CUarray *out) {
  CUDA_ARRAY3D_DESCRIPTOR d = {};
  d.Width = width, d.Height = height, d.Depth = depth, d.Flags = flags;
  d.Format = format_of(*(channel_description *)channels, &d.NumChannels);
  return ready() ?: cuArray3DCreate_v2(out, &d);
}
static CUDA_RESOURCE_DESC resource_of(intptr_t p) {
  const resource_description &given = *(resource_description *)p;
  CUDA_RESOURCE_DESC d = {};
  d.resType = CUresourcetype(given.type);
  auto &m = given.memory;
  if (d.resType == CU_RESOURCE_TYPE_ARRAY) {
    d.res.array.hArray = given.array;
  } else if (d.resType == CU_RESOURCE_TYPE_LINEAR) {
    d.res.linear.devPtr = m.start, d.res.linear.sizeInBytes = m.size;
    d.res.linear.format = format_of(m.channels, &d.res.linear.numChannels);
  } else {
    auto &to = d.res.pitch2D;
    to.devPtr = m.start, to.width = m.size, to.height = m.height, to.pitchInBytes = m.pitch;
    to.format = format_of(m.channels, &to.numChannels);
  }
  return d;
}
static CUresult make_texture(CUtexObject *out, intptr_t resource, intptr_t texture) {
  const texture_description &given = *(texture_description *)texture;
  CUDA_RESOURCE_DESC from = resource_of(resource);
  CUDA_TEXTURE_DESC d = {};
  for (int i = 0; i < 3; ++i) d.addressMode[i] = CUaddress_mode(given.address[i]);
  d.filterMode = CUfilter_mode(given.filter);
  d.flags = (given.read_mode ? 0 : CU_TRSF_READ_AS_INTEGER) |
            (given.normalized ? CU_TRSF_NORMALIZED_COORDINATES : 0) |
            (given.srgb ? CU_TRSF_SRGB : 0);
  memcpy(d.borderColor, given.border, sizeof d.borderColor);
  return ready() ?: cuTexObjectCreate(out, &from, &d, nullptr);
}
static CUresult make_surface(CUsurfObject *out, intptr_t resource) {
  CUDA_RESOURCE_DESC from = resource_of(resource);
  return ready() ?: cuSurfObjectCreate(out, &from);
}
static CUresult copy_box(const copy_parameters &p, CUstream stream, bool wait) {
  CUDA_MEMCPY3D c = {};
  size_t texel = 1;  // with an array, positions and widths are counted in its texels
  for (CUarray handle : {p.from_array, p.to_array}) {
    Lock lock;
    if (Array *array = lookup(arrays, handle)) texel = array->image.texel();
  }
#define SIDE(side, where)                                                                    \
  c.side##MemoryType = p.where##_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;         \
  c.side##Array = p.where##_array, c.side##Device = CUdeviceptr(p.where.start);               \
  c.side##Pitch = p.where.pitch, c.side##Height = p.where.height;                             \
  c.side##XInBytes = p.where##_at.x * (p.where##_array ? texel : 1);                          \
  c.side##Y = p.where##_at.y, c.side##Z = p.where##_at.z
  SIDE(src, from);
  SIDE(dst, to);
#undef SIDE
  c.WidthInBytes = p.extent.x * texel, c.Height = p.extent.y, c.Depth = p.extent.z;
  return ready() ?: wait ? cuMemcpy3D_v2(&c) : cuMemcpy3DAsync_v2(&c, stream);
}

struct array_options {
  int given;
  unsigned flags;
};
NUMBER(intptr_t, mallocArray, "intptr_t, size_t, size_t, " SKIP OPTIONAL(mallocArray),
       (intptr_t channels, size_t width, size_t height, int, array_options *options), 0,
       CUarray value,
       make_array(channels, width, height, 0, options && options->given ? options->flags : 0,
                  &value))
NUMBER(intptr_t, malloc3DArray, "intptr_t, size_t, size_t, size_t, " SKIP OPTIONAL(malloc3DArray),
       (intptr_t channels, size_t width, size_t height, size_t depth, int, array_options *options),
       0, CUarray value,
       make_array(channels, width, height, depth, options && options->given ? options->flags : 0,
                  &value))
PASS(freeArray, cuArrayDestroy, intptr_t)
MAKE(uintmax_t, createTextureObject, make_texture, intptr_t, intptr_t)
MAKE(uintmax_t, createSurfaceObject, make_surface, intptr_t)
PASS(destroyTextureObject, cuTexObjectDestroy, uintmax_t)
PASS(destroySurfaceObject, cuSurfObjectDestroy, uintmax_t)
OBJECT(memcpy3D, "intptr_t, " SKIP, (intptr_t parameters, int),
       none(copy_box(*(copy_parameters *)parameters, nullptr, true)))
OBJECT(memcpy3DAsync, "intptr_t, intptr_t, " SKIP, (intptr_t parameters, intptr_t stream, int),
       none(copy_box(*(copy_parameters *)parameters, handle<CUstream>(stream), false)))

// Memory: allocation, copies, fills, and what a pointer is.
#include "api.h"
#include "runtime.h"
#include "textures.h"

namespace {

// A box of rows: where it lies, and the bytes from row to row and from slice to slice.
struct Box {
  char *start;
  size_t row, slice;
};

void copy_box(Box to, Box from, size_t width, size_t height, size_t depth) {
  for (size_t z = 0; z < depth; ++z)
    for (size_t y = 0; y < height; ++y)
      memmove(to.start + z * to.slice + y * to.row, from.start + z * from.slice + y * from.row,
              width);
}

// Its rows; without checks, all bytes from the first one to the last.
std::vector<Range> ranges_of(Box b, size_t width, size_t height, size_t depth) {
  if (!checking) return {{uintptr_t(b.start), (depth - 1) * b.slice + (height - 1) * b.row + width}};
  std::vector<Range> found;
  for (size_t z = 0; z < depth; ++z)
    for (size_t y = 0; y < height; ++y) found.push_back({uintptr_t(b.start) + z * b.slice + y * b.row, width});
  return found;
}

enum class When { now, queued };

// One copy, with the host side treated as the documentation says ("API synchronization behavior"):
// pageable memory is written before the call returns, or read then, after the stream's earlier work
// if the copy is a synchronous one, and its bytes may reach the device later; page-locked memory is
// touched when the copy runs; a synchronous device-to-device copy does not wait.
CUresult copy(Box to, Box from, size_t width, size_t height, size_t depth, When when,
              CUstream handle) {
  STREAM(stream, handle);
  if (!width || !height || !depth) return CUDA_SUCCESS;
  TRY(may_queue(*stream));
  auto last = [&](Box b) { return (depth - 1) * b.slice + (height - 1) * b.row + width; };
  Block *target = find_block(to.start), *source = find_block(from.start);
  CHECK(!target || holds(target, to.start, last(to)), CUDA_ERROR_INVALID_VALUE);
  CHECK(!source || holds(source, from.start, last(from)), CUDA_ERROR_INVALID_VALUE);
  bool device_only = on_device(target) && on_device(source), is_direct = source || !target;
  auto work = [&](std::function<void()> run) {
    std::string kind = is_direct ? "a copy of " : "an upload of ";
    Work made = {kind + std::to_string(width * height * depth) + " bytes", {}, {}, run};
    if (target) made.writes = ranges_of(to, width, height, depth);
    if (source) made.reads = ranges_of(from, width, height, depth);
    return made;
  };
  if (device_only && stream->legacy && source->ctx->device != target->ctx->device) {
    // Between two devices the default stream waits for all work given to either (CUDA C++
    // Programming Guide, "Peer-to-Peer Memory Copy"), so that work may as well run now.
    for (auto &[handle, ctx] : driver.contexts)
      if (ctx.device == source->ctx->device || ctx.device == target->ctx->device)
        for (size_t i = 0; i < ctx.streams.size(); ++i) run(*ctx.streams[i], LATEST);
    copy_box(to, from, width, height, depth);
    mark_written(uintptr_t(to.start), last(to));
    return CUDA_SUCCESS;
  }
  if (!target || (when == When::now && !device_only)) {
    TRY(may_ask(*stream));
    TRY(may_be_unsafe());
    settle(*stream);
    CHECK(!stream->ctx->dead, stream->ctx->dead);
    if (is_direct) enqueue(*stream, work([=] { copy_box(to, from, width, height, depth); }));
    run(*stream, LATEST);
    host_waited(stream->clock);
    if (is_direct) return CUDA_SUCCESS;
  }
  if (is_direct) {
    enqueue(*stream, work([=] { copy_box(to, from, width, height, depth); }));
  } else {
    auto staged = std::make_shared<Bytes>(width * height * depth);
    Box packed = {staged->data(), width, width * height};
    copy_box(packed, from, width, height, depth);
    enqueue(*stream, work([=] {
              copy_box(to, {staged->data(), width, width * height}, width, height, depth);
            }));
  }
  return CUDA_SUCCESS;
}

enum Sides { any, to_device, from_device, both };  // that must be device memory
template <class To, class From>
CUresult copy_flat(To given_to, From given_from, size_t n, Sides sides, When when = When::now, CUstream stream = nullptr) {
  void *to = (void *)given_to, *from = (void *)given_from;
  ENTER;
  CHECK(stream || current(), CUDA_ERROR_INVALID_CONTEXT);
  CHECK(!n || !(sides & to_device) || holds(find_block(to), to, n), CUDA_ERROR_INVALID_VALUE);
  CHECK(!n || !(sides & from_device) || holds(find_block(from), from, n), CUDA_ERROR_INVALID_VALUE);
  return copy({(char *)to, n, n}, {(char *)from, n, n}, n, 1, 1, when, stream);
}

// Device memory is filled later, even by the "synchronous" form.
template <class T>
CUresult fill(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height,
              When when = When::now, CUstream handle = nullptr) {
  ENTER;
  STREAM(stream, handle);
  if (!width || !height) return CUDA_SUCCESS;
  size_t size = (height - 1) * pitch + width * sizeof(T);
  Block *block = find_block((void *)to);
  CHECK(to % sizeof(T) == 0 && holds(block, (void *)to, size), CUDA_ERROR_INVALID_VALUE);
  TRY(may_queue(*stream));
  auto rows = ranges_of({(char *)to, pitch, 0}, width * sizeof(T), height, 1);
  enqueue(*stream, {"a fill of " + std::to_string(size) + " bytes", {}, rows, [=] {
    for (size_t y = 0; y < height; ++y) std::fill_n((T *)(to + y * pitch), width, value);
  }});
  bool waits = when == When::now && (!on_device(block) || block->kind == Kind::managed);
  return waits ? cuStreamSynchronize(handle) : CUDA_SUCCESS;
}

// One side of a copy of a box. Null: not inside of the array.
Box side(CUmemorytype type, const void *host, CUdeviceptr device, CUarray handle, size_t x, size_t y,
         size_t z, size_t pitch, size_t rows, const CUDA_MEMCPY3D &c) {
  char *start = type == CU_MEMORYTYPE_HOST ? (char *)host : (char *)device;
  if (!pitch) pitch = c.WidthInBytes;
  size_t slice = pitch * (rows ? rows : c.Height);
  if (type == CU_MEMORYTYPE_ARRAY) {
    Array *array = lookup(arrays, handle);
    if (!array) return {};
    const Image &image = array->image;
    if (x + c.WidthInBytes > image.row || y + c.Height > image.size[1] ||
        z + c.Depth > image.size[2])
      return {};
    start = image.data, pitch = image.row, slice = image.slice;
  }
  return {start + z * slice + y * pitch + x, pitch, slice};
}

CUresult copy_3d(const CUDA_MEMCPY3D &c, When when, CUstream stream) {
  Box to = side(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes, c.dstY, c.dstZ,
                c.dstPitch, c.dstHeight, c);
  Box from = side(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes, c.srcY, c.srcZ,
                  c.srcPitch, c.srcHeight, c);
  CHECK(to.start && from.start, CUDA_ERROR_INVALID_VALUE);
  return copy(to, from, c.WidthInBytes, c.Height, c.Depth, when, stream);
}

CUresult copy_2d(const CUDA_MEMCPY2D &c, When when, CUstream stream) {
  CUDA_MEMCPY3D same = {};
#define SIDE(s)                                                                          \
  same.s##XInBytes = c.s##XInBytes, same.s##Y = c.s##Y, same.s##Pitch = c.s##Pitch;      \
  same.s##MemoryType = c.s##MemoryType, same.s##Host = c.s##Host;                        \
  same.s##Device = c.s##Device, same.s##Array = c.s##Array
  SIDE(src);
  SIDE(dst);
#undef SIDE
  same.WidthInBytes = c.WidthInBytes, same.Height = c.Height, same.Depth = 1;
  return copy_3d(same, when, stream);
}

// The fields that tell the contexts of the two sides lie where CUDA_MEMCPY3D has reserved ones.
const CUDA_MEMCPY3D &same(const CUDA_MEMCPY3D_PEER *c) {
  static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER), "the same layout");
  return *(const CUDA_MEMCPY3D *)c;
}

void *texels(CUarray handle, size_t offset) {
  Lock lock;
  Array *array = lookup(arrays, handle);
  return array ? array->image.data + offset : nullptr;
}

}  // namespace

// ---- allocation ---------------------------------------------------------------------------------

API cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER_LIVING_CONTEXT;
  *total = driver.device_bytes;
  *available = driver.device_bytes - used_bytes(ctx->device);
  return CUDA_SUCCESS;
}
API cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  ENTER_LIVING_CONTEXT;
  TRY(may_be_unsafe());
  return allocate(ctx, size, Kind::device, 0, (void **)out);
}

// Memory of an array that shares no block. Its free is work on the stream, so that it does not wait,
// and work elsewhere that still uses the array races with it. So it is where arrays share memory: the
// next one gets it in the order of that stream.
EXPORT CUdeviceptr hostcuda_allocate(size_t size, CUstream handle) {
  CUdeviceptr address = 0;
  auto answer = [&]() -> CUresult {
    TRY(ready());
    ENTER_LIVING_CONTEXT;
    STREAM(stream, handle);
    if (size > driver.device_bytes - used_bytes(ctx->device)) settle_context(ctx);
    TRY(allocate(ctx, size, Kind::device, 0, (void **)&address));
    driver.blocks[address].home = stream->shared_from_this();
    return CUDA_SUCCESS;
  };
  return failed(answer()) ? 0 : address;
}

API cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned) {
  ENTER_CONTEXT;
  *pitch = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return allocate(ctx, *pitch * height, Kind::device, 0, (void **)out);
}

API cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  ENTER_LIVING_CONTEXT;
  return allocate(ctx, size, Kind::managed, flags, (void **)out);
}

API cuMemFree_v2(CUdeviceptr address) {
  ENTER_LIVING_CONTEXT;
  if (!address) return CUDA_SUCCESS;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  CHECK(b && (b->kind == Kind::device || b->kind == Kind::managed) && !b->is_leaving, CUDA_ERROR_INVALID_VALUE);
  if (b->home) return queue_free(b, *b->home), ctx->dead;
  TRY(may_be_unsafe());
  settle_context(b->ctx);
  if (ctx != b->ctx) settle_context(ctx);
  release(b);
  return ctx->dead;
}

API cuMemHostAlloc(void **out, size_t size, unsigned flags) {
  ENTER_LIVING_CONTEXT;
  return allocate(ctx, size, Kind::pinned, flags, out);
}

API cuMemAllocHost_v2(void **out, size_t size) { return cuMemHostAlloc(out, size, 0); }

API cuMemFreeHost(void *address) {
  ENTER_LIVING_CONTEXT;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  CHECK(b && b->kind == Kind::pinned, CUDA_ERROR_INVALID_VALUE);
  settle_context(b->ctx);
  release(b);
  return ctx->dead;
}

API cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  ENTER_LIVING_CONTEXT;
  CHECK(address && size, CUDA_ERROR_INVALID_VALUE);
  CHECK(!find_block(address), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  uintptr_t start = uintptr_t(address);
  driver.blocks[start] = {start, size, Kind::registered, ctx, false, flags, 0};
  return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *address) {
  ENTER_LIVING_CONTEXT;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  CHECK(b && b->kind == Kind::registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  settle_context(b->ctx);
  release(b);
  return ctx->dead;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned) {
  ENTER_LIVING_CONTEXT;
  CHECK(find_block(address), CUDA_ERROR_INVALID_VALUE);
  *out = CUdeviceptr(address);
  return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *address) {
  ENTER_LIVING_CONTEXT;
  Block *b = find_block(address);
  CHECK(b && !on_device(b), CUDA_ERROR_INVALID_VALUE);
  *flags = b->flags;
  return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr address) {
  ENTER_LIVING_CONTEXT;
  Block *b = find_block((void *)address);
  CHECK(b, CUDA_ERROR_NOT_FOUND);
  if (start) *start = b->start;
  if (size) *size = b->size;
  return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
  ENTER;
  Block *b = find_block((void *)address);
  CHECK(b, CUDA_ERROR_INVALID_VALUE);
  auto answer = [&](auto value) { return memcpy(out, &value, sizeof value), CUDA_SUCCESS; };
  unsigned type = on_device(b) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
#define A(name) CU_POINTER_ATTRIBUTE_##name
  switch (attribute) {
    case A(CONTEXT): return answer(b->ctx->handle);
    case A(MEMORY_TYPE): return answer(type);
    case A(DEVICE_POINTER): return answer(address);
    case A(HOST_POINTER):
      if (b->kind == Kind::device) return answer(nullptr), CUDA_ERROR_INVALID_VALUE;
      return answer(address);
    case A(BUFFER_ID): return answer(b->id);
    case A(IS_MANAGED): return answer(b->kind == Kind::managed);
    case A(DEVICE_ORDINAL): return answer(b->ctx->device);
    case A(RANGE_START_ADDR): return answer(b->start);
    case A(RANGE_SIZE): return answer(b->size);
    case A(MAPPED): return answer(true);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Unlike the singular form this one succeeds for any address, and answers nulls.
API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out,
                           CUdeviceptr address) {
  ENTER;
  for (unsigned i = 0; i < count; ++i) {
    if (cuPointerGetAttribute(out[i], attributes[i], address) == CUDA_SUCCESS) continue;
    switch (attributes[i]) {
      case A(MEMORY_TYPE): *(unsigned *)out[i] = 0; break;
      case A(DEVICE_ORDINAL): *(int *)out[i] = -2; break;
      case A(MAPPED):
      case A(IS_MANAGED): *(bool *)out[i] = false; break;
      default: *(void **)out[i] = nullptr;
    }
  }
#undef A
  return CUDA_SUCCESS;
}

// ---- copies and fills ---------------------------------------------------------------------------

#define COPY(name, version, To, From, sides)                                                     \
  API name##version(To to, From from, size_t n) { return copy_flat(to, from, n, sides); }        \
  API name##Async##version(To to, From from, size_t n, CUstream stream) {                        \
    return copy_flat(to, from, n, sides, When::queued, stream);                                  \
  }
COPY(cuMemcpy, , CUdeviceptr, CUdeviceptr, any)
COPY(cuMemcpyHtoD, _v2, CUdeviceptr, const void *, to_device)
COPY(cuMemcpyDtoH, _v2, void *, CUdeviceptr, from_device)
COPY(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr, both)
API cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n) { return cuMemcpyDtoD_v2(to, from, n); }
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, from, n, stream);
}
API cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t at, size_t n) { return copy_flat(to, texels(from, at), n, both); }
API cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr from, size_t n) { return copy_flat(texels(to, at), from, n, both); }
API cuMemcpyAtoH_v2(void *to, CUarray from, size_t at, size_t n) { return copy_flat(to, texels(from, at), n, from_device); }
API cuMemcpyHtoA_v2(CUarray to, size_t at, const void *from, size_t n) { return copy_flat(texels(to, at), from, n, to_device); }
API cuMemcpyAtoA_v2(CUarray to, size_t at, CUarray from, size_t from_at, size_t n) {
  return copy_flat(texels(to, at), texels(from, from_at), n, both);
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { ENTER_LIVING_CONTEXT; return copy_2d(*c, When::now, nullptr); }
API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return cuMemcpy2D_v2(c); }
API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream) {
  ENTER;
  return copy_2d(*c, When::queued, stream);
}
API cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { ENTER_LIVING_CONTEXT; return copy_3d(*c, When::now, nullptr); }
API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream stream) {
  ENTER;
  return copy_3d(*c, When::queued, stream);
}
API cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *c) {
  ENTER_LIVING_CONTEXT;
  return copy_3d(same(c), When::now, nullptr);
}
API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *c, CUstream stream) {
  ENTER;
  return copy_3d(same(c), When::queued, stream);
}

#define FILLS(bits, T)                                                                          \
  API cuMemsetD##bits##_v2(CUdeviceptr to, T value, size_t n) { return fill(to, 0, value, n, 1); } \
  API cuMemsetD##bits##Async(CUdeviceptr to, T value, size_t n, CUstream stream) {                \
    return fill(to, 0, value, n, 1, When::queued, stream);                                        \
  }                                                                                               \
  API cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) { \
    return fill(to, pitch, value, width, height);                                                 \
  }                                                                                               \
  API cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height, \
                               CUstream stream) {                                                 \
    return fill(to, pitch, value, width, height, When::queued, stream);                           \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)

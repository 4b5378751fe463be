// Functions of modules, and launches.
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include "api.h"
#include "fibers.h"
#include "textures.h"

namespace {

const unsigned FREE_SHARED = 48 << 10;  // bytes of shared memory for kernels that do not ask

// Copy an argument. CuPy does not tell how many there are, and what is behind them is no argument.
bool copy_if_there(char *to, void *from, size_t size) {
  iovec there = {from, size}, here = {to, size};
  ssize_t copied = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  if (copied >= 0 || errno == EFAULT) return copied == ssize_t(size);
  return memcpy(to, from, size), true;  // it is not permitted to ask
}

// How CuPy keeps a number of a launch: in an object, beside its dtype. Where the parts are, in words.
struct Numbers {
  size_t type, at, dtype, float32, float64;
} numbers;

// CuPy passes a number as it is. A kernel reads a float's bytes, of whatever there is.
void check_number(const Function &f, int i, void *given) {
  size_t object[16], start = size_t(given) - numbers.at * sizeof *object;
  const bool is_double = f.kernel->sizes[i] == 8;
  if (f.kernel->kinds[i] != 'f' || !numbers.type) return;
  if (!copy_if_there((char *)object, (void *)start, sizeof object)) return;
  if (object[1] != numbers.type || object[2] != size_t(given)) return;  // no number of CuPy's
  const size_t expected = is_double ? numbers.float64 : numbers.float32;
  if (object[numbers.dtype] == expected || !object[numbers.at]) return;  // zero has the same bytes
  if (told.insert({f.name, ~0ull, i}).second)
    find(text("kernel %s: argument %d has other bytes than a %s, which the kernel reads: pass numpy.%s(...)",
              f.name.c_str(), i + 1, is_double ? "double" : "float", is_double ? "float64" : "float32"));
}

// The parameter bytes of a launch, at CUDA's offsets, from either form of the call.
CUresult pack(const Function &f, void **params, void **extra, Bytes *packed) {
  if (extra) {
    char *buffer = nullptr;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = (char *)extra[1];
      if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
    }
    if (buffer) packed->assign(buffer, buffer + size);
    const size_t used = f.kernel ? f.kernel->bytes : size;
    CHECK(size >= used, CUDA_ERROR_INVALID_VALUE);
    // Zeros may be the upper half of a last number that is too wide: the kernel gets its value.
    if (buffer && std::any_of(buffer + used, buffer + size, [](char c) { return c; }) &&
        told.insert({f.name, ~0ull, ~0ull}).second)
      find(text("kernel %s: the arguments have %zu bytes, and the kernel reads %zu: pass numbers of the parameters' "
                "types (numpy.int32 for int), and arrays on the device", f.name.c_str(), size, used));
  } else if (f.kernel) {
    CHECK(params || !f.kernel->count, CUDA_ERROR_INVALID_VALUE);
    packed->resize(f.kernel->bytes);
    for (int i = 0; i < f.kernel->count; ++i) {
      check_number(f, i, params[i]);
      if (copy_if_there(packed->data() + f.kernel->offsets[i], params[i], size_t(f.kernel->sizes[i]))) continue;
      tell(text("kernel %s has %d parameters, and argument %d is no memory: are some missing?",
                f.name.c_str(), f.kernel->count, i + 1));
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// A kernel reads the images of its texture objects. What else it uses is seen when it runs.
void add_textures(const Bytes &arguments, Work *work) {
  for (size_t i = 0; i + sizeof(void *) <= arguments.size(); i += sizeof(void *)) {
    uint64_t word;
    memcpy(&word, &arguments[i], sizeof word);
    Texture *t = lookup(textures, word);
    if (t && !t->surface) work->reads.push_back({uintptr_t(t->image.data), t->image.bytes()});
  }
}

// How many blocks of a kernel a multiprocessor can hold. It has four parts, with 16384 registers each.
int occupancy(const Function &f, unsigned threads, size_t shared) {
  if (threads > 1024) return 0;
  unsigned warps = (threads + 31) / 32, registers = (std::max(f.limits.registers, 1) + 7) / 8 * 8 * 32;  // of a warp
  size_t bytes = (f.limits.shared + shared + 127) / 128 * 128 + 1024, all = MOST_SHARED + 1024;
  return int(std::min({32u, 64 / warps, 16384 / registers * 4 / warps, unsigned(all / bytes)}));
}

CUresult within(const Function &f, const std::string &what, uint64_t value, uint64_t least, uint64_t most,
                CUresult status = CUDA_ERROR_INVALID_VALUE) {
  if (value >= least && value <= most) return CUDA_SUCCESS;
  tell("kernel " + f.name + ": " + what + " is " + std::to_string(value) + ", and may be " +
       std::to_string(least) + " to " + std::to_string(most));
  return status;
}

// Check a launch, and make it ready to run.
CUresult prepare(Function *f, Context *ctx, const unsigned *grid, const unsigned *block,
                 unsigned shared, void **params, void **extra, Work *work,
                 bool cooperative = false) {
  CHECK(f && ctx == f->module->ctx, CUDA_ERROR_INVALID_HANDLE);
  const unsigned most_blocks[] = {0x7fffffff, 0xffff, 0xffff}, most_threads[] = {1024, 1024, 64};
  for (int i = 0; i < 3; ++i) {
    TRY(within(*f, text("gridDim.%c", "xyz"[i]), grid[i], 1, most_blocks[i]));
    TRY(within(*f, text("blockDim.%c", "xyz"[i]), block[i], 1, most_threads[i]));
  }
  uint64_t threads = volume(block);
  TRY(within(*f, "the number of threads of a block", threads, 1, 1024));
  TRY(within(*f, "the number of threads of a block", threads, 1, f->limits.threads,
             occupancy(*f, unsigned(threads), 0) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
  TRY(within(*f, "the number of bytes of dynamic shared memory", shared, 0, f->most_shared));
  uint64_t blocks = volume(grid);
  int resident = MULTIPROCESSORS * occupancy(*f, unsigned(threads), shared);
  CHECK(!cooperative || blocks <= uint64_t(resident), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  auto made = std::make_shared<Launch>();
  *made = {f->name, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, nullptr, {}};
  TRY(pack(*f, params, extra, &made->arguments));
  std::string name = "kernel " + f->name;
  auto run = [=, kernel = f->kernel, code = f->module->code] {
    if (!kernel) return;
    ctx->dead = run_kernel({kernel, name, ctx, made.get(), cooperative, code}, &ctx->dead.message);
  };
  *work = {name, {}, {}, run, made};
  add_textures(made->arguments, work);
  return CUDA_SUCCESS;
}

CUresult launch(Function *f, const unsigned *grid, const unsigned *block, unsigned shared,
                CUstream handle, void **params, void **extra, bool cooperative = false) {
  STREAM(stream, handle);
  Work work;
  TRY(prepare(f, stream->ctx, grid, block, shared, params, extra, &work, cooperative));
  TRY(may_queue(*stream));
  enqueue(*stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace

EXPORT void hostcuda_numbers(size_t type, size_t at, size_t dtype, size_t float32, size_t float64) {
  numbers = {type, at, dtype, float32, float64};
}
API cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
  ENTER;
  FIND(module, driver.modules, handle);
  CHECK(!module->ctx->dead, module->ctx->dead);
  CUfunction &known = module->functions[name];
  if (!known) {
    const hc_kernel *kernel = nullptr;
    if (module->library) {
      kernel = (const hc_kernel *)dlsym(module->library, "hostcuda_kernels");
      while (kernel && kernel->name && strcmp(kernel->name, name)) ++kernel;
      CHECK(kernel && kernel->name, (module->functions.erase(name), CUDA_ERROR_NOT_FOUND));
    }
    known = new_handle<CUfunction>();
    hc_limits limits = kernel ? kernel->limits : hc_limits{32, 0, 0, 0, 1024};
    driver.functions[known] = {module, name, kernel, limits, FREE_SHARED - limits.shared};
  }
  *out = known;
  return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
  ENTER;
  FIND(f, driver.functions, handle);
#define A(name) CU_FUNC_ATTRIBUTE_##name
  std::map<int, int> known = {
      {A(MAX_THREADS_PER_BLOCK), int(f->limits.threads)},
      {A(SHARED_SIZE_BYTES), f->limits.shared},
      {A(CONST_SIZE_BYTES), f->limits.constant},
      {A(LOCAL_SIZE_BYTES), f->limits.local},
      {A(MAX_DYNAMIC_SHARED_SIZE_BYTES), int(f->most_shared)},
      {A(NUM_REGS), f->limits.registers},
      {A(PTX_VERSION), 90},
      {A(BINARY_VERSION), 90},
  };
#undef A
  *value = known[attribute];
  return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads,
                                                size_t shared) {
  ENTER;
  FIND(f, driver.functions, handle);
  CHECK(threads > 0, CUDA_ERROR_INVALID_VALUE);
  *blocks = occupancy(*f, unsigned(threads), shared);
  return CUDA_SUCCESS;
}

// The largest block of those with which most threads are resident.
API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of,
                                     size_t shared, int limit) {
  ENTER;
  FIND(f, driver.functions, handle);
  int most = int(f->limits.threads), resident = *grid = *block = 0;
  if (limit > 0) most = std::min(most, limit);
  for (int threads = most; threads > 0; threads = (threads - 1) / 32 * 32) {
    int blocks = occupancy(*f, unsigned(threads), shared_of ? shared_of(threads) : shared);
    if (blocks * threads <= resident) continue;
    resident = blocks * threads, *block = threads, *grid = blocks * MULTIPROCESSORS;
  }
  return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  ENTER;
  FIND(f, driver.functions, handle);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    CHECK(value >= 0 && value <= MOST_SHARED - f->limits.shared, CUDA_ERROR_INVALID_VALUE);
    f->most_shared = value;
  }
  return CUDA_SUCCESS;
}
API cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  ENTER;
  CHECK(lookup(driver.functions, handle), CUDA_ERROR_INVALID_HANDLE);
  CHECK(config <= CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
  return CUDA_SUCCESS;
}

// PyCUDA sets block shape and shared memory before every launch, and passes them to cuLaunchKernel, too.
API cuFuncSetBlockShape(CUfunction handle, int, int, int) {
  ENTER;
  return lookup(driver.functions, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
  ENTER;
  FIND(f, driver.functions, handle);
  CHECK(f->kernel, CUDA_ERROR_NOT_SUPPORTED);
  CHECK(index < size_t(f->kernel->count), CUDA_ERROR_INVALID_VALUE);
  *offset = f->kernel->offsets[index];
  if (size) *size = f->kernel->sizes[index];
  return CUDA_SUCCESS;
}

API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
  ENTER;
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(lookup(driver.functions, f), grid, block, shared, stream, params, extra);
}
API cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction f, void **params, void **extra) {
  ENTER;
  bool cooperative = false;
  for (unsigned i = 0; i < how->numAttrs; ++i) {  // not clusters, nor launches that overlap
    auto &attribute = how->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      cooperative = attribute.value.cooperative;
    else
      CHECK(attribute.id == CU_LAUNCH_ATTRIBUTE_IGNORE, CUDA_ERROR_NOT_SUPPORTED);
  }
  return launch(lookup(driver.functions, f), &how->gridDimX, &how->blockDimX, how->sharedMemBytes,
                how->hStream, params, extra, cooperative);
}
API cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, CUstream stream,
                              void **params) {
  ENTER;
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(lookup(driver.functions, f), grid, block, shared, stream, params, nullptr, true);
}
API cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                      const CUDA_KERNEL_NODE_PARAMS *how) {
  ENTER_LIVING_CONTEXT;
  Work *work = work_of(graph, node);
  CHECK(work, CUDA_ERROR_INVALID_VALUE);
  return prepare(lookup(driver.functions, how->func), ctx, &how->gridDimX, &how->blockDimX,
                 how->sharedMemBytes, how->kernelParams, how->extra, work);
}

API cuProfilerStart() { return CUDA_SUCCESS; }
API cuProfilerStop() { return CUDA_SUCCESS; }

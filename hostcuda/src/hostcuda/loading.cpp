// What is loaded: modules, what CUDA's linker makes of PTX, and libraries as CUDA's Python has them.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"
#include "fibers.h"

namespace {

void (*translate)(const char *ptx);  // calls hostcuda_translated
thread_local struct {
  Bytes image;
  std::string problem;  // a sentence, instead
} translated;

const std::string PREFIX = "hostcuda: ";
CUresult refuse(CUresult status, const std::string &problem = "") {
  if (!problem.empty()) translated.problem = PREFIX + problem;
  tell(translated.problem.substr(translated.problem.rfind(PREFIX, 0) ? 0 : PREFIX.size()));
  return status;
}

bool is_elf(const void *image) { return !memcmp(image, ELFMAG, SELFMAG); }
bool is_fatbin(const void *image) { return !memcmp(image, "\x50\xed\x55\xba", 4); }
bool is_ptx(const void *image) {
  if (is_elf(image) || is_fatbin(image)) return false;
  return strstr((const char *)image, ".version");
}

CUresult load_library(const char *image, size_t size, void **library) {
  // In memory, since folders may be mounted noexec.
  int file = memfd_create("hostcuda", MFD_CLOEXEC);
  CHECK(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  // A path of its own, by the slashes: dlopen takes two images of one path for the same library.
  static unsigned count;
  std::string path = "/proc/self/fd/";
  for (unsigned n = ++count; n; n /= 2) path += n % 2 ? "./" : "/";
  path += std::to_string(file);
  bool written = write(file, image, size) == ssize_t(size);
  *library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!*library) tell(text("the code of a module cannot be loaded: %s", written ? dlerror() : strerror(errno)));
  close(file);
  return *library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

bool read_file(const char *path, Bytes *image) {
  FILE *file = fopen(path, "rb");
  for (int c; file && (c = getc(file)) != EOF;) image->push_back(char(c));
  return file && !fclose(file);
}

// Where the caller reads what is wrong. PyCUDA shows what lies there.
struct Log {
  char *buffer = nullptr;
  size_t room = 0;
  void **size = nullptr;

  Log(unsigned count, CUjit_option *options, void **values) {
    for (unsigned i = 0; i < count; i++) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = (char *)values[i];
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = &values[i], room = size_t(values[i]);
      if (options[i] == CU_JIT_INFO_LOG_BUFFER) *(char *)values[i] = 0;
      if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) values[i] = nullptr;
    }
  }
  void write() {
    int length = buffer && room ? snprintf(buffer, room, "%s", translated.problem.c_str()) : 0;
    if (size) *size = (void *)std::min(size_t(length), room);
  }
};

struct Link {
  Log log;
  std::string code;  // PTX, and at the end what is loaded
};
std::map<CUlinkState, Link> links;

struct JitLink {
  std::string code, problem;  // PTX, and at the end what is loaded; a sentence, instead
  bool has_ir = false;
};

}  // namespace

EXPORT void hostcuda_translator(void (*function)(const char *ptx)) { translate = function; }
EXPORT void hostcuda_translated(const char *image, size_t size, const char *problem) {
  translated = {Bytes(image, image + size), problem};
}

API cuModuleLoadData(CUmodule *out, const void *image) {
  CHECK(image && out, CUDA_ERROR_INVALID_VALUE);
  translated = {};
  const bool is_text = is_ptx(image);
  if (translate && is_text) {  // before the lock: Python's own is taken
    translate((const char *)image);
    if (!translated.problem.empty()) return refuse(CUDA_ERROR_INVALID_PTX);
    image = translated.image.data();
  }
  ENTER_LIVING_CONTEXT;
  Module module;
  module.ctx = ctx;
  const Elf64_Ehdr *elf = (const Elf64_Ehdr *)image;
  if (is_elf(image) && elf->e_machine == EM_X86_64 && elf->e_type == ET_DYN) {
    // The section headers are the last thing g++ writes, so they tell the size of the image.
    size_t size = elf->e_shoff + size_t(elf->e_shentsize) * elf->e_shnum;
    TRY(load_library((const char *)image, size, &module.library));
    module.code.size = size;
  } else if (!is_elf(image) && !is_fatbin(image) && !is_text) {
    return CUDA_ERROR_INVALID_IMAGE;
  } else if (!driver.loads_images) {
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "a cubin or a fat binary is code of a GPU, which the host cannot "
                                                "run; load PTX, or compile the source");
  }
  if (auto *made = module.library ? (const hc_module *)dlsym(module.library, "hostcuda_module") : nullptr) {
    Dl_info info;
    if (dladdr(made, &info)) module.code.start = uintptr_t(info.dli_fbase);
    for (u32 i = 0; i < made->variable_count; ++i) {
      uintptr_t start = uintptr_t(made->variables[i].start);
      module.variables.push_back(start);
      driver.blocks[start] = {start, made->variables[i].bytes, Kind::variable, ctx, false, 0, 0};
    }
  }
  *out = new_handle<CUmodule>();
  driver.modules[*out] = module;
  return CUDA_SUCCESS;
}

API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options,
                       void **values) {
  Log log(count, options, values);
  CUresult status = cuModuleLoadData(out, image);
  return log.write(), status;
}

API cuModuleLoad(CUmodule *out, const char *path) {
  Bytes image;
  CHECK(read_file(path, &image), CUDA_ERROR_FILE_NOT_FOUND);
  image.resize(image.size() + sizeof(Elf64_Ehdr));  // so that a short file is not read past its end
  return cuModuleLoadData(out, image.data());
}

API cuModuleUnload(CUmodule handle) {
  ENTER;
  FIND(module, driver.modules, handle);
  CHECK(!module->ctx->dead, module->ctx->dead);
  if (module->ctx->references) settle_context(module->ctx);  // its kernels may be queued
  for (auto &item : module->functions) driver.functions.erase(item.second);
  for (uintptr_t address : module->variables) driver.blocks.erase(address);
  if (module->library) dlclose(module->library);
  driver.modules.erase(handle);
  return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *size, CUmodule handle, const char *name) {
  ENTER;
  FIND(module, driver.modules, handle);
  CHECK(!module->ctx->dead, module->ctx->dead);
  void *address = module->library ? dlsym(module->library, name) : nullptr;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  CHECK(b, CUDA_ERROR_NOT_FOUND);
  if (out) *out = b->start;
  if (size) *size = b->size;
  return CUDA_SUCCESS;
}


// ---- CUDA's linker ------------------------------------------------------------------------------

API cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *out) {
  Log log(count, options, values);
  translated = {}, log.write();
  ENTER_LIVING_CONTEXT;
  links.insert({*out = new_handle<CUlinkState>(), {log, ""}});
  return CUDA_SUCCESS;
}

API cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned,
                     CUjit_option *, void **) {
  ENTER;
  FIND(link, links, state);
  std::string code((char *)data, strnlen((char *)data, size)), title = name ? name : "a file";
  if (type == CU_JIT_INPUT_LIBRARY && title.find("cudadevrt") != title.npos) return CUDA_SUCCESS;
  if (is_ptx(code.c_str())) return link->code += code + "\n", CUDA_SUCCESS;
  CUresult status = refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, title + " cannot be linked: here, only PTX can");
  return link->log.write(), status;
}

API cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned count, CUjit_option *options,
                     void **values) {
  Bytes image;
  CHECK(read_file(path, &image), CUDA_ERROR_FILE_NOT_FOUND);
  return cuLinkAddData_v2(state, type, image.data(), image.size(), path, count, options, values);
}

API cuLinkComplete(CUlinkState state, void **code, size_t *size) {
  Link *link = nullptr;
  {
    ENTER;
    link = lookup(links, state);
    CHECK(link && translate, CUDA_ERROR_INVALID_HANDLE);
  }
  translate(link->code.c_str());  // without the lock: Python's own is taken
  link->log.write();
  if (!translated.problem.empty()) return refuse(CUDA_ERROR_INVALID_PTX);
  link->code.assign(translated.image.begin(), translated.image.end());
  *code = link->code.data();
  if (size) *size = link->code.size();
  return CUDA_SUCCESS;
}

API cuLinkDestroy(CUlinkState state) {
  ENTER;
  return links.erase(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// ---- nvJitLink: the real one links LTO-IR to PTX, and its other functions stay ---------------------

static void *real_library;
#define REAL(name) ((decltype(&name))dlsym(real_library, #name))
EXPORT int nvJitLinkGetLinkedPtx(void *link, char *out);
EXPORT int nvJitLinkGetLinkedPtxSize(void *link, size_t *out);

static std::map<void *, JitLink> jit_links;
static JitLink &find_jit_link(void *link) {
  std::lock_guard lock(driver.lock);
  return jit_links[link];
}

EXPORT int nvJitLinkCreate(void **out, unsigned count, const char **options) {
  const int mode = RTLD_LAZY | RTLD_NOLOAD;  // CUDA's Python has loaded it
  real_library = dlopen("libnvJitLink.so.13", mode) ?: dlopen("libnvJitLink.so.12", mode);
  std::vector<const char *> all(options, options + count);
  all.insert(all.end(), {"-lto", "-ptx"});
  int status = REAL(nvJitLinkCreate)(out, all.size(), all.data());
  return find_jit_link(*out) = {}, status;
}

EXPORT int nvJitLinkDestroy(void **link) {
  {
    std::lock_guard lock(driver.lock);
    jit_links.erase(*link);
  }
  return REAL(nvJitLinkDestroy)(link);
}

EXPORT int nvJitLinkAddData(void *link, int kind, const char *data, size_t size, const char *name) {
  JitLink &l = find_jit_link(link);
  // The header's numbers: 2 is PTX, 3 LTO-IR, 6 an archive.
  if (kind == 3) return l.has_ir = true, REAL(nvJitLinkAddData)(link, kind, data, size, name);
  if (kind == 6 && strstr(name, "cudadevrt")) return 0;
  if (kind == 2) return (l.code += std::string(data, strnlen(data, size))) += "\n", 0;
  return l.problem = PREFIX + "linking " + name + " is not supported: here, only PTX and LTO-IR can", 3;
}

EXPORT int nvJitLinkComplete(void *link) {
  JitLink &l = find_jit_link(link);
  size_t size = 0, start = l.code.size();
  if (l.has_ir) {
    if (int status = REAL(nvJitLinkComplete)(link)) return status;
    REAL(nvJitLinkGetLinkedPtxSize)(link, &size);
    l.code.resize(start + size);
    REAL(nvJitLinkGetLinkedPtx)(link, &l.code[start]);
  }
  translate(l.code.c_str());
  l.problem = translated.problem;
  l.code.assign(translated.image.begin(), translated.image.end());
  return l.problem.empty() ? 0 : 4;
}

EXPORT int nvJitLinkGetLinkedCubinSize(void *link, size_t *out) { return *out = find_jit_link(link).code.size(), 0; }
EXPORT int nvJitLinkGetLinkedCubin(void *link, char *out) { return find_jit_link(link).code.copy(out, -1), 0; }

EXPORT int nvJitLinkGetErrorLogSize(void *link, size_t *out) {
  const std::string &problem = find_jit_link(link).problem;
  return problem.empty() ? REAL(nvJitLinkGetErrorLogSize)(link, out) : (*out = problem.size() + 1, 0);
}
EXPORT int nvJitLinkGetErrorLog(void *link, char *out) {
  const std::string &problem = find_jit_link(link).problem;
  return problem.empty() ? REAL(nvJitLinkGetErrorLog)(link, out) : (strcpy(out, problem.c_str()), 0);
}

// ---- libraries and kernels: modules and functions of a context; names.cpp has the others ----------

API cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *options, void **values, unsigned count,
                      CUlibraryOption *, void **, unsigned) {
  return cuModuleLoadDataEx((CUmodule *)out, code, count, options, values);
}
API cuLibraryGetModule(CUmodule *out, CUlibrary library) { return *out = CUmodule(library), CUDA_SUCCESS; }
API cuKernelGetFunction(CUfunction *out, CUkernel kernel) { return *out = CUfunction(kernel), CUDA_SUCCESS; }
API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(CUfunction(kernel), attribute, value);
}

// What translated kernels ask of the driver: whether an address is right, printf, malloc, rounding.
#include "fibers.h"

#include <cfenv>
#include <cmath>
#include <cstdarg>

namespace hostcuda {

std::string text(const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

std::string place(const Fiber &f) {
  const u32 *b = f.block->ctaid;
  return text(", block (%u,%u,%u), thread (%u,%u,%u)", b[0], b[1], b[2], f.tid[0], f.tid[1], f.tid[2]);
}

std::string source(u32 line, u32 file) {
  const char *name = file ? now->kernel->module->files[file] : "";
  if (!line) return "";
  return *name ? text(" (%s, line %u)", name, line) : text(" (line %u)", line);
}

namespace {

std::set<uintptr_t> heap;  // blocks that malloc in kernels gave

bool inside(u64 address, u64 bytes, const char *start, const char *end) {
  return address >= u64(start) && address + bytes <= u64(end) && address + bytes > address;
}

bool is_reachable(const Block &b, const Context &ctx) {
  if (!on_device(&b) || b.ctx->device == ctx.device) return true;
  return std::any_of(ctx.peers.begin(), ctx.peers.end(), [&](CUcontext peer) {
    return driver.contexts[peer].device == b.ctx->device;
  });
}

std::string named(const Block &b) {
  return text("a block of %zu bytes", b.size) +
         (b.caller.empty() ? "" : " that " + b.caller + " allocated");
}

// Where an address lies that no block holds: near which one, as that is the same in each run.
std::string whereabouts(u64 address, u64 bytes) {
  if (Block *b = find_freed(address))
    return text(", %llu bytes into ", address - b->start) + named(*b) +
           (b->caller.empty() ? "" : " and") + " that was freed";
  const u64 near = 64 << 10;
  auto above = driver.blocks.upper_bound(address);
  std::string found = text(" at 0x%llx, where there is no memory of the device", address);
  u64 least = near;
  if (above != driver.blocks.end() && above->first - address < least) {
    least = above->first - address;
    found = text(", %llu bytes before ", least) + named(above->second);
  }
  if (above != driver.blocks.begin()) {
    const Block &b = std::prev(above)->second;
    u64 end = b.start + b.size;
    if (address < end) return " over the end of " + named(b);
    if (address - end < least)
      found = text(", %llu bytes behind the end of ", address - end) + named(b);
  }
  return address < 4096 ? text(" at 0x%llx, near a null pointer", address) : found;
}

[[noreturn]] void bad_access(hc_thread *t, const hc_site &site, CUresult status,
                             const std::string &where) {
  fail(t, status, text("%s %u bytes", verb(site), site.bytes) + where, site.line, site.file);
}

// Remember where this access may go.
void remember(hc_site *site, u64 start, u64 end) {
  u64 n = site->bytes, first = (start + n - 1) / n * n;
  site->start = first, site->count = end > first ? (end - first) / n : 0;
}

}  // namespace

std::string wrong_memory(const Context &ctx, u64 address, u64 bytes) {
  Block *b = find_block((void *)address);
  if (!b || !holds(b, (void *)address, bytes)) return whereabouts(address, bytes);
  return is_reachable(*b, ctx)
             ? ""
             : text(" in a block of device %d, without peer access", b->ctx->device);
}

void purge_heap() {
  for (auto it = heap.begin(); it != heap.end();) {
    it = driver.blocks.count(*it) ? std::next(it) : heap.erase(it);
  }
}

}  // namespace hostcuda

char *hc_access(hc_thread *t, hc_site *site, u64 address) {
  const Fiber &f = *(Fiber *)t;
  const hc_block &block = *t->block;
  u64 bytes = site->bytes;
  if (address % bytes)
    bad_access(t, *site, CUDA_ERROR_MISALIGNED_ADDRESS,
               text(" at an address that is no multiple of %llu", bytes));
  if (site->space == hc_shared)
    bad_access(t, *site, CUDA_ERROR_ILLEGAL_ADDRESS,
               text(" outside of %llu bytes of shared memory", block.shared_bytes));
  if (inside(address, bytes, f.local_start, f.local)) return (char *)address;
  if (site->space == hc_local)
    bad_access(t, *site, CUDA_ERROR_ILLEGAL_ADDRESS, " outside of the thread's local memory");
  if (inside(address, bytes, block.shared, block.shared + block.shared_bytes)) {
    remember(site, u64(block.shared), u64(block.shared) + block.shared_bytes);
    return (char *)address;
  }
  if (site->kind == hc_reads &&
      inside(address, bytes, block.parameters, block.parameters + now->launch->arguments.size()))
    return (char *)address;
  Block *b = find_block((void *)address);
  std::string wrong = wrong_memory(*now->ctx, address, bytes);
  if (!wrong.empty()) add_uses({{address, bytes}}, {});  // beside the free of a block that was freed
  if (!wrong.empty()) bad_access(t, *site, CUDA_ERROR_ILLEGAL_ADDRESS, wrong);
  remember(site, b->start, b->start + b->size);
  return (char *)address;
}

void hc_local_full(hc_thread *t, u32 line) {
  fail(t, CUDA_ERROR_ILLEGAL_ADDRESS, "calls functions deeper than its stack allows", line);
}

u64 hc_callee(hc_thread *t, const u64 *functions, u32 count, u64 address, u32 line) {
  for (u32 i = 0; i < count; ++i)
    if (functions[i] == address) return address;
  fail(t, CUDA_ERROR_ILLEGAL_ADDRESS, text("calls what is no function, 0x%llx", address), line);
}

void hc_trap(hc_thread *t, u32 line) { fail(t, CUDA_ERROR_LAUNCH_FAILED, "stops with a trap", line); }

void hc_assertfail(hc_thread *t, u64 message, u64 file, u32 line, u64 function) {
  const u32 *b = t->block->ctaid;
  fflush(stdout);
  fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
          (const char *)file, line, (const char *)function, b[0], b[1], b[2], t->tid[0], t->tid[1],
          t->tid[2], (const char *)message);
  fail(t, CUDA_ERROR_ASSERT, text("an assertion failed: %s", (const char *)message), line);
}

namespace {

// A string that a kernel means, up to where its memory ends.
std::string string_at(hc_thread *t, u64 address) {
  const Fiber &f = *(Fiber *)t;
  Block *b = find_block((void *)address);
  u64 end = b ? b->start + b->size : address >= u64(f.local_start) ? u64(f.local) : 0;
  if (!address) return "(null)";
  if (end <= address)
    fail(t, CUDA_ERROR_ILLEGAL_ADDRESS, text("prints a string at 0x%llx, where there is none", address), 0);
  return {(const char *)address, strnlen((const char *)address, end - address)};
}

}  // namespace

// ---- printf, malloc ------------------------------------------------------------------------------

// The arguments lie one after the other, each at a multiple of its size. A conversion that CUDA lacks
// (%zu, %.*f) is printed as it stands, and takes no argument.
u32 hc_vprintf(hc_thread *t, u64 format, u64 arguments) {
  std::string out;
  u32 count = 0;
  auto take = [&](auto value) {
    arguments = (arguments + sizeof value - 1) / sizeof value * sizeof value;
    memcpy(&value, (const void *)arguments, sizeof value);
    arguments += sizeof value;
    return value;
  };
  std::string whole = string_at(t, format);
  for (const char *p = whole.c_str(); *p; ++p) {
    if (*p != '%') {
      out += *p;
      continue;
    }
    if (p[1] == '%') {
      out += *p++;
      continue;
    }
    const char *start = p;
    std::string spec = "%";
    bool wide = false;
    for (++p; *p && strchr("-+ #0123456789.*lh", *p); ++p) {
      if (*p == '*' && p[-1] == '.') break;
      if (*p == '*')
        spec += std::to_string(take(0));
      else if (*p == 'l')
        wide = true;
      else
        spec += *p;
    }
    const char kind = *p;
    if (!kind || !strchr("csdiouxXpeEfFgGaA", kind)) {
      out.append(start, kind ? p + 1 : p--);
      continue;
    }
    char piece[512];
    ++count;
    if (strchr("eEfFgGaA", kind)) {
      snprintf(piece, sizeof piece, (spec + kind).c_str(), take(0.0));
    } else if (kind == 's') {
      std::string string = string_at(t, take(u64(0)));
      if (spec == "%") out += string;
      snprintf(piece, sizeof piece, (spec + 's').c_str(), spec == "%" ? "" : string.c_str());
    } else if (kind == 'p') {
      snprintf(piece, sizeof piece, (spec + 'p').c_str(), (void *)take(u64(0)));
    } else if (wide) {
      snprintf(piece, sizeof piece, (spec + "ll" + kind).c_str(), take(s64(0)));
    } else {
      snprintf(piece, sizeof piece, (spec + kind).c_str(), take(0));
    }
    out += piece;
  }
  fwrite(out.data(), 1, out.size(), stdout);
  return count;
}

u64 hc_malloc(hc_thread *, u64 bytes) {
  size_t all = now->ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE], &used = now->ctx->heap_bytes;
  if (!bytes || bytes > all || used + bytes > all) return 0;
  void *made = nullptr;
  if (allocate(now->ctx, bytes, Kind::heap, 0, &made)) return 0;
  heap.insert(uintptr_t(made));
  used += bytes;
  return u64(made);
}

void hc_free(hc_thread *t, u64 address, u32 line) {
  if (!address) return;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  if (!b || !heap.erase(address))
    fail(t, CUDA_ERROR_ILLEGAL_ADDRESS, text("frees 0x%llx, which malloc did not give", address), line);
  b->ctx->heap_bytes -= b->size;
  release(b);
  const hc_module &module = *now->kernel->module;  // its accesses may know the block
  for (u32 i = 0; i < module.site_count; ++i) module.sites[i].count = 0, module.sites[i].shadow = nullptr;
}

u64 hc_clock() {
  static u64 ticks;
  return ticks += 8;
}
u64 hc_nanoseconds() { return u64(wall_ms() * 1e6) + hc_clock() % 8; }

// ---- rounding ------------------------------------------------------------------------------------

namespace {

struct Rounding {
  int before = fegetround();
  explicit Rounding(hc_rounding how) {
    const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(modes[how]);
  }
  ~Rounding() { fesetround(before); }
};

template <class T>
T rounded(hc_rounded_op op, hc_rounding how, volatile T a, volatile T b, volatile T c) {
  Rounding set(how);
  volatile T found = 0;
  switch (op) {
    case hc_add: found = a + b; break;
    case hc_mul: found = a * b; break;
    case hc_div: found = a / b; break;
    case hc_sqrt: found = std::sqrt(a); break;
    default: found = std::fma(T(a), T(b), T(c));
  }
  return found;
}
template <class To, class From>
To converted(hc_rounding how, volatile From x) {
  Rounding set(how);
  volatile To found = To(x);
  return found;
}

}  // namespace

f32 hc_rounded_f32(hc_rounded_op op, hc_rounding how, f32 a, f32 b, f32 c) {
  return rounded<f32>(op, how, a, b, c);
}
f64 hc_rounded_f64(hc_rounded_op op, hc_rounding how, f64 a, f64 b, f64 c) {
  return rounded<f64>(op, how, a, b, c);
}
f32 hc_narrow(hc_rounding how, f64 x) { return converted<f32>(how, x); }
f32 hc_float_s64(hc_rounding how, s64 x) { return converted<f32>(how, x); }
f32 hc_float_u64(hc_rounding how, u64 x) { return converted<f32>(how, x); }
f64 hc_double_s64(hc_rounding how, s64 x) { return converted<f64>(how, x); }
f64 hc_double_u64(hc_rounding how, u64 x) { return converted<f64>(how, x); }

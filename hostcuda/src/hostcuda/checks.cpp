// Looks at each access of a kernel, if `--check` asks for it: reads of bytes that nothing wrote, threads
// and blocks that race, and which bytes a kernel uses.
#include "fibers.h"

#include <array>
#include <unordered_map>

namespace hostcuda {
namespace {

const u8 WRITTEN = 1, USED_NOW = 2;                    // by anything; by the kernel: a bit of each hc_kind
const u64 LINE = 32;                                  // bytes: no access is larger
const size_t MOST_LINES = 1 << 15;                    // remembered of a block

// What is known of each byte of a block of memory.
struct Shadow {
  Block block;
  std::vector<u8> bytes;
  bool is_used;  // by the kernel that runs
  std::vector<u32> writers;  // of each byte, the block of threads that last wrote it without atomics
};
bool has_fences = false;  // of the kernel that runs: they may order its blocks
std::map<uintptr_t, Shadow> shadows;  // by start address

Shadow *find_shadow(uintptr_t address) {
  Block *b = find_block((void *)address);
  if (!b) return nullptr;
  auto known = shadows.find(b->start);
  if (known != shadows.end() && known->second.block.id == b->id && known->second.block.size == b->size)
    return &known->second;
  for (auto it = shadows.begin(); it != shadows.end();)
    it = driver.blocks.count(it->first) ? std::next(it) : shadows.erase(it);
  bool written = b->kind != Kind::device && b->kind != Kind::heap;
  return &(shadows[b->start] = {*b, std::vector<u8>(b->size, written), false, {}});
}

struct Access {
  u32 epoch = 0, count = 0;  // of the block's barriers, and since then of the lane's waits
  u32 site = 0, thread = 0;
};
struct Uses {  // of a byte, the latest ones; if several threads read it, by two of them
  Access write, update, reads[2];
};
// A thread read, beside another's update. That is no race if it updates the same bytes itself next, and
// looks whether they still are what it read, as loops of atomicCAS() do. Other threads may see at once
// that they need no update.
struct Guess {
  hc_site *site;
  Access update;  // none: the read does not race
  u64 address;
};
struct Clocks {  // of a warp's lanes: which waits of the others come before
  u32 epoch = 0, known[WARP][WARP] = {};
};

}  // namespace

struct Checks {
  u32 epoch = 0;
  std::vector<u8> written;  // shared memory
  std::vector<Clocks> warps;
  std::unordered_map<u64, std::array<Uses, LINE>> lines;
  std::vector<Guess> guesses;  // by thread
};

namespace {

bool is_grid() { return volume(now->launch->grid) > 1; }
bool is_kernel_of(const char *names) { return !now->name.rfind(std::string("kernel ") + names, 0); }

// Tell it once of each line, or pair of lines, of a kernel.
bool is_told(const hc_site &a, const hc_site &b) {
  // Threads of CuPy's labels follow and shorten one chain, on purpose.
  if (is_kernel_of("cupyx_scipy_ndimage_label")) return true;
  auto key = [](const hc_site &s) { return u64(s.file) << 40 | u64(s.line) << 8 | s.kind; };
  return !told.insert({now->name, key(a), key(b)}).second;
}

bool is_before(const Access &a, const Fiber &f, const Checks &c) {
  if (a.epoch != c.epoch || a.thread == f.number) return true;
  const Clocks &warp = c.warps[f.warp()];
  return a.thread / WARP == f.warp() && warp.epoch == c.epoch &&
         warp.known[f.lane()][a.thread % WARP] > a.count;
}

// Which bytes of which memory.
std::string region(const Group &g, u64 address, u64 bytes) {
  if (address - u64(g.shared) < g.shared_bytes) {
    u64 first = address - u64(g.shared);
    return text("bytes %llu to %llu of shared memory", first, first + bytes);
  }
  Block *b = find_block((void *)address);
  u64 first = address - b->start;
  return text("bytes %llu to %llu of a block of %zu", first, first + bytes, b->size);
}

// A thread uses what it read last of what nothing has written: how, and where.
void tell_unwritten(const Fiber &f, const char *how, u32 line, u32 file) {
  std::string used = source(line, file);
  if (!f.reader) {
    if (told.insert({now->name + " shuffles", line, file}).second)
      find(now->name + place(f) + text(": a shuffle reads lane %llu, which takes no part in it, and the thread ",
                                       f.read_at) + how + used);
    return;
  }
  const hc_site &site = *f.reader;
  if (is_told(site, site)) return;
  std::string read = source(site.line, site.file);
  find(now->name + place(f) + ": reads " + region(*f.group, f.read_at, site.bytes) +
       ", which nothing has written yet" + (used == read ? "" : read) + ", and " + how + used);
}

void tell_race(const Fiber &f, const hc_site &site, const Access &other, u64 address) {
  const hc_site &first = now->kernel->module->sites[other.site];
  if (is_told(first, site)) return;
  Fiber earlier;
  earlier.block = f.block;
  number(earlier, other.thread);
  auto use = [](const hc_site &s) { return std::string(" ") + verb(s) + source(s.line, s.file); };
  find(now->name + place(earlier) + use(first) + " and " +
       text("thread (%u,%u,%u)", f.tid[0], f.tid[1], f.tid[2]) + use(site) + " " +
       region(*f.group, address, site.bytes) + ", with no barrier between them");
}

// Does a block use what another one writes? Only fences could order them.
void check_blocks(const Fiber &f, const hc_site &site, Shadow &s, char *p, bool changes) {
  u32 *writers = &s.writers[u64(p) - s.block.start];
  const u32 *n = f.block->nctaid;
  for (u32 i = 0; i < site.bytes; ++i) {
    const u32 other = writers[i] - 1;
    if (changes && other != ~0u && other != f.group->index - 1 && !is_told({}, site))
      find(now->name + place(f) + ": " + verb(site) + source(site.line, site.file) + " " +
           region(*f.group, u64(p), site.bytes) + text(", which block (%u,%u,%u) writes, ", other % n[0],
                                                       other / n[0] % n[1], other / n[0] / n[1]) +
           "and nothing orders the blocks");
    if (changes && site.kind == hc_writes) writers[i] = site.is_volatile ? 0 : f.group->index;
  }
}

// Two atomics, or volatile accesses, are no race. Nor is an atomic beside a read that is a guess.
bool is_strong(const hc_site &site) { return site.is_volatile || site.kind == hc_updates || site.is_guess; }

void check_race(const Fiber &f, hc_site &site, char *p) {
  Checks &c = *f.group->checks;
  if (c.lines.size() > MOST_LINES) c.lines.clear();
  const Clocks &warp = c.warps[f.warp()];
  const hc_site *sites = now->kernel->module->sites;
  Access mine = {c.epoch, warp.epoch == c.epoch ? warp.known[f.lane()][f.lane()] : 0,
                 u32(&site - sites), f.number};
  Guess &guess = c.guesses[f.number];
  if (guess.site && site.kind != hc_reads) {
    if (site.kind == hc_updates && guess.address == u64(p))
      guess.site->is_guess = true;
    else if (guess.update.epoch && !guess.site->is_guess)
      tell_race(f, *guess.site, guess.update, guess.address);
    guess = {};
  }
  Uses *uses = &c.lines[u64(p) / LINE][u64(p) % LINE];
  for (u32 i = 0; i < site.bytes; ++i) {
    Uses &u = uses[i];
    auto races = [&](const Access &a) {
      return !is_before(a, f, c) && !(is_strong(site) && is_strong(sites[a.site]));
    };
    if (races(u.write)) tell_race(f, site, u.write, u64(p));
    if (site.kind == hc_reads) {
      if (races(u.update) || !guess.update.epoch) guess = {&site, races(u.update) ? u.update : Access(), u64(p)};
      u.reads[!is_before(u.reads[0], f, c)] = mine;
      continue;
    }
    if (races(u.update)) tell_race(f, site, u.update, u64(p));
    for (Access &a : u.reads) {
      if (races(a)) tell_race(f, site, a, u64(p));
      a = {};
    }
    (site.kind == hc_updates ? u.update : u.write) = mine;
  }
}

}  // namespace

void begin_checks(Group &g) {
  if (!checking) return;
  if (!g.checks) g.checks = std::make_shared<Checks>();
  g.checks->written.assign(g.shared_bytes, 0);
  g.checks->warps.resize((g.threads + WARP - 1) / WARP);
  g.checks->lines.clear();
  g.checks->guesses.assign(g.threads, {});
  ++g.checks->epoch;
}

void pass_barrier(Group &g) {
  if (g.checks) ++g.checks->epoch;
}

void pass_warp(Group &g, u32 w, u32 lanes) {
  if (!g.checks) return;
  Clocks &c = g.checks->warps[w];
  if (c.epoch != g.checks->epoch) c = {g.checks->epoch};
  u32 all[WARP] = {};
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    u32 lane = __builtin_ctz(rest);
    ++c.known[lane][lane];
    for (u32 i = 0; i < WARP; ++i) all[i] = std::max(all[i], c.known[lane][i]);
  }
  for (u32 rest = lanes; rest; rest &= rest - 1) memcpy(c.known[__builtin_ctz(rest)], all, sizeof all);
}

void mark_written(uintptr_t start, size_t size) {
  if (!checking) return;
  if (Shadow *s = find_shadow(start))
    for (size_t i = start - s->block.start; size && i < s->block.size; ++i, --size) s->bytes[i] |= WRITTEN;
}

void check_written(const std::string &work, const std::vector<Range> &reads) {
  for (auto &range : reads) {
    Shadow *s = checking && range.size ? find_shadow(range.start) : nullptr;
    if (!s) continue;
    auto first = s->bytes.begin() + (range.start - s->block.start), end = first + range.size;
    auto found = std::find_if(first, end, [](u8 b) { return !(b & WRITTEN); });
    if (found == end) continue;
    size_t i = found - s->bytes.begin();
    return find(work + text(": reads byte %zu of a block of %zu, which nothing has written yet", i,
                            s->block.size));
  }
}

void take_uses(std::vector<Range> *uses) {
  has_fences = false;
  for (auto &[start, s] : shadows) {
    if (!s.is_used) continue;
    s.is_used = false;
    for (int kind = 0; kind < 3; ++kind)
      for (size_t i = 0; i < s.bytes.size(); ++i) {
        const u8 bit = USED_NOW << kind;
        if (!(s.bytes[i] & bit)) continue;
        size_t first = i;
        for (; i < s.bytes.size() && s.bytes[i] & bit; ++i) s.bytes[i] &= u8(~bit);
        uses[kind].push_back({start + first, i - first});
      }
  }
}

}  // namespace hostcuda

char *hc_seen(hc_thread *t, hc_site *site, char *p, const void *value) {
  Fiber &f = *(Fiber *)t;
  Group &g = *f.group;
  u64 address = u64(p);
  u8 *seen;
  Shadow *s = nullptr;
  bool reads = site->kind == hc_reads || (site->kind == hc_updates && !value);
  bool gives = site->kind != hc_reads && f.unwritten, is_shared = false;
  f.unwritten = false;
  if (address - u64(g.shared) < g.shared_bytes) {
    seen = &g.checks->written[address - u64(g.shared)], is_shared = true;
  } else {
    s = (Shadow *)site->shadow;
    if (!s || address - s->block.start >= s->block.size) {
      bool is_local = address - u64(f.local_start) < u64(f.local_end - f.local_start);
      if (is_local || !(s = find_shadow(address))) return p;  // or a parameter
      site->shadow = s;
    }
    if (!s->is_used) s->is_used = true, s->writers.assign(is_grid() ? s->block.size : 0, 0);
    seen = &s->bytes[address - s->block.start];
  }
  auto is_written = [](u8 b) { return b & WRITTEN; };
  bool all_written = std::all_of(seen, seen + site->bytes, is_written);
  // Padding is read with what is beside it. Threads read more than they use: it is told where a value
  // is used, or goes to device memory. CuPy also copies what nothing has written.
  if (reads && std::none_of(seen, seen + site->bytes, is_written)) {
    f.reader = site, f.read_at = address;
    (site->kind == hc_reads ? f.unwritten : gives) = true;
  }
  bool copies = gives && (is_shared || is_kernel_of("cupy_copy__"));
  if (gives && !copies) {
    const char *how = site->kind == hc_writes ? "writes what it read" : "updates it";
    tell_unwritten(f, how, site->line, site->file);
  }
  u8 bits = USED_NOW << site->kind | (site->kind == hc_reads ? 0 : WRITTEN);
  for (u32 i = 0; i < site->bytes; ++i)
    seen[i] = (seen[i] | bits) & u8(copies ? ~WRITTEN : ~0);
  // A write that changes nothing is no race: often, several threads write the same.
  bool changes = site->kind != hc_writes || !all_written || !value || memcmp(p, value, site->bytes);
  if (g.threads > 1 && changes) check_race(f, *site, p);
  if (s && !s->writers.empty() && !has_fences) check_blocks(f, *site, *s, p, changes);
  return p;
}

void hc_used(hc_thread *t, const char *how, u32 line, u32 file) {
  tell_unwritten(*(Fiber *)t, how, line, file);
}

void hc_fence(hc_thread *t) {
  has_fences = true;
  pass_barrier(*((Fiber *)t)->group);
}

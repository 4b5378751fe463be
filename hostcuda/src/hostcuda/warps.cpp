// What threads wait for: barriers of a block, functions of a warp, and lanes that meet.
#include "fibers.h"

namespace hostcuda {
namespace {

// ---- barriers ------------------------------------------------------------------------------------

// How many threads have arrived. With an explicit count, a warp whose living lanes have all arrived
// counts as a whole one, as PTX says.
u32 arrived(const Group &g, const Barrier &barrier) {
  if (!barrier.expected) return barrier.arrived;
  u32 sum = 0;
  for (u32 w = 0; w * WARP < g.threads; ++w) {
    u32 here = barrier.counted[w];
    sum += here && !(g.warps[w].alive & ~here) ? WARP : __builtin_popcount(here);
  }
  return sum;
}

void check_barrier(Group &g, Barrier &barrier) {
  if (!barrier.arrived || arrived(g, barrier) < (barrier.expected ? barrier.expected : g.alive)) return;
  for (u32 w = 0; w * WARP < g.threads; ++w) {
    u32 lanes = barrier.waits[w];
    if (!lanes) continue;
    for (u32 rest = lanes; rest; rest &= rest - 1) {
      Fiber &f = *g.warps[w].lanes[__builtin_ctz(rest)];
      f.result = f.b == hc_bar_popc  ? barrier.count
                 : f.b == hc_bar_and ? barrier.count == barrier.arrived
                                     : barrier.count != 0;
    }
    release(g, w, lanes);
  }
  barrier = {};
  pass_barrier(g);
}

Barrier &arrive(Fiber &f, u32 number, u32 count, u32 predicate, u32 line) {
  Group &g = *f.group;
  if (number >= BARRIERS)
    fail(&f, CUDA_ERROR_ILLEGAL_INSTRUCTION, text("there is no barrier %u", number), line);
  if (count % WARP)
    fail(&f, CUDA_ERROR_ILLEGAL_INSTRUCTION,
         text("a barrier for %u threads, which is no multiple of 32", count), line);
  Barrier &barrier = g.barriers[number];
  g.uses_barriers = true;
  if (barrier.arrived && barrier.expected != count)
    fail(&f, CUDA_ERROR_LAUNCH_FAILED,
         text("barrier %u is for %u threads here, and for %u where others wait", number, count,
              barrier.expected),
         line);
  u32 lanes = barrier.waits[f.warp()], other = lanes ? g.warps[f.warp()].lanes[__builtin_ctz(lanes)]->line : line;
  if (checking && !count && other != line && told.insert({now->name + " barriers", other, line}).second)
    find(now->name + place(f) + ": waits at a barrier" + source(line, 0) +
         ", and other threads of its warp at another one" + source(other, 0));
  barrier.expected = count;
  barrier.counted[f.warp()] |= 1u << f.lane();
  ++barrier.arrived;
  barrier.count += predicate != 0;
  return barrier;
}

// ---- functions of a warp -------------------------------------------------------------------------

u64 pack(u32 value, bool predicate) { return value | u64(predicate) << 32; }

u64 shuffle(const Warp &warp, Fiber &f, u32 group) {
  u32 lane = f.lane(), clamp = f.c & 31, segment = f.c >> 8 & 31, b = f.b & 31;
  u32 first = lane & segment, last = first | (clamp & ~segment);
  const bool is_up = f.op == hc_shfl_up;
  int from = is_up                    ? int(lane) - int(b)
             : f.op == hc_shfl_down   ? int(lane + b)
             : f.op == hc_shfl_bfly   ? int(lane ^ b)
                                      : int(first | (b & ~segment));
  const bool inside = is_up ? from >= int(last) : from <= int(last);
  if (!inside) from = int(lane);
  // What an absent lane holds is not defined: the thread's own value.
  const Fiber &source = group >> from & 1 ? *warp.lanes[from] : f;
  f.unwritten = !(group >> from & 1) || source.a >> 32;
  if (f.unwritten) f.reader = &source == &f ? nullptr : source.reader, f.read_at = &source == &f ? u64(from) : source.read_at;
  return pack(u32(source.a), inside);
}

template <class T, class Combine>
u64 reduce(const Warp &warp, u32 lanes, Combine combine) {
  T sum = T(warp.lanes[__builtin_ctz(lanes)]->a);
  for (lanes &= lanes - 1; lanes; lanes &= lanes - 1)
    sum = combine(sum, T(warp.lanes[__builtin_ctz(lanes)]->a));
  return u32(sum);
}

u64 redux(const Warp &warp, hc_warp_op op, u32 lanes) {
  auto smaller = [](auto a, auto b) { return b < a ? b : a; };
  auto larger = [](auto a, auto b) { return a < b ? b : a; };
  switch (op) {
    case hc_redux_min_u32: return reduce<u32>(warp, lanes, smaller);
    case hc_redux_min_s32: return reduce<s32>(warp, lanes, smaller);
    case hc_redux_max_u32: return reduce<u32>(warp, lanes, larger);
    case hc_redux_max_s32: return reduce<s32>(warp, lanes, larger);
    case hc_redux_and_b32: return reduce<u32>(warp, lanes, std::bit_and());
    case hc_redux_or_b32: return reduce<u32>(warp, lanes, std::bit_or());
    case hc_redux_xor_b32: return reduce<u32>(warp, lanes, std::bit_xor());
    default: return reduce<u32>(warp, lanes, std::plus());
  }
}

// All lanes have come: each gets its result.
void perform(Warp &warp, hc_warp_op op, u32 lanes) {
  u32 holds = 0;
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    u32 lane = __builtin_ctz(rest);
    if (warp.lanes[lane]->a & 1) holds |= 1u << lane;
  }
  u64 common = op >= hc_redux_add_u32 && op <= hc_redux_xor_b32 ? redux(warp, op, lanes) : 0;
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    u32 lane = __builtin_ctz(rest), same = 0;
    Fiber &f = *warp.lanes[lane];
    switch (op) {
      case hc_shfl_up:
      case hc_shfl_down:
      case hc_shfl_bfly:
      case hc_shfl_idx: f.result = shuffle(warp, f, lanes); break;
      case hc_vote_all: f.result = holds == lanes; break;
      case hc_vote_any: f.result = holds != 0; break;
      case hc_vote_uni: f.result = holds == lanes || !holds; break;
      case hc_vote_ballot: f.result = holds; break;
      case hc_match_any32:
      case hc_match_any64:
      case hc_match_all32:
      case hc_match_all64:
        for (u32 i = lanes; i; i &= i - 1)
          if (warp.lanes[__builtin_ctz(i)]->a == f.a) same |= i & -i;
        f.result = op < hc_match_all32 ? same : pack(same == lanes ? lanes : 0, same == lanes);
        break;
      case hc_elect: f.result = pack(__builtin_ctz(lanes), lane == u32(__builtin_ctz(lanes))); break;
      case hc_syncwarp: break;
      default: f.result = common;
    }
  }
}

// Let the lanes of a rendezvous go on, if all that live have come.
bool check_rendezvous(Group &g, u32 w, size_t index, u32 but) {
  Warp &warp = g.warps[w];
  Rendezvous r = warp.waiting[index];
  if (r.mask & warp.alive & ~r.arrived) return false;
  warp.waiting[index] = warp.waiting.back();
  warp.waiting.pop_back();
  if (!r.arrived) return true;
  perform(warp, r.op, r.arrived);
  pass_warp(g, w, r.arrived);
  if (r.arrived & ~but) release(g, w, r.arrived & ~but);
  return true;
}

}  // namespace

void recheck(Group &g, u32 w) {
  for (size_t i = g.warps[w].waiting.size(); i-- > 0;) check_rendezvous(g, w, i, 0);
  if (g.uses_barriers)
    for (Barrier &barrier : g.barriers) check_barrier(g, barrier);
}

bool meet(Group &g, u32 w) {
  Warp &warp = g.warps[w];
  u32 first = ~0u, lanes = 0;
  for (u32 rest = warp.meeting; rest; rest &= rest - 1)
    first = std::min(first, warp.lanes[__builtin_ctz(rest)]->place);
  for (u32 rest = warp.meeting; rest; rest &= rest - 1)
    if (warp.lanes[__builtin_ctz(rest)]->place == first) lanes |= rest & -rest;
  for (u32 rest = lanes; rest; rest &= rest - 1) warp.lanes[__builtin_ctz(rest)]->mask = lanes;
  warp.meeting &= ~lanes;
  pass_warp(g, w, lanes);
  release(g, w, lanes);
  return true;
}

}  // namespace hostcuda

u32 hc_barrier(hc_thread *t, hc_barrier_op op, u32 number, u32 count, u32 predicate, u32 line) {
  Fiber &f = *(Fiber *)t;
  Group &g = *f.group;
  Barrier &barrier = arrive(f, number, count, predicate, line);
  barrier.waits[f.warp()] |= 1u << f.lane();
  f.b = op, f.place = number;
  check_barrier(g, barrier);
  suspend(f, Wait::barrier, line);
  return u32(f.result);
}

void hc_arrive(hc_thread *t, u32 number, u32 count, u32 line) {
  Fiber &f = *(Fiber *)t;
  check_barrier(*f.group, arrive(f, number, count, 0, line));
}

u64 hc_warp(hc_thread *t, hc_warp_op op, u32 mask, u64 a, u32 b, u32 c, u32 line) {
  Fiber &f = *(Fiber *)t;
  Group &g = *f.group;
  Warp &warp = g.warps[f.warp()];
  u32 me = 1u << f.lane();
  if (op == hc_syncwarp && !(mask & me)) return 0;
  if (!(mask & me))
    fail(&f, CUDA_ERROR_LAUNCH_FAILED,
         text("calls a warp function with mask 0x%x, which does not name its lane %u", mask, f.lane()),
         line);
  if (op <= hc_shfl_idx) a |= u64(f.unwritten) << 32;
  f.op = op, f.mask = mask, f.a = a, f.b = b, f.c = c;
  size_t i = 0;
  while (i < warp.waiting.size() && (warp.waiting[i].op != op || warp.waiting[i].mask != mask)) ++i;
  if (i == warp.waiting.size()) warp.waiting.push_back({op, mask, 0});
  warp.waiting[i].arrived |= me;
  if (!check_rendezvous(g, f.warp(), i, me)) suspend(f, Wait::warp, line);
  return f.result;
}

u32 hc_meet(hc_thread *t, u32 place, u32 line) {
  Fiber &f = *(Fiber *)t;
  Group &g = *f.group;
  g.warps[f.warp()].meeting |= 1u << f.lane();
  g.active |= 1u << f.warp();
  f.place = place;
  suspend(f, Wait::meeting, line);
  return f.mask;
}

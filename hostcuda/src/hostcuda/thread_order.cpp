// The order in which threads and blocks of a kernel run: as they are numbered, or at random.
#include "fibers.h"

namespace hostcuda {
namespace {

u16 thread_order[MOST_THREADS];  // warp after warp
u32 warp_ends[MOST_WARPS];

template <class T>
void shuffle(T *start, u32 count) {
  for (u32 i = count; i > 1; --i) std::swap(start[i - 1], start[random_below(i, thread_state)]);
}

}  // namespace

void shuffle_threads(u32 threads) {
  if (!thread_state) return;
  u32 count = (threads + WARP - 1) / WARP, end = 0, warps[MOST_WARPS];
  for (u32 w = 0; w < count; ++w) warps[w] = w;
  shuffle(warps, count);
  for (u32 i = 0; i < count; ++i) {
    u32 w = warps[i], first = end;
    for (u32 n = w * WARP; n < std::min((w + 1) * WARP, threads); ++n) thread_order[end++] = u16(n);
    shuffle(thread_order + first, end - first);
    warp_ends[w] = end;
  }
}

u32 thread_at(u32 place) { return thread_state ? thread_order[place] : place; }

u32 warp_end(u32 warp, u32 threads) {
  return thread_state ? warp_ends[warp] : std::min((warp + 1) * WARP, threads);
}

u32 pick_any(u32 set) {
  u32 from = random_below(32, thread_state);
  return __builtin_ctz(set >> from ? set >> from << from : set);
}

void order_blocks(std::vector<u64> *order, u64 first, u64 count) {
  if (!thread_state) return order->push_back(first);
  for (u64 i = 0; i < count; ++i) order->push_back(first + i);
  shuffle(order->data(), u32(count));
}

}  // namespace hostcuda

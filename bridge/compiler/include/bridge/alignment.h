// Included before a source to find its attributes `aligned` and `packed`, see alignment.py.
// NVRTC warns of an unknown attribute, and tells the place, or the place of the macro's use.
// Behind a template it drops attributes without a warning, but a second list is an error there.
#pragma nv_diag_warning 1097

#define BRIDGE_aligned , bridge_layout
#define BRIDGE___aligned__ , bridge_layout
#define BRIDGE_packed , bridge_layout
#define BRIDGE___packed__ , bridge_layout
#define BRIDGE_SECOND(a, b, ...) b
#define BRIDGE_IF(...) BRIDGE_SECOND(__VA_ARGS__)
#define BRIDGE_FIND(a, b, c, d, ...) \
  BRIDGE_IF(BRIDGE_##a, ,), BRIDGE_IF(BRIDGE_##b, ,), \
  BRIDGE_IF(BRIDGE_##c, ,), BRIDGE_IF(BRIDGE_##d, ,)
#define BRIDGE_FOUR(...) BRIDGE_FIND(__VA_ARGS__, , , , ,)
#define BRIDGE_LIST(...) BRIDGE_FOUR(__VA_ARGS__), __VA_ARGS__
#define __attribute__(x) __attribute__((BRIDGE_LIST x)) __attribute__(())

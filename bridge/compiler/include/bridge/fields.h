// Where the members of a struct are: their names come from a dtype.  0 bytes: there is none.
template <unsigned long bridge_n, class bridge_kernel> struct bridge_argument;
template <unsigned long bridge_n, class bridge_T, class... bridge_P>
struct bridge_argument<bridge_n, void(bridge_T, bridge_P...)>
    : bridge_argument<bridge_n - 1, void(bridge_P...)> {};
template <class bridge_T, class... bridge_P>
struct bridge_argument<0, void(bridge_T, bridge_P...)> : bridge_item<bridge_T> {};
template <class bridge_T, class... bridge_P>
struct bridge_argument<0, void(bridge_T *, bridge_P...)> : bridge_item<bridge_T> {};
#define bridge_field(number, name)                                                             \
  template <class bridge_T, class = void> struct bridge_field_##number {                      \
    typedef void bridge_type;                                                                 \
    static constexpr unsigned long bridge_at = 0, bridge_size = 0;                            \
  };                                                                                          \
  template <class bridge_T>                                                                   \
  struct bridge_field_##number<bridge_T, decltype(void(sizeof(((bridge_T *)0)->name)))> {     \
    typedef decltype(((bridge_T *)0)->name) bridge_type;                                      \
    static constexpr unsigned long bridge_at = offsetof(bridge_T, name),                      \
                                   bridge_size = sizeof(((bridge_T *)0)->name);               \
  };

#if __cplusplus >= 201402L
template <class bridge_T> struct bridge_item { typedef bridge_T bridge_type; };
template <class bridge_T> struct bridge_item<bridge_T[]> : bridge_item<bridge_T> {};
template <class bridge_T, unsigned long bridge_n>
struct bridge_item<bridge_T[bridge_n]> : bridge_item<bridge_T> {};
template <class bridge_T, class = void> struct bridge_layout {
  static constexpr unsigned long bridge_size = 0, bridge_alignment = 1;
};
template <class bridge_T>
struct bridge_layout<bridge_T, decltype(void(sizeof(typename bridge_item<bridge_T>::bridge_type)))>
    : bridge_item<bridge_T> {
  static constexpr unsigned long bridge_size = sizeof(typename bridge_layout::bridge_type);
  static constexpr unsigned long bridge_alignment = alignof(typename bridge_layout::bridge_type);
};
template <> struct bridge_layout<void> : bridge_layout<void, int> {};
template <class bridge_T> struct bridge_target {
  static constexpr unsigned long bridge_size = 0, bridge_alignment = 1, bridge_is_enum = 0;
};
template <class bridge_T> struct bridge_target<bridge_T *> : bridge_layout<bridge_T> {
  static constexpr unsigned long bridge_is_enum =
      __is_enum(typename bridge_item<bridge_T>::bridge_type);
};
template <unsigned long...> struct bridge_numbers;
template <class bridge_kernel> struct bridge_targets;
template <class... bridge_P> struct bridge_targets<void(bridge_P...)> {
  typedef bridge_numbers<bridge_target<bridge_P>::bridge_size...,
                         bridge_target<bridge_P>::bridge_alignment...,
                         bridge_target<bridge_P>::bridge_is_enum...> bridge_list;
};
template <class bridge_kernel, class = typename bridge_targets<bridge_kernel>::bridge_list>
__device__ char bridge_signature;
#endif

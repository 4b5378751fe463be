#if __cplusplus >= 201402L
template <class bridge_T> struct bridge_item { typedef bridge_T type; };
template <class bridge_T> struct bridge_item<bridge_T[]> : bridge_item<bridge_T> {};
template <class bridge_T, unsigned long bridge_n>
struct bridge_item<bridge_T[bridge_n]> : bridge_item<bridge_T> {};
template <class bridge_T, class = void> struct bridge_layout {
  static constexpr unsigned long size = 0, alignment = 1;
};
template <class bridge_T>
struct bridge_layout<bridge_T, decltype(void(sizeof(typename bridge_item<bridge_T>::type)))> {
  typedef typename bridge_item<bridge_T>::type item;
  static constexpr unsigned long size = sizeof(item), alignment = alignof(item);
};
template <> struct bridge_layout<void> : bridge_layout<void, int> {};
template <class bridge_T> struct bridge_target {
  static constexpr unsigned long size = 0, alignment = 1, is_enum = 0;
};
template <class bridge_T> struct bridge_target<bridge_T *> : bridge_layout<bridge_T> {
  static constexpr unsigned long is_enum = __is_enum(typename bridge_item<bridge_T>::type);
};
template <unsigned long...> struct bridge_numbers;
template <class bridge_kernel> struct bridge_targets;
template <class... bridge_P> struct bridge_targets<void(bridge_P...)> {
  typedef bridge_numbers<bridge_target<bridge_P>::size..., bridge_target<bridge_P>::alignment...,
                         bridge_target<bridge_P>::is_enum...> numbers;
};
template <class bridge_kernel, class = typename bridge_targets<bridge_kernel>::numbers>
__device__ char bridge_signature;
#endif

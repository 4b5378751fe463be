// NVRTC declares assert; this is what NDEBUG makes of it, wherever it is defined.
#ifdef NDEBUG
#undef assert
#define assert(condition) ((void)0)
#endif

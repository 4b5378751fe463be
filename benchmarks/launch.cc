// A call through tvm-ffi: three tensors by DLPack's C exchange API, two scalars, one launch.
#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

using Launch = int(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
static auto *launch =
    reinterpret_cast<Launch *>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"));

void axpy(int64_t kernel, tvm::ffi::TensorView z, tvm::ffi::TensorView x, tvm::ffi::TensorView y,
          double a, int64_t count) {
  void *stream = TVMFFIEnvGetStream(z.device().device_type, z.device().device_id);
  void *pointers[] = {z.data_ptr(), x.data_ptr(), y.data_ptr()};
  float factor = a;
  int n = count;
  void *args[] = {pointers, pointers + 1, pointers + 2, &factor, &n};
  int status = launch(reinterpret_cast<void *>(kernel), 8, 1, 1, 128, 1, 1, 0, stream, args, nullptr);
  TVM_FFI_ICHECK(!status) << status;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(axpy, axpy);

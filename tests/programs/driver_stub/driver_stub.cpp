// A libcuda.so.1 for machines without a driver, so that cuDNN compiles its kernels there and says what they need. It loads
// modules that go nowhere and answers all else as the stub of the CUDA toolkit does (CMakeLists.txt names that).
namespace {

constexpr int kSuccess = 0, kStubLibrary = 34;
constexpr int kCudaVersion = 13000;

template <typename Value>
int give(Value* to, Value value) {
  *to = value;
  return kSuccess;
}
int something;

}  // namespace

extern "C" {

int stub_success() { return kSuccess; }
int stub_library() { return kStubLibrary; }
int cuDriverGetVersion(int* version) { return give(version, kCudaVersion); }
int cuLibraryLoadData(void** library) { return give<void*>(library, &something); }
int cuLibraryGetKernel(void** kernel) { return give<void*>(kernel, &something); }
int cuKernelGetAttribute(int* value) { return give(value, 0); }
int cuFuncGetAttribute(int* value) { return give(value, 0); }

}  // extern "C"

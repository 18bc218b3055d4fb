// Counts calls of the CUDA runtime (LD_PRELOAD) that a training step must not make: waits of the host and allocations.
// Writes {"cudaMalloc": 3, ...} to the file that COUNT_CUDA_CALLS names when the process ends. Sees what LibTorch and our
// library call; cuBLAS and cuDNN have a runtime of their own inside.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

enum Call {
  kMalloc,
  kFree,
  kHostAlloc,
  kMemcpy,
  kMemcpyAsync,
  kMemset,
  kStreamSynchronize,
  kDeviceSynchronize,
  kEventSynchronize,
  kNumCalls
};
constexpr std::array<const char*, kNumCalls> kNames = {
    "cudaMalloc",          "cudaFree",   "cudaHostAlloc",         "cudaMemcpy",
    "cudaMemcpyAsync",     "cudaMemset", "cudaStreamSynchronize", "cudaDeviceSynchronize",
    "cudaEventSynchronize"};

std::array<std::atomic<long>, kNumCalls> counts{};

/// The runtime's own function; the wheel's libcudart is loaded by whoever calls.
template <class Function>
Function real(Call call) {
  static void* const runtime = ::dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
  void* const found = runtime == nullptr ? nullptr : ::dlsym(runtime, kNames[call]);
  if (found == nullptr) {
    std::fprintf(stderr, "count_cuda_calls: no %s in libcudart.so.13\n", kNames[call]);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

template <Call call, class... Arguments>
int counted(Arguments... arguments) {
  static const auto function = real<int (*)(Arguments...)>(call);
  counts[call].fetch_add(1, std::memory_order_relaxed);
  return function(arguments...);
}

struct Writer {
  ~Writer() {
    const char* const name = std::getenv("COUNT_CUDA_CALLS");
    std::FILE* const file = name == nullptr ? nullptr : std::fopen(name, "w");
    if (file == nullptr) return;
    for (int call = 0; call < kNumCalls; ++call) {
      std::fprintf(file, "%s\"%s\": %ld", call == 0 ? "{" : ", ", kNames[static_cast<std::size_t>(call)],
                   counts[static_cast<std::size_t>(call)].load());
    }
    std::fprintf(file, "}\n");
    std::fclose(file);
  }
};
const Writer writer;

}  // namespace

// Error codes and kinds of copy are ints, streams and events pointers.
extern "C" {
int cudaMalloc(void** pointer, std::size_t bytes) { return counted<kMalloc>(pointer, bytes); }
int cudaFree(void* pointer) { return counted<kFree>(pointer); }
int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return counted<kHostAlloc>(pointer, bytes, flags);
}
int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  return counted<kMemcpy>(to, from, bytes, kind);
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  return counted<kMemcpyAsync>(to, from, bytes, kind, stream);
}
int cudaMemset(void* to, int value, std::size_t bytes) { return counted<kMemset>(to, value, bytes); }
int cudaStreamSynchronize(void* stream) { return counted<kStreamSynchronize>(stream); }
int cudaDeviceSynchronize() { return counted<kDeviceSynchronize>(); }
int cudaEventSynchronize(void* event) { return counted<kEventSynchronize>(event); }
}

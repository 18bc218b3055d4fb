// Records every kernel that a process runs on a GPU, through CUPTI's activity records, also inside CUDA graphs.
// CUDA_INJECTION64_PATH names this library: the driver then calls InitializeInjection() when CUDA starts.
// {"kernels": [{"name", "calls", "ms", "registers", "local_bytes"}, ...], "dropped": n} goes to the file that
// RECORD_CUDA_KERNELS names; a name is mangled, ms is the sum, registers and local_bytes are those of a thread. The file is replaced
// every second and when the process ends, so that a process that a signal ends leaves all but its last kernels.
#include <cupti.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Kernel {
  long calls = 0;
  double ms = 0;
  unsigned registers = 0, local_bytes = 0;
};

using Clock = std::chrono::steady_clock;

// About a thousand kernels: CUPTI hands over a buffer once it is full.
constexpr std::size_t kBufferBytes = std::size_t{256} << 10, kAlignment = 8;
constexpr std::chrono::milliseconds kPeriod(1000);
std::mutex mutex;
auto& kernels = *new std::map<std::string, Kernel>;  // never destroyed: buffers come until the process ends
std::size_t num_dropped = 0;
Clock::time_point written;

/// LibTorch has loaded CUPTI's library; it is the one with this name.
template <class Function>
Function cupti(const char* name) {
  static void* const library = ::dlopen("libcupti.so.13", RTLD_LAZY);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "record_cuda_kernels: no %s in libcupti.so.13\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

void CUPTIAPI provide_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *bytes = kBufferBytes;
  *max_records = 0;  // as many as fit
}

/// Under another name until it is whole. The mutex is held.
void write_kernels() {
  const char* const name = std::getenv("RECORD_CUDA_KERNELS");
  if (name == nullptr) return;
  const std::string partial = std::string(name) + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "{\"kernels\": [");
  const char* separator = "\n";
  for (const auto& [kernel_name, kernel] : kernels) {
    std::fprintf(file, "%s{\"name\": \"%s\", \"calls\": %ld, \"ms\": %.6f, \"registers\": %u, \"local_bytes\": %u}",
                 separator, kernel_name.c_str(), kernel.calls, kernel.ms, kernel.registers, kernel.local_bytes);
    separator = ",\n";
  }
  std::fprintf(file, "\n], \"dropped\": %zu}\n", num_dropped);
  if (std::fclose(file) == 0) std::rename(partial.c_str(), name);
  written = Clock::now();
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  static const auto next = cupti<decltype(&cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
  static const auto dropped = cupti<decltype(&cuptiActivityGetNumDroppedRecords)>("cuptiActivityGetNumDroppedRecords");
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (next(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* const run = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    Kernel& kernel = kernels[run->name == nullptr ? "?" : run->name];
    ++kernel.calls;
    kernel.ms += static_cast<double>(run->end - run->start) / 1e6;
    kernel.registers = run->registersPerThread;
    kernel.local_bytes = run->localMemoryPerThread;
  }
  std::size_t lost = 0;
  if (dropped(context, stream, &lost) == CUPTI_SUCCESS) num_dropped += lost;
  std::free(buffer);
  if (Clock::now() - written >= kPeriod) write_kernels();
}

void write_the_last() {
  cupti<decltype(&cuptiActivityFlushAll)>("cuptiActivityFlushAll")(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(mutex);
  write_kernels();
}

}  // namespace

/// Called by the driver. Returns 1 where recording has begun.
extern "C" int InitializeInjection() {
  const auto set_callbacks = cupti<decltype(&cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks");
  const auto enable = cupti<decltype(&cuptiActivityEnable)>("cuptiActivityEnable");
  if (set_callbacks(provide_buffer, take_buffer) != CUPTI_SUCCESS ||
      enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "record_cuda_kernels: CUPTI records nothing here\n");
    return 0;
  }
  cupti<decltype(&cuptiActivityFlushPeriod)>("cuptiActivityFlushPeriod")(kPeriod.count());
  std::atexit(write_the_last);
  return 1;
}

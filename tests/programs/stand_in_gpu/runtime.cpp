// The CUDA runtime and cuBLAS on host memory: copies are copied, kernels and matrix products do nothing. At the end of the
// process it writes how often each call came to the file that STAND_IN_CALLS names.
//   STAND_IN_FAIL_AT=n   from the n-th wait for an event on, every call fails as after an illegal address
//   STAND_IN_OOM_AT=n    the n-th allocation fails, and the ones after it; n:m those up to the m-th
//   STAND_IN_TOTAL_GIB=n memory of the device, default 140
//   STAND_IN_FREE_GIB=n  free memory at the start, default 100 or all of it: more is refused
//   STAND_IN_REFUSE_CAPTURE_AT=n  from the n-th on, no capture ends well:
//   STAND_IN_REFUSE_CAPTURE=begin|work|end|instantiate  what is refused then, default end
//   STAND_IN_REFUSE_CAPTURE=fail|fail-end  not refused: the device fails, while work is recorded or when that ends
//   STAND_IN_MAJOR=n     compute capability n.0, default 8: cuDNN, which auto takes first on 9.0, does not start here
//   STAND_IN_DEVICES=n   GPUs, default 1; STAND_IN_UUID=n: last byte of the UUID of the first, default 0
//   STAND_IN_TIMES=n     seed of the times between events, which are random but for it
// Prototypes as in cuda_runtime_api.h and cublas_api.h, pointers to structs as void*.
#include <driver_types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "captures.h"
#include "device_memory.h"
#include "write_counts.h"

namespace {

constexpr auto kNames =
    names("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy", "cudaMemcpyAsync", "cudaStreamSynchronize",
          "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaLaunchKernel", "cublasLtMatmul", "cudaEventElapsedTime",
          "cudaMemsetAsync", "recorded", "recordedCold", "cudaGraphLaunch", "bytesFromPageLocked", "bytesFromPageable",
          "bytesToHost", "bytesPageLocked", "cudaStreamWaitEvent");
/// The place of a name.
consteval std::size_t call(std::string_view name) {
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw "no such name";
  return static_cast<std::size_t>(found - std::begin(kNames));
}
std::atomic<long> counts[std::size(kNames)];  ///< of all threads
bool has_failed = false;
std::atomic<void (*)(void* stream)> wait_for_collectives = nullptr;  ///< of the stand-in for NCCL, if it is there
thread_local int current_device = 0;
void* capturing = nullptr;  ///< the stream that records
std::thread::id recorder;   ///< the thread that asked for it
long num_captures = 0;
auto& captures = *new Captures;  // never destroyed: calls come until the process ends
auto& device_memory = *new DeviceMemory;
auto& page_locked = *new PageLocked;
bool is_broken = false;  ///< something was asked for that cannot be recorded: more is refused, and the graph

/// Before anything in a stream: work is done when it is enqueued, but a collective of several processes takes its time.
void wait_for(void* stream) {
  if (const auto wait = wait_for_collectives.load()) wait(stream);
}
void* const any_stream = reinterpret_cast<void*>(~std::uintptr_t{0});

bool records(void* stream) { return stream != nullptr && captures.has(stream); }
int status() { return has_failed ? cudaErrorIllegalAddress : cudaSuccess; }
int count(std::size_t what) {
  ++counts[what];
  return status();
}
/// Of work in a stream: recorded, it is not done now. What goes elsewhere while a stream records would be done once and
/// never again.
int count(std::size_t what, void* stream) {
  if (capturing != nullptr && !records(stream) && std::this_thread::get_id() == recorder) is_broken = true;
  if (!records(stream)) return count(what);
  count(call("recorded"));
  captures.enqueue(stream);
  return is_broken ? cudaErrorStreamCaptureInvalidated : status();
}
/// Of a kernel: one that has never run before it is recorded would be loaded in the middle of that.
int count_launch(const void* kernel, void* stream) {
  wait_for(stream);
  static std::set<const void*> known;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (known.insert(kernel).second && capturing != nullptr) ++counts[call("recordedCold")];
  return count(call("cudaLaunchKernel"), stream);
}
/// What may not come while a stream records: a wait of the host.
int count_wait(std::size_t what) {
  if (capturing == nullptr) return count(what);
  is_broken = true;
  return cudaErrorStreamCaptureUnsupported;
}
long setting(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atol(text) : otherwise;
}
/// Whether this is refused of the capture under way.
bool refuses(std::string_view what) {
  const long at = setting("STAND_IN_REFUSE_CAPTURE_AT", 0);
  const char* const named = std::getenv("STAND_IN_REFUSE_CAPTURE");
  return at > 0 && num_captures >= at && what == (named != nullptr ? named : "end");
}
std::size_t total_bytes() { return static_cast<std::size_t>(setting("STAND_IN_TOTAL_GIB", 140)) << 30; }
std::size_t bytes_at_start() {
  return std::min(total_bytes(), static_cast<std::size_t>(setting("STAND_IN_FREE_GIB", 100)) << 30);
}
/// Of copies to the device and from it.
void count_source(const void* from, std::size_t bytes, int kind) {
  if (kind == cudaMemcpyDeviceToHost) counts[call("bytesToHost")] += static_cast<long>(bytes);
  if (kind != cudaMemcpyHostToDevice) return;
  counts[page_locked.has(from) ? call("bytesFromPageLocked") : call("bytesFromPageable")] += static_cast<long>(bytes);
}
int new_handle(void** handle) {
  *handle = std::malloc(8);
  return status();
}

/// cublasLtMatmulHeuristicResult_t.
struct Algorithm {
  std::uint64_t number = 0, rest[7] = {};
  std::size_t workspace_bytes = 0;
  int state = 0;
  float waves = 0;
  int reserved[4] = {};
};
constexpr int kNumAlgorithms = 5;

struct Report {
  ~Report() { write(); }
  static void write() {
    const char* const file = std::getenv("STAND_IN_CALLS");
    if (file != nullptr) write_counts(file, kNames, counts);
  }
} report;

}  // namespace

extern "C" {

/// CMakeLists.txt says who answers that.
int stand_in_success() { return 0; }

/// Called by tests/programs/fork_server, under which no destructor runs.
void at_end_of_request() { Report::write(); }

void stand_in_wait_with(void (*wait)(void* stream)) { wait_for_collectives = wait; }

int cudaGetDeviceCount(int* num) { return *num = static_cast<int>(setting("STAND_IN_DEVICES", 1)), 0; }
int cudaGetDevice(int* device) { return *device = current_device, 0; }
int cudaSetDevice(int device) { return current_device = device, 0; }
int cudaDriverGetVersion(int* version) { return *version = 13000, 0; }
int cudaGetLastError() { return status(); }
int cudaPeekAtLastError() { return status(); }
int cudaGetDeviceProperties(void* properties, int device) {
  cudaDeviceProp p{};
  std::strncpy(p.name, "Stand-in GPU", sizeof p.name - 1);
  std::memset(p.uuid.bytes, 7, sizeof p.uuid.bytes);
  p.uuid.bytes[15] = static_cast<char>(setting("STAND_IN_UUID", 0) + device);
  p.major = static_cast<int>(setting("STAND_IN_MAJOR", 8));
  p.multiProcessorCount = 132;
  p.totalGlobalMem = total_bytes();
  p.warpSize = 32;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxThreadsPerBlock = 1024;
  p.sharedMemPerBlockOptin = 232448;
  std::memcpy(properties, &p, sizeof p);
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? static_cast<int>(setting("STAND_IN_MAJOR", 8)) : 0;
  return 0;
}
int cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<std::size_t>(length));
  return 0;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = bytes_at_start() - device_memory.used();
  *total = total_bytes();
  return status();
}

int cudaMalloc(void** memory, std::size_t bytes) {
  static const char* const oom = std::getenv("STAND_IN_OOM_AT");
  static const char* const oom_end = oom != nullptr ? std::strchr(oom, ':') : nullptr;
  const int error = count(call("cudaMalloc"));
  *memory = nullptr;
  const long index = counts[call("cudaMalloc")];
  if (oom != nullptr && index >= std::atol(oom) && (oom_end == nullptr || index <= std::atol(oom_end + 1)))
    return cudaErrorMemoryAllocation;
  *memory = device_memory.allocate(bytes, bytes_at_start());
  return *memory == nullptr ? cudaErrorMemoryAllocation : error;
}
int cudaFree(void* memory) {
  device_memory.release(memory);
  return count(call("cudaFree"));
}
int cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = DeviceMemory::map(bytes);
  page_locked.add(*memory, bytes);
  counts[call("bytesPageLocked")] += static_cast<long>(bytes);
  return count(call("cudaHostAlloc"));
}
int cudaMallocHost(void** memory, std::size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
int cudaFreeHost(void*) { return status(); }
int cudaPointerGetAttributes(void* attributes, const void* memory) {
  cudaPointerAttributes found{};
  if (page_locked.has(memory)) found.type = cudaMemoryTypeHost;
  std::memcpy(attributes, &found, sizeof found);
  return 0;
}

int cudaMemcpy(void* to, const void* from, std::size_t bytes, int) {
  wait_for(any_stream);
  if (!has_failed) std::memcpy(to, from, bytes);
  return count(call("cudaMemcpy"));
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  wait_for(stream);
  count_source(from, bytes, kind);
  if (!has_failed && !records(stream)) std::memcpy(to, from, bytes);
  return count(call("cudaMemcpyAsync"), stream);
}
int cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                      std::size_t height, int kind, void* stream) {
  wait_for(stream);
  count_source(from, width * height, kind);
  const bool is_recorded = records(stream);
  for (std::size_t row = 0; row < height && !has_failed && !is_recorded; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return count(call("cudaMemcpyAsync"), stream);
}
int cudaMemsetAsync(void* memory, int value, std::size_t bytes, void* stream) {
  wait_for(stream);
  if (!has_failed && !records(stream)) DeviceMemory::fill(memory, value, bytes);
  return count(call("cudaMemsetAsync"), stream);
}

int cudaStreamCreateWithPriority(void** stream, unsigned, int) { return new_handle(stream); }
int cudaStreamIsCapturing(void* stream, int* capture) { return *capture = records(stream) ? 1 : 0, status(); }
int cudaStreamGetCaptureInfo(void* stream, int* capture, unsigned long long* id, void**, const void**, const void**,
                             std::size_t*) {
  *capture = records(stream) ? 1 : 0;
  if (id != nullptr) *id = static_cast<unsigned long long>(num_captures);
  return 0;
}
int cudaStreamBeginCapture(void* stream, int) {
  ++num_captures;
  if (stream == nullptr || capturing != nullptr || refuses("begin")) return cudaErrorStreamCaptureUnsupported;
  captures.begin(stream);
  capturing = stream;
  recorder = std::this_thread::get_id();
  is_broken = refuses("work");
  has_failed = has_failed || refuses("fail");
  return status();
}
int cudaStreamEndCapture(void* stream, void** graph) {
  if (stream == nullptr || stream != capturing) return cudaErrorIllegalState;
  capturing = nullptr;
  const bool is_joined = captures.end();
  has_failed = has_failed || refuses("fail-end");
  if (has_failed) return *graph = nullptr, status();
  if (!is_joined) return *graph = nullptr, cudaErrorStreamCaptureUnjoined;
  if (is_broken || refuses("end")) return *graph = nullptr, cudaErrorStreamCaptureInvalidated;
  return new_handle(graph);
}
int cudaGraphGetNodes(void*, void**, std::size_t* num) { return *num = 1, status(); }
int cudaGraphInstantiate(void** exec, void*, unsigned long long) {
  return refuses("instantiate") ? cudaErrorMemoryAllocation : new_handle(exec);
}
int cudaGraphDestroy(void*) { return status(); }
int cudaGraphExecDestroy(void*) { return status(); }
int cudaGraphLaunch(void*, void* stream) { return wait_for(stream), count(call("cudaGraphLaunch")); }
int cudaStreamQuery(void*) { return status(); }
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  const int error = captures.wait(stream, event);
  is_broken = is_broken || error == cudaErrorStreamCaptureIsolation;
  return error != cudaSuccess ? error : count(call("cudaStreamWaitEvent"));
}
int cudaStreamSynchronize(void* stream) { return wait_for(stream), count_wait(call("cudaStreamSynchronize")); }
int cudaDeviceSynchronize() { return wait_for(any_stream), count_wait(call("cudaDeviceSynchronize")); }
int cudaEventCreateWithFlags(void** event, unsigned) { return new_handle(event); }
int cudaEventDestroy(void* event) { return captures.forget(event), status(); }
int cudaEventRecord(void* event, void* stream) { return wait_for(stream), captures.record(event, stream), status(); }
int cudaEventRecordWithFlags(void* event, void* stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(void*) { return status(); }
int cudaEventSynchronize(void*) {
  const long fail_at = setting("STAND_IN_FAIL_AT", 0);
  count(call("cudaEventSynchronize"));
  has_failed = has_failed || (fail_at > 0 && counts[call("cudaEventSynchronize")] >= fail_at);
  return status();
}

int cudaEventElapsedTime(float* ms, void*, void*) {
  count(call("cudaEventElapsedTime"));
  auto state = static_cast<unsigned>(setting("STAND_IN_TIMES", 1) * 7919 + counts[call("cudaEventElapsedTime")]);
  for (int i = 0; i < 3; ++i) state = state * 1664525U + 1013904223U;
  *ms = 1 + static_cast<float>(state >> 16) / 65536;
  return status();
}

int cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t, void* stream) {
  return count_launch(kernel, stream);
}
int __cudaLaunchKernel(void* kernel, dim3, dim3, void**, std::size_t, void* stream) {
  return count_launch(kernel, stream);
}
int cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return count_launch(kernel, config->stream);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) { return *blocks = 2, 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t, unsigned) {
  return *blocks = 2, 0;
}

int cublasLtCreate(void** handle) { return new_handle(handle); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int most, void* results, int* num) {
  *num = most < kNumAlgorithms ? most : kNumAlgorithms;
  for (int i = 0; i < *num; ++i) {
    Algorithm found;
    found.number = static_cast<std::uint64_t>(i + 1);
    std::memcpy(static_cast<char*>(results) + static_cast<std::size_t>(i) * sizeof found, &found, sizeof found);
  }
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void* algorithm, void* result) {
  std::uint64_t number = 0;
  std::memcpy(&number, algorithm, sizeof number);
  const Algorithm needs_nothing;
  std::memcpy(result, &needs_nothing, sizeof needs_nothing);
  return number >= 1 && number <= kNumAlgorithms ? 0 : 15;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void* value, std::size_t size, std::size_t* written) {
  std::memset(value, 0, size);
  *written = size;
  return 0;
}
int cublasLtMatmul() { return count(call("cublasLtMatmul"), capturing) == cudaSuccess ? 0 : 14; }
int cublasCreate_v2(void** handle) { return new_handle(handle); }
int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }

}  // extern "C"

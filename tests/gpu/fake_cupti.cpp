// CUPTI as record_cuda_kernels.cpp uses it, with the records of a process that ran three kernels: two of one name. With
// FAKE_CUPTI_DROPS=n it says that it dropped n records; with FAKE_CUPTI_REFUSES=1 it records nothing.
#include <cupti.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

CUpti_BuffersCallbackRequestFunc provide = nullptr;
CUpti_BuffersCallbackCompleteFunc take = nullptr;

long number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atol(text);
}

CUpti_ActivityKernel10 kernel(const char* name, std::uint64_t start, std::uint64_t end, std::uint32_t local_bytes) {
  CUpti_ActivityKernel10 record{};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = start;
  record.end = end;
  record.registersPerThread = 40;
  record.localMemoryPerThread = local_bytes;
  return record;
}

}  // namespace

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete) {
  provide = request;
  take = complete;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind) {
  return number_of("FAKE_CUPTI_REFUSES") == 0 ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_INITIALIZED;
}

CUptiResult CUPTIAPI cuptiActivityFlushPeriod(std::uint32_t) { return CUPTI_SUCCESS; }

CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
  const CUpti_ActivityKernel10 records[] = {kernel("nvjet_a", 0, 2000000, 0), kernel("native_b", 10, 500010, 16),
                                            kernel("nvjet_a", 0, 1000000, 0)};
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0, most = 0;
  provide(&buffer, &bytes, &most);
  std::memcpy(buffer, records, sizeof(records));
  take(nullptr, 0, buffer, bytes, sizeof(records));
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  std::uint8_t* const next =
      *record == nullptr ? buffer : reinterpret_cast<std::uint8_t*>(*record) + sizeof(CUpti_ActivityKernel10);
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = static_cast<std::size_t>(number_of("FAKE_CUPTI_DROPS"));
  return CUPTI_SUCCESS;
}

// The devices and dtypes that a kernel test runs on, and what such a test compares with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "support/cuda_device.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::testing_support {

/// While one exists, a CPU with AVX-512 runs the code for older ones.
struct BelowAvx512 {
  BelowAvx512() { kernels::allow_avx512(false); }
  ~BelowAvx512() { kernels::allow_avx512(true); }
  BelowAvx512(const BelowAvx512&) = delete;
  BelowAvx512& operator=(const BelowAvx512&) = delete;
};

/// What a kernel test runs on: "cpu", "cuda", or "cuda_on_cpu" (our CUDA kernels compiled for the CPU), and a dtype.
struct Place {
  at::DeviceType device;
  at::ScalarType dtype;
  bool is_cuda_on_cpu = false;

  /// Values rounded to the dtype, on the device, rows strided: by whole packs of 16 bytes where a row is whole packs, so
  /// that both ways of our CUDA kernels are taken.
  at::Tensor put(const at::Tensor& t) const { return with_row_gaps(t.to(at::Device(device), dtype)); }
  at::Tensor empty(at::IntArrayRef sizes) const { return put(at::full(sizes, 7.0)); }
  /// Of plain tensors.
  at::TensorOptions options() const { return at::device(device).dtype(dtype); }
  at::Tensor statistic(at::IntArrayRef sizes) const {
    return at::full(sizes, 7.0, at::device(device).dtype(dtype == at::kDouble ? at::kDouble : at::kFloat));
  }
};

inline std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  const Place& place = info.param;
  const std::string device = place.is_cuda_on_cpu ? "cuda_on_cpu" : place.device == at::kCPU ? "cpu" : "cuda";
  return device + "_" + c10::toString(place.dtype);
}

/// Starts the GPU, where there is one, before the first test: torch remembers that it has none from then on when it is asked
/// earlier (a random number is enough).
class StartGpuFirst : public ::testing::Environment {
 public:
  void SetUp() override { why_no_cuda(); }
};
inline ::testing::Environment* const kStartGpuFirst = ::testing::AddGlobalTestEnvironment(new StartGpuFirst);

class KernelTest : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device == at::kCUDA) {
      if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
      kernels::use_native_kernels({kernels::cuda_library()->native_kernels, kernels::cuda_library()->stream, false});
    }
    if (GetParam().is_cuda_on_cpu) kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
  }
  void TearDown() override {
    if (GetParam().is_cuda_on_cpu || GetParam().device == at::kCUDA) kernels::use_native_kernels({});
  }
  const Place& place = GetParam();
};

/// is_close for rows of Place::empty, between which nothing may be written.
inline ::testing::AssertionResult rows_are_close(const at::Tensor& got, const at::Tensor& want, double tolerance) {
  return gaps_are_untouched(got) ? is_close(got, want, tolerance)
                                 : ::testing::AssertionFailure() << "written between the rows";
}
inline bool rows_are_equal(const at::Tensor& got, const at::Tensor& want) {
  return gaps_are_untouched(got) && at::equal(got, want);
}

/// One instantiation per suite.
#define LORA_TRAIN_EVERY_PLACE(Suite)                                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                                        \
      EveryPlace, Suite,                                                                                           \
      ::testing::Values(Place{at::kCPU, at::kFloat}, Place{at::kCPU, at::kBFloat16}, Place{at::kCPU, at::kDouble}, \
                        Place{at::kCUDA, at::kFloat}, Place{at::kCUDA, at::kBFloat16},                             \
                        Place{at::kCPU, at::kFloat, true}, Place{at::kCPU, at::kBFloat16, true}),                  \
      place_name)

}  // namespace lora_train::testing_support

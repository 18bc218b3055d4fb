#include "bench/doctor/kernel_cases.h"

#include <gtest/gtest.h>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "support/tolerance.h"

namespace lora_train::bench {
namespace {

/// What doctor asks of a GPU, asked of our CUDA kernels on the CPU; the small shapes only.
class KernelCases : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
    kernels::reserve_native_workspace(kernels::kWorkspaceElements, at::Device(at::kCPU));
  }
  void TearDown() override { kernels::use_native_kernels({}); }
};

TEST_P(KernelCases, OurCudaKernelsPassThem) {
  at::manual_seed(1);
  const Place place{at::kCPU, GetParam()};
  int num_tried = 0;
  const auto try_case = [&](const Case& c) {
    std::int64_t largest = 0;
    for (const at::Tensor& output : c.outputs) largest = std::max(largest, output.numel());
    if (largest > 40000) return;
    Outputs got, want;
    for (const at::Tensor& output : c.outputs) {
      got.push_back(output.clone());
      want.push_back(output.clone());
    }
    c.own(got);
    c.reference(want);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_CLOSE(got[i], want[i], testing_support::tolerance(GetParam()))
          << c.name << " " << c.shape << " output " << i;
    }
    ++num_tried;
  };
  make_layer_cases(place, try_case);
  make_step_cases(place, try_case);
  EXPECT_GE(num_tried, 15);
}

INSTANTIATE_TEST_SUITE_P(EveryType, KernelCases, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace lora_train::bench

#include "doctor/kernel_cases.h"

#include <gtest/gtest.h>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/kernels/implementation.h"
#include "support/tolerance.h"

namespace lora_train::doctor {
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
  std::vector<Case> cases = layer_cases(place);
  for (const Case& c : step_cases(place)) cases.push_back(c);
  int num_tried = 0;
  for (const Case& c : cases) {
    std::int64_t largest = 0;
    for (const at::Tensor& output : c.outputs) largest = std::max(largest, output.numel());
    if (largest > 40000) continue;
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
  }
  EXPECT_GE(num_tried, 15);
}

INSTANTIATE_TEST_SUITE_P(EveryType, KernelCases, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace lora_train::doctor

#include "bench/doctor/kernel_cases.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"
#include "support/tolerance.h"

namespace lora_train::bench {
namespace {

/// What doctor asks of a machine, asked of the CPU's kernels and of our CUDA kernels on the CPU; the small shapes only.
class KernelCases : public testing_support::KernelTest {};

TEST_P(KernelCases, EveryKernelMatchesItsReference) {
  at::manual_seed(1);
  const Place place{GetParam().device, GetParam().dtype};
  if (GetParam().is_cuda_on_cpu) kernels::reserve_native_workspace(kernels::kWorkspaceElements, place.device);
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
      EXPECT_CLOSE(got[i], want[i], testing_support::tolerance(place.dtype)) << c.name << " " << c.shape << " " << i;
    }
    ++num_tried;
  };
  make_layer_cases(place, try_case);
  make_step_cases(place, try_case);
  EXPECT_GE(num_tried, 15);
}

INSTANTIATE_TEST_SUITE_P(EveryPlace, KernelCases,
                         ::testing::Values(testing_support::Place{at::kCPU, at::kFloat},
                                           testing_support::Place{at::kCPU, at::kBFloat16},
                                           testing_support::Place{at::kCPU, at::kFloat, true},
                                           testing_support::Place{at::kCPU, at::kBFloat16, true}),
                         testing_support::place_name);

}  // namespace
}  // namespace lora_train::bench

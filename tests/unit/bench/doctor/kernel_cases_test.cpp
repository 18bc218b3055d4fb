#include "bench/doctor/kernel_cases.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"
#include "support/tolerance.h"
#include "support/wrong_attention.h"

namespace lora_train::bench {
namespace {

using kernels::AttentionBackend;
using testing_support::WrongAttention;

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

/// The checks of forward and backward. The whole output of 701 tokens hides a short document that is wrong.
std::vector<KernelCheck> checks_of_wrong(AttentionBackend backend, std::int64_t window) {
  at::manual_seed(1);
  const Place place{at::kCPU, at::kBFloat16};
  std::vector<KernelCheck> checks;
  add_attention(place, {701, 2, 1, 8, window}, backend, WrongAttention::calls(),
                [&](const Case& c) { checks.push_back(run_case(place, c)); });
  return checks;
}

TEST(AttentionCases, ABackendThatIsWrongInOneDocumentFails) {
  WrongAttention::backend = AttentionBackend::kCudnn;
  // The first, which is odd; one of a token after an empty one; one after two empty ones; the last.
  for (const std::size_t document : {1, 3, 6, 7}) {
    WrongAttention::document = document;
    for (const bool is_forward : {true, false}) {
      WrongAttention::is_forward_wrong = is_forward;
      WrongAttention::is_backward_wrong = !is_forward;
      const std::vector<KernelCheck> checks = checks_of_wrong(AttentionBackend::kCudnn, 0);
      ASSERT_EQ(checks.size(), 2U);
      EXPECT_EQ(checks[0].name, "attention forward cudnn bf16");
      EXPECT_EQ(checks[0].passed, !is_forward) << document << checks[0].note;
      EXPECT_EQ(checks[1].passed, is_forward) << document << checks[1].note;
      const std::string note = "wrong result, worst in document " + std::to_string(document + 1) + " of 9";
      EXPECT_EQ(checks[is_forward ? 0 : 1].note, note);
    }
  }
}

TEST(AttentionCases, ABackendThatIsRightPasses) {
  for (const std::int64_t window : {0, 100}) {
    for (const KernelCheck& check : checks_of_wrong(AttentionBackend::kFa2, window)) {
      EXPECT_TRUE(check.passed && check.note.empty()) << check.name << " " << check.max_error << check.note;
      EXPECT_GT(check.max_error, 0);
    }
  }
}

}  // namespace
}  // namespace lora_train::bench

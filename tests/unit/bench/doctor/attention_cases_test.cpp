#include <gtest/gtest.h>

#include "bench/doctor/kernel_cases.h"
#include "support/wrong_attention.h"

namespace lora_train::bench {
namespace {

using kernels::AttentionBackend;
using testing_support::WrongAttention;

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

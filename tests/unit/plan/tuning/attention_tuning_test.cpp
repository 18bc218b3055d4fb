#include <gtest/gtest.h>

#include "lora_train/kernels/aten.h"
#include "lora_train/plan/tuning/layer_runs.h"
#include "support/wrong_attention.h"

namespace lora_train::plan {
namespace {

using kernels::AttentionBackend;
using testing_support::WrongAttention;

const std::vector<std::int64_t> kLengths = {151, 300, 0, 1, 200, 7, 0, 0, 31};

class AttentionTuning : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    WrongAttention::backend = AttentionBackend::kCudnn;
    WrongAttention::is_forward_wrong = WrongAttention::is_backward_wrong = false;
    WrongAttention::is_window_ignored = false;
  }

  /// cuDNN comes first and is as fast as the other, so that only its results count against it.
  AttentionBackend choose(std::int64_t window = 0) {
    kernels::Tuner tuner({}, {}, [](const std::function<void()>& run) { return run(), 1.0; });
    return choose_backend(tuner, run_, window, {AttentionBackend::kCudnn, AttentionBackend::kFa2});
  }

  AttentionRun run_{{2, 1, 8, 24, 0.35}, at::kBFloat16, kLengths, at::kCPU, WrongAttention::calls()};
};

TEST_F(AttentionTuning, ABackendThatIsWrongInOneDocumentIsOut) {
  for (const std::size_t document : {0, 1, 3, 4}) {  // 2 is empty
    WrongAttention::document = document;
    for (const bool is_forward : {true, false}) {
      WrongAttention::is_forward_wrong = is_forward;
      WrongAttention::is_backward_wrong = !is_forward;
      EXPECT_EQ(choose(), AttentionBackend::kFa2) << document << (is_forward ? " forward" : " backward");
      const auto checked = run_.short_documents();
      checked->expect(checked->layout(0, AttentionBackend::kReference));
      const std::string what = checked->check(checked->layout(0, AttentionBackend::kCudnn));
      const std::string part =
          std::string(is_forward ? "output" : "dv") + " of document " + std::to_string(document + 1) + " of 5 differs";
      EXPECT_TRUE(what.starts_with(part)) << what;
    }
  }
}

TEST_F(AttentionTuning, ABackendThatIgnoresTheWindowIsOut) {
  WrongAttention::is_window_ignored = true;
  EXPECT_EQ(choose(), AttentionBackend::kCudnn);
  EXPECT_EQ(choose(100), AttentionBackend::kFa2);
  EXPECT_EQ(choose(1000), AttentionBackend::kFa2) << "larger than all documents";
}

TEST_F(AttentionTuning, TheFirstOfTwoThatAreRightAndEquallyFastIsTaken) {
  EXPECT_EQ(choose(), AttentionBackend::kCudnn);
  EXPECT_EQ(choose(100), AttentionBackend::kCudnn);  // another window has other results
}

TEST_F(AttentionTuning, WithoutAReferenceTheFirstResultsCount) {
  EXPECT_EQ(run_.check(run_.layout(0, AttentionBackend::kFa2)), "");
  WrongAttention::document = 5;
  WrongAttention::is_forward_wrong = true;
  EXPECT_NE(run_.check(run_.layout(0, AttentionBackend::kCudnn)), "");
}

TEST_F(AttentionTuning, OneBackendIsNotMeasured) {
  kernels::Tuner tuner({}, {}, [](const std::function<void()>&) { return ADD_FAILURE() << "measured", 1.0; });
  EXPECT_EQ(choose_backend(tuner, run_, 0, {AttentionBackend::kFa2}), AttentionBackend::kAuto);
}

}  // namespace
}  // namespace lora_train::plan

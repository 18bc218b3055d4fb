#include "rank_agreement.h"

#include <gtest/gtest.h>

#include "lora_train/kernels/aten.h"
#include "support/expect_refused.h"

namespace lora_train::run {
namespace {

using testing_support::expect_refused;

/// Rank 0 of 3; the others say what a test has them say, "" for the same.
class ThreeRanks : public ranks::OneRank {
 public:
  int world_size() const override { return 3; }
  std::vector<std::string> all_gather(const std::string& text) override {
    said = text;
    return {text, others[0].empty() ? text : others[0], others[1].empty() ? text : others[1]};
  }
  std::vector<std::string> others = {"", ""};
  std::string said;
};

TEST(Ranks, ParametersThatDifferInOneBitNameTheirRanks) {
  const at::Tensor values = at::arange(3'000'000, at::kFloat);  // more than a chunk of the checksum
  ThreeRanks ranks;
  check_equal_parameters(ranks, values, 7);
  for (const std::int64_t at : {0, 1'048'576, 2'999'999}) {
    const at::Tensor other = values.clone();
    other.view(at::kInt)[at].bitwise_xor_(1);
    ThreeRanks third;
    check_equal_parameters(third, other, 7);
    ranks.others[1] = third.said;
    expect_refused([&] { check_equal_parameters(ranks, values, 7); }, "rank 2", {"after step 7"}, ExitCode::kDevice);
  }
  const at::Tensor swapped = values.clone();
  swapped[5] = values[6];
  swapped[6] = values[5];
  ThreeRanks third;
  check_equal_parameters(third, swapped, 7);
  check_equal_parameters(ranks = ThreeRanks(), values, 7);
  EXPECT_NE(third.said, ranks.said) << "the place counts";
}

}  // namespace
}  // namespace lora_train::run

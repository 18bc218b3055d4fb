#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "log_lines.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::run {
namespace {

// 400 tokens of length about 8, 40 rows of length about 2 that no token uses.
at::Tensor embedding() {
  at::Tensor rows = at::randn({440, 64}, at::make_generator<at::CPUGeneratorImpl>(7), at::kFloat);
  rows.slice(0, 400).mul_(0.25);
  return rows;
}

TEST(UntrainedRow, TrainedRowsLookTrained) {
  const at::Tensor rows = embedding();
  for (std::int64_t id = 0; id < 400; ++id) EXPECT_FALSE(looks_untrained(rows, id, 400)) << id;
  EXPECT_FALSE(looks_untrained(rows.slice(0, 0, 400).to(at::kBFloat16), 17, 400));
}

TEST(UntrainedRow, RowLikeTheSpareOnesIsNoticed) {
  at::Tensor rows = embedding();
  rows[17].mul_(0.25);
  EXPECT_NE(looks_untrained(rows, 17, 400).value_or("").find("40 rows that no token uses"), std::string::npos);
}

TEST(UntrainedRow, ShortRowIsNoticedWithoutSpareOnes) {
  at::Tensor rows = embedding().slice(0, 0, 400).clone();
  rows[17].mul_(0.3);
  EXPECT_TRUE(looks_untrained(rows, 17, 400));
  rows[18].mul_(0.8);
  EXPECT_FALSE(looks_untrained(rows, 18, 400));
}

// A model that was only initialised: nothing stands out.
TEST(UntrainedRow, InitialisedModelIsNotBlamed) {
  const at::Tensor rows = at::randn({440, 64}, at::make_generator<at::CPUGeneratorImpl>(7), at::kFloat) * 0.02;
  for (std::int64_t id = 0; id < 400; id += 13) EXPECT_FALSE(looks_untrained(rows, id, 400)) << id;
}

}  // namespace
}  // namespace lora_train::run

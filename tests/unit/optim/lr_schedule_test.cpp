#include "lora_train/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "optim_goldens.h"

namespace lora_train::optim {
namespace {

TEST(LrSchedule, MatchesTransformersStepByStep) {
  ASSERT_EQ(kScheduleGoldens.size(), 10u);
  for (const auto& golden : kScheduleGoldens) {
    const LrScheduleOptions options{golden.type, 3e-4, golden.warmup_steps, golden.total_steps, golden.min_lr_ratio};
    for (std::size_t i = 0; i < golden.rates.size(); ++i) {
      EXPECT_NEAR(lr_at_step(options, static_cast<std::int64_t>(i) + 1), golden.rates[i], 1e-15 * 3e-4)
          << golden.type << " warm-up " << golden.warmup_steps << " step " << i + 1;
    }
  }
}

TEST(LrSchedule, RefusesAnUnknownTypeAndNamesTheKnownOnes) {
  try {
    lr_at_step({"cosin", 1e-3, 0, 10, 0}, 1);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("constant_with_warmup"), std::string::npos) << error.what();
  }
}

TEST(LrSchedule, StandsAnEmptyDecay) {
  EXPECT_EQ(lr_at_step({"linear", 1.0, 4, 4, 0}, 5), 0.0);
  EXPECT_EQ(lr_at_step({"linear", 1.0, 4, 4, 0}, 4), 0.75);
}

}  // namespace
}  // namespace lora_train::optim

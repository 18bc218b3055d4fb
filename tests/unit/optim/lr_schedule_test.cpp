#include "lora_train/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "optim_goldens.h"

namespace lora_train::optim {
namespace {

TEST(LrSchedule, MatchesTransformersStepByStep) {
  ASSERT_EQ(kScheduleGoldens.size(), 10u);
  for (const auto& golden : kScheduleGoldens) {
    const LrSchedule schedule{from_string<SchedulerKind>(golden.type).value(), 3e-4, golden.warmup_steps,
                              golden.total_steps, golden.min_lr_ratio};
    for (std::size_t i = 0; i < golden.rates.size(); ++i) {
      EXPECT_NEAR(schedule.at_step(static_cast<std::int64_t>(i) + 1), golden.rates[i], 1e-15 * 3e-4)
          << golden.type << " warm-up " << golden.warmup_steps << " step " << i + 1;
    }
  }
}

TEST(LrSchedule, ScalesThePeakByRowsAndCountsTheWarmUpInSteps) {
  ScheduleSection section;
  section.warmup_ratio = 0.03;
  const LrSchedule plain = make_lr_schedule(1e-3, section, 64, 101);
  EXPECT_EQ(plain.peak, 1e-3);
  EXPECT_EQ(plain.kind, SchedulerKind::kCosine);
  EXPECT_EQ(plain.warmup_steps, 4);  // 3.03, rounded up
  EXPECT_EQ(plain.total_steps, 101);
  section.lr_base_batch = 16;
  section.lr_scaling = LrScaling::kSqrt;
  section.warmup_steps = 7;
  EXPECT_EQ(make_lr_schedule(1e-3, section, 64, 101).peak, 2e-3);
  EXPECT_EQ(make_lr_schedule(1e-3, section, 64, 101).warmup_steps, 7);
  section.lr_scaling = LrScaling::kLinear;
  EXPECT_EQ(make_lr_schedule(1e-3, section, 64, 101).peak, 4e-3);
}

TEST(LrSchedule, StandsAnEmptyDecay) {
  const LrSchedule schedule{SchedulerKind::kLinear, 1.0, 4, 4, 0};
  EXPECT_EQ(schedule.at_step(5), 0.0);
  EXPECT_EQ(schedule.at_step(4), 0.75);
}

}  // namespace
}  // namespace lora_train::optim

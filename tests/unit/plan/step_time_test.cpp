// What decide() makes of counted time.
#include "lora_train/plan/step_time.h"

#include "unit/plan/planned_run.h"

namespace lora_train::plan {
namespace {

class CountedTime : public PlannedRun {
 protected:
  CountedTime() : PlannedRun("qwen2.5-7b", 2048, 64) {}

  double us(std::int64_t rows, model::Recompute mode) const {
    RunSpec spec = fit(200);
    spec.micro_batch_size = rows;
    std::ranges::fill(spec.recompute, mode);
    return 1e6 * token_s(facts_on_gpu(200), spec);
  }
  static double share(const RunSpec& spec) {
    return static_cast<double>(spec.memory.total()) / static_cast<double>(spec.memory_bytes);
  }
};

TEST_F(CountedTime, SmallerMicroBatchesAndRecomputationCostTime) {
  using enum model::Recompute;
  EXPECT_NEAR(us(4, kOff) / us(8, kOff), 1.008, 0.002);
  EXPECT_NEAR(us(1, kOff) / us(8, kOff), 1.055, 0.01);
  EXPECT_NEAR(us(8, kCheap) / us(8, kOff), 1.022, 0.005);
  EXPECT_NEAR(us(8, kGateUp) / us(8, kOff), 1.23, 0.03);
  EXPECT_NEAR(us(8, kFull) / us(8, kOff), 1.4, 0.05);
  profile.model.base_precision = BasePrecision::kNf4;
  profile.model.decoded_layers = 0;
  EXPECT_GT(us(1, kOff) / us(8, kOff), 1.12) << "each micro-batch decodes the base";
}

TEST_F(CountedTime, ASmallerMicroBatchIsTakenBeforeRecomputationThatCostsMore) {
  const RunSpec spec = fit(77);
  EXPECT_EQ(spec.micro_batch_size, 4);
  EXPECT_EQ(spec.recompute, std::vector<model::Recompute>(28, model::Recompute::kOff));
  EXPECT_LT(share(spec), 0.75);
  profile.schedule.micro_batch_size = 8;
  EXPECT_EQ(fit(77).micro_batch_size, 8);
  EXPECT_EQ(fit(77).recompute.front(), model::Recompute::kCheap);
}

TEST_F(CountedTime, APlanLeavesSlackWhereThatCostsLittle) {
  profile.schedule.micro_batch_size = 8;
  for (const double budget : {62.0, 70.0, 77.0}) {
    EXPECT_LE(share(fit(budget)), 0.98) << budget;
    EXPECT_GT(share(fit(budget)), 0.95) << budget;
  }
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const double exact = gib(fit(200).memory.total());
  EXPECT_EQ(fit(exact).memory, fit(200).memory) << "given keys are kept without slack";
}

}  // namespace
}  // namespace lora_train::plan

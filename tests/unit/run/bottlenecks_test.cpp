#include "bottlenecks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lora_train::run {
namespace {

constexpr BottleneckFacts kFacts{
    .num_workers = 2, .num_cores = 16, .micro_batch_size = 1, .rows_per_step = 16, .tokens_per_micro_batch = 512};

/// What is logged while `run` adds steps.
template <typename Run>
std::string log_of(const BottleneckFacts& facts, const Run& run) {
  testing::internal::CaptureStderr();
  Bottlenecks bottlenecks(facts);
  run(bottlenecks);
  return testing::internal::GetCapturedStderr();
}

/// So many steps of a second with so many milliseconds of waiting.
std::string log_of_waits(const BottleneckFacts& facts, int num_steps, double wait_ms) {
  return log_of(facts, [&](Bottlenecks& bottlenecks) {
    for (int i = 0; i < num_steps; ++i) bottlenecks.add(1000, wait_ms, {});
  });
}

TEST(Bottlenecks, WaitingForDataIsNamedOnceWithWhatToDo) {
  EXPECT_EQ(log_of_waits(kFacts, 100, 340),
            "warning: steps wait for data 34% of the time (340.0 of 1000.0 ms, over 20 steps): raise "
            "dataloader_num_workers (now 2, on 16 cores) or dataloader_prefetch_factor; if dataset_prepared_path is on "
            "a slow "
            "or network disk, set stage_dir: auto\n");
  EXPECT_EQ(log_of_waits(kFacts, 100, 90), "");
}

TEST(Bottlenecks, OnlyTheLeaderNamesWaits) {
  BottleneckFacts facts = kFacts;
  facts.is_leader = false;
  EXPECT_EQ(log_of_waits(facts, 30, 340), "");
}

TEST(Bottlenecks, AShortRunAndTheFirstStepAreNotJudged) {
  EXPECT_EQ(log_of_waits(kFacts, 20, 1000), "") << "the first is that in which the loader starts";
  EXPECT_NE(log_of_waits(kFacts, 21, 1000), "");
  EXPECT_EQ(log_of(kFacts,
                   [](Bottlenecks& bottlenecks) {
                     for (int i = 0; i < 40; ++i) bottlenecks.add(100, 100, {});
                   }),
            "")
      << "four seconds";
}

/// Steps of 5 s on a GPU that is busy for that share of the time, and slowed down for a reason in that share of it.
std::string log_of_gpu(const BottleneckFacts& facts, double busy, device::Throttle reason, double throttled,
                       double wait_ms = 0) {
  return log_of(facts, [&](Bottlenecks& bottlenecks) {
    device::GpuTotals gpu;
    for (int i = 0; i < 40; ++i) {
      bottlenecks.add(5000, wait_ms, gpu);
      gpu.num_readings += 5;
      gpu.watched_s += 5;
      gpu.busy_s += 5 * busy;
      if (i % 10 < 10 * throttled) gpu.num_throttled[static_cast<std::size_t>(reason)] += 5;
    }
  });
}

TEST(Bottlenecks, WhatSlowsTheGpuDownIsNamedOnceWithItsMeaning) {
  using device::Throttle;
  const std::string hot = log_of_gpu(kFacts, 1, Throttle::kThermal, 1);
  EXPECT_EQ(hot,
            "warning: the GPU runs below its full clock 100% of the time (thermal): it is too hot, so steps take "
            "longer. Check "
            "its cooling\n");
  const std::string capped = log_of_gpu(kFacts, 1, Throttle::kPowerCap, 1);
  EXPECT_TRUE(capped.starts_with("the GPU runs below its full clock 100% of the time (power_cap): it draws"))
      << "no warning: " << capped;
  EXPECT_EQ(std::count(capped.begin(), capped.end(), '\n'), 1);
  EXPECT_NE(log_of_gpu(kFacts, 1, Throttle::kPowerBrake, 1).find("the machine's power supply"), std::string::npos);
  EXPECT_EQ(log_of_gpu(kFacts, 1, Throttle::kThermal, 0.1), "");
  BottleneckFacts other = kFacts;
  other.is_leader = false;
  EXPECT_EQ(log_of_gpu(other, 1, Throttle::kThermal, 1), hot) << "each rank has its GPU";
}

TEST(Bottlenecks, AGpuThatIdlesWithoutWaitingHasTooLittleToDo) {
  EXPECT_EQ(log_of_gpu(kFacts, 0.4, device::Throttle::kThermal, 0),
            "warning: the GPU is only 40% busy, though steps do not wait for data: micro-batches of about 512 "
            "tokens may be "
            "too small, or evaluations and checkpoints too frequent. Raise micro_batch_size (now 1, of 16 rows "
            "per step) or global_batch_size, or pack documents (packing: true)\n");
  EXPECT_EQ(log_of_gpu(kFacts, 0.7, device::Throttle::kThermal, 0), "");
  const std::string waits = log_of_gpu(kFacts, 0.4, device::Throttle::kThermal, 0, 3000);
  EXPECT_EQ(waits.find("% busy"), std::string::npos) << waits;
}

}  // namespace
}  // namespace lora_train::run

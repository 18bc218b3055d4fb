#include "bottlenecks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/refusal.h"

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

/// So many steps with so many milliseconds of waiting.
std::string log_of_waits(const BottleneckFacts& facts, int num_steps, double wait_ms, double step_ms = 1000) {
  return log_of(facts, [&](Bottlenecks& bottlenecks) {
    for (int i = 0; i < num_steps; ++i) bottlenecks.add(step_ms, wait_ms, {});
  });
}

TEST(Bottlenecks, WaitingForDataIsNamedOnceWithWhatToDo) {
  EXPECT_EQ(log_of_waits(kFacts, 100, 340),
            "warning: steps wait for data 34% of the time (340.0 of 1000.0 ms, over 20 steps): raise "
            "dataloader_num_workers (now 2, on 16 cores) or dataloader_prefetch_factor; if dataset_prepared_path is on "
            "a slow or network disk, set stage_dir: auto\n");
  EXPECT_EQ(log_of_waits(kFacts, 100, 90), "");
}

TEST(Bottlenecks, AShortRunTheFirstStepAndWhatIsNotTheLeaderAreNotJudged) {
  EXPECT_EQ(log_of_waits(kFacts, 20, 1000), "") << "the first is that in which the loader starts";
  EXPECT_NE(log_of_waits(kFacts, 21, 1000), "");
  EXPECT_EQ(log_of_waits(kFacts, 40, 100, 100), "") << "four seconds";
  BottleneckFacts facts = kFacts;
  facts.is_leader = false;
  EXPECT_EQ(log_of_waits(facts, 30, 340), "");
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
            "longer. Check its cooling\n");
  const std::string capped = log_of_gpu(kFacts, 1, Throttle::kPowerCap, 1);
  EXPECT_TRUE(capped.starts_with("the GPU runs below its full clock 100% of the time (power_cap): it draws"))
      << "no warning: " << capped;
  EXPECT_EQ(std::count(capped.begin(), capped.end(), '\n'), 1);
  EXPECT_SAYS(log_of_gpu(kFacts, 1, Throttle::kPowerBrake, 1), "the machine's power supply");
  EXPECT_EQ(log_of_gpu(kFacts, 1, Throttle::kThermal, 0.1), "");
  BottleneckFacts other = kFacts;
  other.is_leader = false;
  EXPECT_EQ(log_of_gpu(other, 1, Throttle::kThermal, 1), hot) << "each rank has its GPU";
}

TEST(Bottlenecks, AGpuThatIdlesWithoutWaitingHasTooLittleToDo) {
  EXPECT_EQ(
      log_of_gpu(kFacts, 0.4, device::Throttle::kThermal, 0),
      "warning: the GPU is only 40% busy, though steps do not wait for data: micro-batches of about 512 "
      "tokens may be too small, or evaluations and checkpoints too frequent. Raise micro_batch_size (now 1, of 16 "
      "rows per step) or global_batch_size, or pack documents (packing: true)\n");
  EXPECT_EQ(log_of_gpu(kFacts, 0.7, device::Throttle::kThermal, 0), "");
  const std::string waits = log_of_gpu(kFacts, 0.4, device::Throttle::kThermal, 0, 3000);
  EXPECT_EQ(waits.find("% busy"), std::string::npos) << waits;
}

std::vector<RankFigures> busy(std::vector<double> compute_ms, std::vector<double> wait_ms = {}) {
  std::vector<RankFigures> figures;
  wait_ms.resize(compute_ms.size());
  for (std::size_t i = 0; i < compute_ms.size(); ++i)
    figures.push_back({compute_ms[i], wait_ms[i], 1.0 + static_cast<double>(i), 0});
  return figures;
}

TEST(RankTimes, GivesTheMeansSinceTheLastRecord) {
  RankTimes times;
  times.add(busy({0, 0}), 10);  // as the first steps of a GPU
  report::StepRecord record;
  times.take(record);
  EXPECT_TRUE(record.rank_compute_ms->empty());
  times.add(busy({1, 3}, {2, 0}), 10);
  times.add(busy({2, 5}, {4, 1}), 10);
  times.take(record);
  EXPECT_EQ(record.rank_compute_ms, (std::vector<double>{1.5, 4}));
  EXPECT_EQ(record.rank_data_wait_ms, (std::vector<double>{3, 0.5}));
  EXPECT_EQ(record.rank_memory_gib, (std::vector<double>{1, 2}));
  times.add(busy({7, 7}), 10);
  times.take(record);
  EXPECT_EQ(record.rank_compute_ms, (std::vector<double>{7, 7}));
}

TEST(RankTimes, NamesTheSlowestRankOnceWhenItCostsMoreThanFivePercent) {
  RankTimes times;
  const auto lines_of = [&](const std::vector<RankFigures>& figures, int num_steps) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < num_steps; ++i) times.add(figures, 100);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(lines_of(busy({80, 80, 84, 81}), 50), "") << "3% is not worth a line";
  EXPECT_EQ(lines_of(busy({80, 80, 60, 81}, {0, 0, 30, 0}), 49), "");
  const std::string named = lines_of(busy({80, 80, 60, 81}, {0, 0, 30, 0}), 1);
  EXPECT_SAYS(named,
              "rank 2 is the slowest: it needs 90.0 ms per step (30.0 ms of it waiting for data), half of the others "
              "80.0 ms or less");
  EXPECT_SAYS(named, "costs the others 10% of the time");
  EXPECT_EQ(lines_of(busy({80, 80, 90, 81}), 200), "") << "said already";
  EXPECT_SAYS(lines_of(busy({80, 90, 80, 81}), 50), "rank 1 is the slowest");
}

TEST(RankTimes, SaysAtTheEndWhereTheTimeWent) {
  RankTimes times;
  EXPECT_EQ(times.in_words(), "ranks: no step was timed");
  times.add(busy({70, 80}), 100);
  EXPECT_EQ(times.in_words(),
            "ranks: computing and waiting for data take 70.0 to 80.0 ms of a 100.0 ms step; rank 1 is the slowest "
            "and costs 10.0% of the time");
}

}  // namespace
}  // namespace lora_train::run

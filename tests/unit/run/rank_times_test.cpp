#include <gtest/gtest.h>

#include "bottlenecks.h"

namespace lora_train::run {
namespace {

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
  EXPECT_NE(named.find(
                "rank 2 is the slowest: it needs 90.0 ms per step (30.0 ms of it waiting for data), half of the others "
                "80.0 ms or less"),
            std::string::npos)
      << named;
  EXPECT_NE(named.find("costs the others 10% of the time"), std::string::npos) << named;
  EXPECT_EQ(lines_of(busy({80, 80, 90, 81}), 200), "") << "said already";
  EXPECT_NE(lines_of(busy({80, 90, 80, 81}), 50).find("rank 1 is the slowest"), std::string::npos);
}

TEST(RankTimes, SaysAtTheEndWhereTheTimeWent) {
  RankTimes times;
  EXPECT_EQ(times.in_words(), "ranks: no step was timed");
  times.add(busy({70, 80}), 100);
  EXPECT_EQ(times.in_words(),
            "ranks: computing and waiting for data take 70.0 to 80.0 ms of a 100.0 ms step; rank 1 is the slowest "
            "and costs "
            "10.0% of the time");
}

}  // namespace
}  // namespace lora_train::run

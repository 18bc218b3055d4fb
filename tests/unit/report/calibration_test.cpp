#include <gtest/gtest.h>

#include <cmath>

#include "lora_train/report/eval_figures.h"

namespace lora_train::report {
namespace {

TEST(Calibration, BinsAreFifteenthsAndTheLastOneHasTheOne) {
  const std::vector<Judged> answers = {{0, false}, {1.0 / 15, true}, {0.5, true}, {0.999, false}, {1, true}};
  const auto bins = equal_width_bins(answers);
  ASSERT_EQ(bins.size(), 15U);
  EXPECT_EQ(bins[0], (CalibrationBin{1, 0, 0}));
  EXPECT_EQ(bins[1], (CalibrationBin{1, 1.0 / 15, 1}));
  EXPECT_EQ(bins[7], (CalibrationBin{1, 0.5, 1}));
  EXPECT_EQ(bins[14], (CalibrationBin{2, 1.999, 1}));
  EXPECT_NEAR(calibration_error(bins), (1.0 / 15 - 1.0) / -5 + 0.5 / 5 + 0.999 / 5, 1e-15);
}

TEST(Calibration, EqualMassCutsAsArraySplitDoes) {
  std::vector<Judged> answers;
  for (int i = 33; i > 0; --i) answers.push_back({i / 40.0, i % 2 == 0});  // 33 answers: three bins of 3, twelve of 2
  const auto bins = equal_mass_bins(answers);
  EXPECT_EQ(bins[2].count, 3);
  EXPECT_EQ(bins[3].count, 2);
  EXPECT_NEAR(bins[0].confidence, (1 + 2 + 3) / 40.0, 1e-15);
  EXPECT_EQ(bins[0].num_right, 1);
  const std::vector<Judged> few = {{0.2, true}, {0.1, false}};
  EXPECT_NEAR(calibration_error(equal_mass_bins(few)), (0.1 + 0.8) / 2, 1e-15);
}

TEST(Calibration, AurocCountsATieAsHalf) {
  EXPECT_DOUBLE_EQ(*auroc(std::vector<Judged>{{0.1, false}, {0.9, true}}), 1);
  EXPECT_DOUBLE_EQ(*auroc(std::vector<Judged>{{0.9, false}, {0.1, true}}), 0);
  EXPECT_DOUBLE_EQ(*auroc(std::vector<Judged>{{0.5, false}, {0.5, true}}), 0.5);
  EXPECT_DOUBLE_EQ(*auroc(std::vector<Judged>{{0.5, false}, {0.5, true}, {0.7, true}, {0.6, false}}), 2.5 / 4);
  EXPECT_FALSE(auroc(std::vector<Judged>{{0.5, true}, {0.6, true}}));
  EXPECT_FALSE(auroc(std::vector<Judged>{{0.5, false}}));
}

TEST(Calibration, FiguresOfATask) {
  const std::vector<Judged> answers = {{0.75, true}, {0.75, false}, {0.25, false}, {1, true}};
  const EvalFigures figures = task_figures(TaskKind::kConfidence, answers);
  EXPECT_EQ(figures.num_rows, 4);
  EXPECT_DOUBLE_EQ(*figures.accuracy, 0.5);
  EXPECT_DOUBLE_EQ(*figures.mean_confidence, 0.6875);
  EXPECT_DOUBLE_EQ(*figures.over_confidence, 0.1875);
  EXPECT_DOUBLE_EQ(*figures.brier, (0.0625 + 0.5625 + 0.0625) / 4);
  EXPECT_EQ(in_words(task_figures(TaskKind::kExactMatch, answers)), "accuracy 50.00%");
  EXPECT_EQ(in_words(figures),
            "accuracy 50.00%, ece 0.1875, ece_equal_mass 0.3125, brier 0.1719, auroc 0.8750, mean_confidence 0.6875, "
            "over_confidence 0.1875");
  EXPECT_TRUE(task_figures(TaskKind::kExactMatch, answers).bins.empty());
}

}  // namespace
}  // namespace lora_train::report

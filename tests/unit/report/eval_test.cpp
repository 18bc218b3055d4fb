#include <gtest/gtest.h>

#include <fstream>

#include "lora_train/report/eval_figures.h"
#include "lora_train/report/eval_files.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

class EvalAnswersFile : public testing::Test {
 protected:
  static std::vector<EvalAnswer> answers(long long step, const std::string& name) {
    return {{step, name, "t.jsonl:1", "2 + 2", "4", "5", false, 0.25},
            {step, name, "t.jsonl:2", "1 + 1", {}, "2", true, {}}};
  }
  /// "name step" of each line, in order.
  std::string lines() const {
    std::string found;
    std::ifstream file(file_);
    for (std::string line; std::getline(file, line);) {
      const auto answer = parse_answer(line);
      found += answer ? answer->name + " " + std::to_string(answer->step) + "; " : "bad";
    }
    return found;
  }
  testing_support::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "eval_answers.jsonl";
};

TEST_F(EvalAnswersFile, KeepsTheFirstEvaluationOfEachTaskAndItsLatest) {
  EvalAnswers found(file_);
  for (const long long step : {0, 5, 10}) {
    found.take(answers(step, "a"));
    if (step > 0) found.take(answers(step, "b"));
    found.write();
  }
  EXPECT_EQ(lines(), "a 0; a 0; a 10; a 10; b 5; b 5; b 10; b 10; ");
  EvalAnswers resumed(file_);
  resumed.keep_first(5);
  resumed.take(answers(8, "a"));
  resumed.write();
  EXPECT_EQ(lines(), "a 0; a 0; a 8; a 8; b 5; b 5; ");
  EvalAnswers earlier(file_);
  earlier.keep_first(3);  // from before the first evaluation of b
  earlier.take(answers(5, "b"));
  earlier.write();
  EXPECT_EQ(lines(), "a 0; a 0; b 5; b 5; ");
  EvalAnswers anew(file_);
  anew.keep_first(-1);
  anew.take(answers(0, "c"));
  anew.take(answers(0, "c"));  // the evaluation was stopped and done again
  anew.write();
  EXPECT_EQ(lines(), "c 0; c 0; ");
}

TEST_F(EvalAnswersFile, ALineReadsBackAsItWas) {
  const std::string first = to_json(answers(3, "a")[0]), second = to_json(answers(3, "a")[1]);
  EXPECT_EQ(first, R"({"step":3,"name":"a","source":"t.jsonl:1","prompt":"2 + 2","expected":"4","answer":"5",)"
                   R"("is_right":false,"confidence":0.25})");
  EXPECT_NE(second.find(R"("expected":null)"), std::string::npos);
  for (const auto& line : {first, second}) EXPECT_EQ(to_json(*parse_answer(line)), line);
  for (const char* bad : {"", "[]", "{}", R"({"is_right": 1})"}) EXPECT_FALSE(parse_answer(bad)) << bad;
  for (const char* step : {"1e300", "-1e300", "\"3\"", "null"}) {
    std::string line = first;
    line.replace(line.find("3"), 1, step);
    EXPECT_FALSE(parse_answer(line)) << line;
  }
}

using Sets = std::vector<DocumentLosses>;

const Sets kBase = {{4, "val", "h1", {10, 24, 9, 30}, {10, 20, 8, 25}}, {4, "more", "h2", {7}, {6}}};

Sets with_losses(std::vector<double> first, std::vector<double> second) {
  Sets sets = kBase;
  sets[0].losses = std::move(first);
  sets[1].losses = std::move(second);
  return sets;
}

TEST(DocumentLosses, AreReadBackAsTheyWereWritten) {
  const testing_support::TemporaryFolder folder;
  Sets sets = kBase;
  sets[0].losses[0] = 0.1 + 0.2;
  write_document_losses(folder / "losses", sets);
  const Sets read = read_document_losses(folder / "losses");
  ASSERT_EQ(read.size(), 2U);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const auto fields = [](const DocumentLosses& set) {
      return std::tie(set.step, set.name, set.documents, set.losses, set.weights);
    };
    EXPECT_EQ(fields(read[i]), fields(sets[i])) << i;
  }
}

TEST(DocumentLosses, OfAStrangersFileAreNone) {
  const testing_support::TemporaryFolder folder;
  EXPECT_TRUE(read_document_losses(folder / "missing").empty());
  for (const char* text :
       {"not json\n", "[1]\n", R"({"losses":[1],"weights":[1,2]})", R"({"losses":["a"],"weights":[1]})"}) {
    std::ofstream(folder / "losses") << text;
    EXPECT_TRUE(read_document_losses(folder / "losses").empty()) << text;
  }
  write_document_losses(folder / "good", kBase);
  std::filesystem::create_symlink(folder / "good", folder / "link");
  EXPECT_TRUE(read_document_losses(folder / "link").empty());
}

// numpy: d = [1, -0.5, 0.2, 2, 0.4]; w = [10, 20, 8, 25, 6]; m = d.sum() / w.sum(); r = d - m * w;
// scipy.stats.t.ppf(0.975, 4) * (5 / 4 * (r**2).sum()) ** 0.5 / w.sum()
TEST(LossDifference, IsTheRatioOfSumsWithItsIntervalOverTheSameDocuments) {
  const auto found = difference_of(kBase, with_losses({11, 23.5, 9.2, 32}, {7.4}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->num_documents, 5);
  EXPECT_NEAR(found->base_loss, 80.0 / 69, 1e-12);
  EXPECT_NEAR(found->mean, 3.1 / 69, 1e-12);
  EXPECT_NEAR(found->high - found->mean, 0.0788, 0.0788 * 0.01);
  EXPECT_NEAR(found->mean - found->low, found->high - found->mean, 1e-12);
  Sets other = kBase;
  other[0].documents = "h3";
  EXPECT_FALSE(difference_of(kBase, other));
  EXPECT_FALSE(difference_of(kBase, {kBase[0]}));
  EXPECT_FALSE(difference_of({}, {}));
  const Sets few = {{1, "val", "h", {5, 6, 7, 8}, {5, 5, 5, 5}}};
  EXPECT_FALSE(difference_of(few, few)) << "four documents say nothing";
}

TEST(LossDifference, IsKeptWorseOrUnclearByItsInterval) {
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.01, .low = 0, .high = 0.02}), LossVerdict::kKept);
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.03, .low = 0.021, .high = 0.04}), LossVerdict::kWorse);
  EXPECT_EQ(judge({.base_loss = 2, .mean = 0.02, .low = 0.01, .high = 0.03}), LossVerdict::kUnclear);
  EXPECT_EQ(judge({.base_loss = 2, .mean = -1, .low = -1.5, .high = -0.5}), LossVerdict::kKept);
  EXPECT_EQ(in_words({.base_loss = 2, .mean = 0.01, .low = 0, .high = 0.02, .num_documents = 7}),
            "at most 1% higher: +0.0100 (95%: +0.0000 to +0.0200) over 7 documents");
}

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

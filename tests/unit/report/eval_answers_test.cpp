#include <gtest/gtest.h>

#include <fstream>

#include "lora_train/base/file.h"
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
  const auto [first, second] = std::pair(answers(3, "a")[0], answers(3, "a")[1]);
  EXPECT_EQ(
      to_json(first),
      R"({"step":3,"name":"a","source":"t.jsonl:1","prompt":"2 + 2","expected":"4","answer":"5","is_right":false,"confidence":0.25})");
  EXPECT_EQ(to_json(*parse_answer(to_json(first))), to_json(first));
  EXPECT_EQ(to_json(*parse_answer(to_json(second))), to_json(second));
  EXPECT_NE(to_json(second).find(R"("expected":null)"), std::string::npos);
  for (const char* bad : {"", "[]", "{}", R"({"is_right": 1})"}) EXPECT_FALSE(parse_answer(bad)) << bad;
  for (const char* step : {"1e300", "-1e300", "\"3\"", "null"}) {
    std::string line = to_json(first);
    line.replace(line.find("3"), 1, step);
    EXPECT_FALSE(parse_answer(line)) << line;
  }
}

}  // namespace
}  // namespace lora_train::report

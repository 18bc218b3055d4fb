// eval_tasks and confidence_tokens.
#include <gtest/gtest.h>

#include <map>

#include "lora_train/config/load.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

const std::string kTasks = R"(confidence_tokens: {<c100>: 1.0, <c0>: 0, <c50>: 0.5}
eval_tasks:
  - {name: conf, kind: confidence, path: c.jsonl, max_samples: 200, every: 0.25, regex: '([0-9]+)', field_map: {correct: ok}}
  - {name: quiz, kind: choices, path: q.jsonl}
)";

TEST(Tasks, AreReadAndWrittenInTheirOrder) {
  const ProfileText files;
  const Profile profile = files.load(kTasks).profile;
  ASSERT_EQ(profile.tasks.eval_tasks.size(), 2U);
  const EvalTask& conf = profile.tasks.eval_tasks[0];
  EXPECT_EQ(conf.kind, TaskKind::kConfidence);
  EXPECT_EQ(conf.data.path, "c.jsonl");
  EXPECT_EQ(conf.data.field_map.at("correct"), "ok");
  EXPECT_EQ(conf.max_samples, 200);
  EXPECT_EQ(conf.every, (Cadence{Cadence::Kind::kFraction, 0.25}));
  EXPECT_EQ(conf.max_new_tokens, 256);
  EXPECT_FALSE(profile.tasks.eval_tasks[1].every || profile.tasks.eval_tasks[1].max_samples);
  const std::vector<std::pair<std::string, double>> tokens = {{"<c100>", 1}, {"<c0>", 0}, {"<c50>", 0.5}};
  EXPECT_EQ(profile.tasks.confidence_tokens, tokens);
  const Profile again = files.load(to_yaml(profile)).profile;
  EXPECT_EQ(again.tasks.eval_tasks, profile.tasks.eval_tasks);
  EXPECT_EQ(again.tasks.confidence_tokens, tokens);
}

TEST(Tasks, MayChangeOnResumeButNotWhatTheTokensMean) {
  const ProfileText files;
  const Profile before = files.load(kTasks).profile;
  const Profile more = files.load(kTasks, {"eval_tasks[0].every=10", "confidence_tokens={<c0>: 0, <c1>: 1}"}).profile;
  std::map<std::string, bool> allowed;
  for (const auto& difference : diff_profiles(before, more)) allowed[difference.key] = difference.allowed_on_resume;
  EXPECT_EQ(allowed, (std::map<std::string, bool>{{"eval_tasks", true}, {"confidence_tokens", false}}));
}

TEST(Tasks, WhatIsWrongIsOneSentenceEach) {
  const ProfileText files;
  const auto error = [&](const std::string& text) { return files.error(text); };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(error(text).find(part), std::string::npos) << error(text);
  };
  const std::string task = "eval_tasks: [{name: a, kind: exact_match, path: p";
  expect("confidence_tokens: {<c0>: 0}\n", "profile.yaml:1: confidence_tokens: has only one token");
  expect("confidence_tokens: {<c0>: 0, <c1>: 1.5}\n",
         "confidence_tokens.<c1>: got \"1.5\", expected a probability from 0 to 1");
  expect("confidence_tokens: [a]\n", "got a list, expected a map");
  expect("eval_tasks: [{name: a, kind: confidence, path: p}]\n",
         "eval_tasks[0]: kind: confidence needs confidence_tokens");
  expect(task + ", every: 0}]\n", "eval_tasks[0].every: got \"0\", expected a number of steps >= 1");
  expect(task + ", every: off}]\n", "eval_tasks[0].every: got \"off\"");
  expect(task + ", max_samples: 0}]\n", "eval_tasks[0].max_samples: got \"0\", expected an integer >= 1");
  expect(task + ", regx: x}]\n", "eval_tasks[0].regx: unknown key. Did you mean \"regex\"?");
  expect(task + "}, {name: a, kind: choices, path: q}]\n",
         "eval_tasks[1].name: another task or dataset is named \"a\"");
  expect(task + "}]\neval_datasets: [{path: v, name: a}]\n", "eval_tasks[0].name: another task or dataset is named");
  expect("eval_tasks: [{name: a, path: p}]\n", "eval_tasks[0].kind: missing");
  expect("eval_tasks: [{name: a, kind: chioces, path: p}]\n", "Did you mean \"choices\"?");
  expect("eval_tasks: [{name: a, kind: choices, path: p, regex: x}]\n", "has no effect on kind: choices");
  expect("eval_tasks: {name: a}\n", "got a map, expected a list of {name, kind, path}");
}

TEST(Tasks, AreEvaluationDataForAPatience) {
  const ProfileText files;
  const std::string patience = "early_stopping_patience: 2\nload_best_model_at_end: true\n";
  const std::string task = "eval_tasks: [{name: a, kind: exact_match, path: p";
  EXPECT_EQ(files.error(patience + task + "}]\n"), "");
  EXPECT_NE(files.error(patience).find("needs evaluation data. Give eval_datasets, val_set_size or eval_tasks."),
            std::string::npos);
  EXPECT_NE(files.error(patience + "eval_steps: off\n" + task + "}]\n").find("needs evaluations during the run"),
            std::string::npos);
  EXPECT_EQ(files.error(patience + "eval_steps: off\n" + task + ", every: 5}]\n"), "");
}

TEST(Tasks, ConfidenceTokensThatNoTaskReadsAreWarnedOf) {
  const ProfileText files;
  const auto warnings = files.load("confidence_tokens: {<c0>: 0, <c1>: 1}\n").warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("confidence_tokens: has no effect without an entry of eval_tasks"), std::string::npos);
}

}  // namespace
}  // namespace lora_train

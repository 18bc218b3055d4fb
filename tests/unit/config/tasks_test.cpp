// eval_tasks and confidence_tokens.
#include <gtest/gtest.h>

#include <map>

#include "lora_train/config/load.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using namespace testing_support;

const std::string kTasks = R"(confidence_tokens: {<c100>: 1.0, <c0>: 0, <c50>: 0.5}
eval_tasks:
  - {name: conf, kind: confidence, path: c.jsonl, max_samples: 200, every: 0.25, regex: '([0-9]+)', field_map: {correct: ok}}
  - {name: quiz, kind: choices, path: q.jsonl}
)";

TEST(Tasks, AreReadAndWrittenInTheirOrder) {
  const ProfileText files;
  const Profile profile = files.profile(kTasks);
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
  const Profile again = files.profile(to_yaml(profile));
  EXPECT_EQ(again.tasks.eval_tasks, profile.tasks.eval_tasks);
  EXPECT_EQ(again.tasks.confidence_tokens, tokens);
}

TEST(Tasks, MayChangeOnResumeButNotWhatTheTokensMean) {
  const ProfileText files;
  const Profile before = files.profile(kTasks);
  const Profile more = files.profile(kTasks, {"eval_tasks[0].every=10", "confidence_tokens={<c0>: 0, <c1>: 1}"});
  std::map<std::string, bool> allowed;
  for (const auto& difference : diff_profiles(before, more)) allowed[difference.key] = difference.allowed_on_resume;
  EXPECT_EQ(allowed, (std::map<std::string, bool>{{"eval_tasks", true}, {"confidence_tokens", false}}));
}

TEST(Tasks, WhatIsWrongIsOneSentenceEach) {
  const std::string task = "eval_tasks: [{name: a, kind: exact_match, path: p", at = "profile.yaml:1: eval_tasks";
  expect_mistakes({
      {"confidence_tokens: {<c0>: 0}\n", "profile.yaml:1: confidence_tokens: has only one token"},
      {"confidence_tokens: {<c0>: 0, <c1>: 1.5}\n",
       "profile.yaml:1: confidence_tokens.<c1>: got \"1.5\", expected a probability from 0 to 1"},
      {"confidence_tokens: [a]\n", "profile.yaml:1: confidence_tokens: got a list, expected a map"},
      {"eval_tasks: [{name: a, kind: confidence, path: p}]\n", at + "[0]: kind: confidence needs confidence_tokens"},
      {task + ", every: 0}]\n", at + "[0].every: got \"0\", expected a number of steps >= 1"},
      {task + ", every: off}]\n", at + "[0].every: got \"off\""},
      {task + ", max_samples: 0}]\n", at + "[0].max_samples: got \"0\", expected an integer >= 1"},
      {task + ", regx: x}]\n", at + "[0].regx: unknown key. Did you mean \"regex\"?"},
      {task + "}, {name: a, kind: choices, path: q}]\n", at + "[1].name: another task or dataset is named \"a\""},
      {task + "}]\neval_datasets: [{path: v, name: a}]\n", at + "[0].name: another task or dataset is named"},
      {"eval_tasks: [{name: a, path: p}]\n", at + "[0].kind: missing"},
      {"eval_tasks: [{name: a, kind: chioces, path: p}]\n", at, "Did you mean \"choices\"?"},
      {"eval_tasks: [{name: a, kind: choices, path: p, regex: x}]\n", at, "has no effect on kind: choices"},
      {"eval_tasks: {name: a}\n", at + ": got a map, expected a list of {name, kind, path}"},
  });
}

TEST(Tasks, AreEvaluationDataForAPatience) {
  const std::string patience = "early_stopping_patience: 2\nload_best_model_at_end: true\n";
  const std::string task = "eval_tasks: [{name: a, kind: exact_match, path: p";
  for (const auto& good : {task + "}]\n", "eval_steps: off\n" + task + ", every: 5}]\n"}) {
    EXPECT_EQ(ProfileText().error(patience + good), "");
  }
  expect_mistakes({
      {patience, "profile.yaml:", "needs evaluation data. Give eval_datasets, val_set_size or eval_tasks."},
      {patience + "eval_steps: off\n" + task + "}]\n", "profile.yaml:", "needs evaluations during the run"},
  });
}

}  // namespace
}  // namespace lora_train

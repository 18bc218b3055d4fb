#include <gtest/gtest.h>

#include "evaluation_schedule.h"
#include "lora_train/base/error.h"

namespace lora_train::run {
namespace {

using evaluate::EvalResult;

EvalResult result(const std::string& name, double loss, double accuracy = 0, double ece = 0,
                  long long num_tokens = 10) {
  EvalResult found;
  found.name = name;
  found.loss = loss;
  found.token_accuracy = accuracy;
  found.ece = ece;
  found.num_tokens = num_tokens;
  found.weight_sum = static_cast<double>(num_tokens);
  return found;
}

RunSection section_with(const std::string& metric, std::optional<std::int64_t> patience = {}, double threshold = 0) {
  RunSection section;
  section.metric_for_best_model = metric;
  section.early_stopping_patience = patience;
  section.early_stopping_threshold = threshold;
  return section;
}

/// Judges the loss of one set at steps 10, 20, ...
class Judged {
 public:
  explicit Judged(const RunSection& section) : best_(section, {"val"}, {}) {}
  Judged& then(double loss) {
    state_.step += 10;
    best_.judge({{result("val", loss)}, {}}, state_);
    return *this;
  }
  const run_folder::TrainState& state() const { return state_; }
  bool stops() const { return best_.has_stopped_improving(state_); }
  const BestModel& best() const { return best_; }

 private:
  BestModel best_;
  run_folder::TrainState state_;
};

TEST(BestModel, TheLowestLossIsBestAndATieKeepsTheEarlierOne) {
  Judged run(section_with("eval_loss"));
  run.then(2).then(1.5).then(1.5).then(1.8);
  EXPECT_EQ(run.state().best_step, 20);
  EXPECT_EQ(run.state().best_metric, 1.5);
  EXPECT_EQ(run.state().best_eval_loss, 1.5);
  EXPECT_EQ(run.state().eval_loss, 1.8);
  EXPECT_EQ(run.state().evals_without_gain, 2);
  EXPECT_FALSE(run.stops()) << "without a patience";
}

TEST(BestModel, TheEvaluationBeforeStep1IsNeverTheBest) {
  const BestModel best(section_with("eval_loss"), {"val"}, {});
  run_folder::TrainState state;
  best.judge({{result("val", 0.5)}, {}}, state);
  EXPECT_EQ(state.eval_loss, 0.5);
  EXPECT_EQ(state.eval_step, 0);
  EXPECT_FALSE(state.best_step || state.best_metric || state.best_eval_loss);
  state.step = 10;
  best.judge({{result("val", 3)}, {}}, state);
  EXPECT_EQ(state.best_step, 10);
}

TEST(BestModel, PatienceCountsEvaluationsInARow) {
  Judged run(section_with("eval_loss", 2));
  run.then(2).then(2.1).then(1.9).then(2);
  EXPECT_FALSE(run.stops());
  run.then(1.9);
  EXPECT_TRUE(run.stops());
  EXPECT_EQ(run.best().stop_in_words(run.state()),
            "early stopping: eval_loss did not improve in 2 evaluations; best at step 30");
}

TEST(BestModel, TheThresholdCountsForThePatienceAlone) {
  Judged run(section_with("eval_loss", 2, 0.1));
  run.then(2).then(1.95).then(1.9);
  EXPECT_TRUE(run.stops());
  EXPECT_EQ(run.state().best_step, 30) << "each was better, by less than the threshold";
  Judged other(section_with("eval_loss", 2, 0.1));
  other.then(2).then(1.95).then(1.8);
  EXPECT_EQ(other.state().evals_without_gain, 0);
}

TEST(BestModel, AMetricMayBeOfOneSetAndGreater) {
  const std::vector<EvalResult> first = {result("a", 1, 0.5, 0.1, 10), result("a.b", 2, 0.7, 0.2, 30)};
  const std::vector<EvalResult> second = {result("a", 0.5, 0.6, 0.4, 10), result("a.b", 3, 0.6, 0.1, 30)};
  const auto best_of = [&](const RunSection& section) {
    const BestModel best(section, {"a", "a.b"}, {});
    run_folder::TrainState state;
    for (const auto& results : {first, second}) {
      state.step += 10;
      best.judge({results, {}}, state);
    }
    return std::pair(*state.best_step, *state.best_metric);
  };
  EXPECT_EQ(best_of(section_with("eval_loss")), std::pair(std::int64_t{10}, 1.75));
  EXPECT_EQ(best_of(section_with("a.loss")), std::pair(std::int64_t{20}, 0.5));
  EXPECT_EQ(best_of(section_with("a.b.eval_loss")), std::pair(std::int64_t{10}, 2.0));
  EXPECT_EQ(best_of(section_with("token_accuracy")), std::pair(std::int64_t{10}, 0.65));
  EXPECT_EQ(best_of(section_with("a.token_accuracy")), std::pair(std::int64_t{20}, 0.6));
  EXPECT_NEAR(best_of(section_with("ece")).second, 0.175, 1e-12);
  EXPECT_NEAR(best_of(section_with("perplexity")).second, std::exp(1.75), 1e-9);
  RunSection greater = section_with("a.loss");
  greater.greater_is_better = true;
  EXPECT_EQ(best_of(greater).first, 10);
}

TEST(BestModel, AnUnknownMetricIsRefusedWithThoseThatAreThere) {
  const auto refusal = [](const std::string& metric) -> std::string {
    try {
      const BestModel best(section_with(metric), {"val"}, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal("eval_los").find("Did you mean \"eval_loss\"?"), std::string::npos) << refusal("eval_los");
  EXPECT_NE(refusal("test.loss").find("ece, val.loss"), std::string::npos) << refusal("test.loss");
  EXPECT_EQ(refusal("val.accuracy").find("accepted"), std::string::npos);
  EXPECT_EQ(refusal("val.token_accuracy"), "accepted");
}

EvalTask task(const std::string& name, TaskKind kind) {
  EvalTask task;
  task.name = name;
  task.kind = kind;
  return task;
}

/// A confidence task "conf" at steps 10, 20, ...; no value: it was not due.
class JudgedTask {
 public:
  explicit JudgedTask(const RunSection& section, std::vector<std::string> sets = {})
      : best_(section, sets, {task("conf", TaskKind::kConfidence), task("conf.b", TaskKind::kExactMatch)}) {}
  JudgedTask& then(std::optional<double> ece, std::optional<double> auroc = {}) {
    state_.step += 10;
    evaluate::Evaluation results;
    evaluate::TaskResult other{{.name = "conf.b", .kind = TaskKind::kExactMatch}, 0, {}};
    other.accuracy = 0.5;
    results.tasks.push_back(other);
    if (ece) {
      results.tasks.push_back({{.name = "conf", .kind = TaskKind::kConfidence}, 0, {}});
      results.tasks.back().ece = ece;
      results.tasks.back().auroc = auroc;
    }
    best_.judge(results, state_);
    return *this;
  }
  const run_folder::TrainState& state() const { return state_; }
  bool stops() const { return best_.has_stopped_improving(state_); }

 private:
  BestModel best_;
  run_folder::TrainState state_;
};

TEST(BestModel, TheMetricMayBeOfATaskAndKnowsWhichWayIsBetter) {
  JudgedTask least(section_with("conf.ece", 2));
  least.then(0.3).then(0.1).then(0.2);
  EXPECT_EQ(least.state().best_step, 20);
  EXPECT_FALSE(least.state().eval_loss) << "there is no loss without datasets";
  JudgedTask most(section_with("conf.auroc"));
  most.then(0.3, 0.6).then(0.3, 0.9).then(0.3, 0.7);
  EXPECT_EQ(most.state().best_metric, 0.9);
  JudgedTask dotted(section_with("conf.b.accuracy"));
  EXPECT_EQ(dotted.then(0.3).state().best_metric, 0.5);
}

TEST(BestModel, AMetricThatHasNoBetterEndNeedsToBeTold) {
  EXPECT_THROW(JudgedTask(section_with("conf.over_confidence")), ConfigError);
  EXPECT_THROW(JudgedTask(section_with("conf.mean_confidence")), ConfigError);
  RunSection told = section_with("conf.mean_confidence");
  told.greater_is_better = true;
  EXPECT_NO_THROW(JudgedTask{told});
}

TEST(BestModel, AnEvaluationWithoutTheMetricCountsForNothing) {
  JudgedTask run(section_with("conf.ece", 2));
  run.then(0.1).then({}).then({}).then(0.2);
  EXPECT_EQ(run.state().evals_without_gain, 1);
  EXPECT_EQ(run.state().eval_step, 40);
  EXPECT_TRUE(run.then(0.1).stops());
  JudgedTask undefined(section_with("conf.auroc", 2));
  EXPECT_FALSE(undefined.then(0.1, {}).state().best_step) << "all answers were right";
}

TEST(BestModel, AMetricThatNoTaskHasIsRefusedWithThoseThatAreThere) {
  const auto refusal = [](const RunSection& section) -> std::string {
    try {
      const JudgedTask best(section);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(section_with("conf.ecce")).find("Did you mean \"conf.ece\"?"), std::string::npos);
  EXPECT_NE(refusal(section_with("conf.b.ece")).find("conf.accuracy, conf.ece,"), std::string::npos);
  EXPECT_EQ(refusal(section_with("eval_loss")), "accepted") << "the default, where nothing asks for a best model";
  EXPECT_NE(refusal(section_with("eval_loss", 2)).find("no evaluation has \"eval_loss\""), std::string::npos);
}

}  // namespace
}  // namespace lora_train::run

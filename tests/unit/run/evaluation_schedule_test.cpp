#include "evaluation_schedule.h"

#include <gtest/gtest.h>

#include "bench/bench_run.h"
#include "lora_train/data/plan/batch_class.h"
#include "support/refusal.h"
#include "unit/data/plan_support.h"

namespace lora_train::run {
namespace {

using evaluate::EvalResult;
using testing_support::refusal;

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

/// Judges evaluations at steps 10, 20, ...
struct Judged {
  Judged(const RunSection& section, const std::vector<std::string>& sets, const std::vector<EvalTask>& tasks)
      : best(section, sets, tasks) {}
  void judge(const evaluate::Evaluation& results) {
    state.step += 10;
    best.judge(results, state);
  }
  bool stops() const { return best.has_stopped_improving(state); }

  BestModel best;
  run_folder::TrainState state;
};

/// Of the loss of one set.
struct JudgedLoss : Judged {
  explicit JudgedLoss(const RunSection& section) : Judged(section, {"val"}, {}) {}
  JudgedLoss& then(double loss) {
    judge({{result("val", loss)}, {}});
    return *this;
  }
};

EvalTask task(const std::string& name, TaskKind kind) {
  EvalTask task;
  task.name = name;
  task.kind = kind;
  return task;
}

/// Of a confidence task "conf"; no value: it was not due.
struct JudgedTask : Judged {
  explicit JudgedTask(const RunSection& section)
      : Judged(section, {}, {task("conf", TaskKind::kConfidence), task("conf.b", TaskKind::kExactMatch)}) {}
  JudgedTask& then(std::optional<double> ece, std::optional<double> auroc = {}) {
    evaluate::TaskResult conf{{.name = "conf", .kind = TaskKind::kConfidence}, 0, {}},
        other{{.name = "conf.b", .kind = TaskKind::kExactMatch}, 0, {}};
    conf.ece = ece;
    conf.auroc = auroc;
    other.accuracy = 0.5;
    judge({{}, ece ? std::vector{other, conf} : std::vector{other}});
    return *this;
  }
};

TEST(BestModel, TheLowestLossIsBestAndATieKeepsTheEarlierOne) {
  JudgedLoss run(section_with("eval_loss"));
  run.then(2).then(1.5).then(1.5).then(1.8);
  EXPECT_EQ(run.state.best_step, 20);
  EXPECT_EQ(run.state.best_metric, 1.5);
  EXPECT_EQ(run.state.best_eval_loss, 1.5);
  EXPECT_EQ(run.state.eval_loss, 1.8);
  EXPECT_EQ(run.state.evals_without_gain, 2);
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
  JudgedLoss run(section_with("eval_loss", 2));
  run.then(2).then(2.1).then(1.9).then(2);
  EXPECT_FALSE(run.stops());
  run.then(1.9);
  EXPECT_TRUE(run.stops());
  EXPECT_EQ(run.best.stop_in_words(run.state),
            "early stopping: eval_loss did not improve in 2 evaluations; best at step 30");
  JudgedLoss with_threshold(section_with("eval_loss", 2, 0.1));
  EXPECT_TRUE(with_threshold.then(2).then(1.95).then(1.9).stops());
  EXPECT_EQ(with_threshold.state.best_step, 30) << "each was better, by less than the threshold";
  EXPECT_EQ(with_threshold.then(1.7).state.evals_without_gain, 0);
}

TEST(BestModel, AMetricMayBeOfOneSetAndGreater) {
  const std::vector<EvalResult> first = {result("a", 1, 0.5, 0.1, 10), result("a.b", 2, 0.7, 0.2, 30)};
  const std::vector<EvalResult> second = {result("a", 0.5, 0.6, 0.4, 10), result("a.b", 3, 0.6, 0.1, 30)};
  const auto best_of = [&](const RunSection& section) {
    Judged run(section, {"a", "a.b"}, {});
    run.judge({first, {}});
    run.judge({second, {}});
    return std::pair(*run.state.best_step, *run.state.best_metric);
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

TEST(BestModel, TheMetricMayBeOfATaskAndKnowsWhichWayIsBetter) {
  JudgedTask least(section_with("conf.ece", 2));
  least.then(0.3).then(0.1).then(0.2);
  EXPECT_EQ(least.state.best_step, 20);
  EXPECT_FALSE(least.state.eval_loss) << "there is no loss without datasets";
  JudgedTask most(section_with("conf.auroc"));
  most.then(0.3, 0.6).then(0.3, 0.9).then(0.3, 0.7);
  EXPECT_EQ(most.state.best_metric, 0.9);
  JudgedTask dotted(section_with("conf.b.accuracy"));
  EXPECT_EQ(dotted.then(0.3).state.best_metric, 0.5);
}

TEST(BestModel, AnEvaluationWithoutTheMetricCountsForNothing) {
  JudgedTask run(section_with("conf.ece", 2));
  run.then(0.1).then({}).then({}).then(0.2);
  EXPECT_EQ(run.state.evals_without_gain, 1);
  EXPECT_EQ(run.state.eval_step, 40);
  EXPECT_TRUE(run.then(0.1).stops());
  JudgedTask undefined(section_with("conf.auroc", 2));
  EXPECT_FALSE(undefined.then(0.1, {}).state.best_step) << "all answers were right";
}

TEST(BestModel, AnUnknownMetricIsRefusedWithThoseThatAreThere) {
  const auto refusal_of = [](const RunSection& section) {
    return testing_support::refusal<ConfigError>([&] { const JudgedTask best(section); });
  };
  const auto refusal_sets = [](const std::string& metric) {
    return testing_support::refusal<ConfigError>([&] { const BestModel best(section_with(metric), {"val"}, {}); });
  };
  EXPECT_SAYS(refusal_sets("eval_los"), "Did you mean \"eval_loss\"?");
  EXPECT_SAYS(refusal_sets("test.loss"), "ece, val.loss");
  EXPECT_NE(refusal_sets("val.accuracy"), "accepted");
  EXPECT_EQ(refusal_sets("val.token_accuracy"), "accepted");
  EXPECT_SAYS(refusal_of(section_with("conf.ecce")), "Did you mean \"conf.ece\"?");
  EXPECT_SAYS(refusal_of(section_with("conf.b.ece")), "conf.accuracy, conf.ece,");
  EXPECT_EQ(refusal_of(section_with("eval_loss")), "accepted") << "the default, where nothing asks for a best model";
  EXPECT_SAYS(refusal_of(section_with("eval_loss", 2)), "no evaluation has \"eval_loss\"");
  EXPECT_NE(refusal_of(section_with("conf.over_confidence")), "accepted") << "which way is better?";
  RunSection section = section_with("conf.mean_confidence");
  EXPECT_NE(refusal_of(section), "accepted");
  section.greater_is_better = true;
  EXPECT_EQ(refusal_of(section), "accepted");
}

TEST(EvaluationSchedule, AreWarnedOfAboveATenthOfTheTime) {
  EXPECT_EQ(evaluation_cost_in_words(10, 91), "");
  EXPECT_EQ(evaluation_cost_in_words(30, 90),
            "evaluations take 25% of the time, 30s on top of 1m 30s of training. Raise eval_steps or a task's every, "
            "or lower eval_max_samples or a task's max_samples or max_new_tokens");
  EXPECT_EQ(evaluation_cost_in_words(0.9, 0.1), "") << "less than a second";
}

TEST(EvaluationSchedule, PaddingCountsForNothing) {
  bench::BenchRequest request;
  request.shape = "tiny-qwen2";
  request.profile.run.device = Device::kCpu;
  request.profile.model.precision = Precision::kFp32;
  request.profile.data.max_seq_len = 64;
  request.profile.schedule.micro_batch_size = 2;
  const auto bench = bench::build_bench_run(request);
  run::Run& run = bench->run;
  const data::NamedStore rows = {"some", data::store_of({64, 17, 60, 50, 5, 63, 40, 12, 33, 48}), {}};
  const auto plan = data::plan_evaluation(rows.store, 64, /*packing=*/false, 2);
  const std::int64_t max_tokens = run.spec.max_tokens;
  const auto classes = data::choose_batch_classes(data::batch_shapes({rows}, {plan}), max_tokens);
  ASSERT_EQ(classes.size(), 1U);
  ASSERT_GT(classes.front().num_tokens, 113);
  plan::BatchFeed as_they_come({}, {max_tokens});
  plan::BatchFeedOptions options{max_tokens};
  options.eval_classes = classes;
  plan::BatchFeed padded({}, options);
  const auto result_of = [&](plan::BatchFeed& feed) {
    return evaluate::evaluate({*run.model.decoder, *run.activations, *run.loss_head, feed, run.ranks()}, rows, plan);
  };
  const evaluate::EvalResult want = result_of(as_they_come), got = result_of(padded);
  EXPECT_EQ(got.num_tokens, want.num_tokens);
  EXPECT_EQ(got.weight_sum, want.weight_sum);
  EXPECT_EQ(got.token_accuracy, want.token_accuracy);
  EXPECT_NEAR(*got.loss, *want.loss, 1e-6 * *want.loss);
  for (std::size_t i = 0; i < want.document_losses.size(); ++i)
    EXPECT_NEAR(got.document_losses[i], want.document_losses[i], 1e-5 * want.document_losses[i]) << i;
  for (std::size_t k = 0; k < want.bins.size(); ++k) EXPECT_EQ(got.bins[k].count, want.bins[k].count) << k;
}

}  // namespace
}  // namespace lora_train::run

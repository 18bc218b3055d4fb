#include "evaluation_schedule.h"

#include <gtest/gtest.h>

#include "bench/bench_run.h"
#include "lora_train/data/plan/batch_class.h"
#include "unit/data/plan_support.h"

namespace lora_train::run {
namespace {

TEST(EvaluationSchedule, AreWarnedOfAboveATenthOfTheTime) {
  EXPECT_EQ(evaluation_cost_in_words(10, 91), "");
  EXPECT_EQ(evaluation_cost_in_words(30, 90),
            "evaluations take 25% of the time, 30s on top of 1m 30s of training. Raise eval_steps or a task's every, "
            "or lower "
            "eval_max_samples or a task's max_samples or max_new_tokens");
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

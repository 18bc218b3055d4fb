#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "commands/plan_command.h"
#include "support/expect_parts.h"

namespace lora_train::cli {
namespace {

using bench::Forecast;
using testing_support::expect_members;
using testing_support::expect_parts;

Forecast row(const std::string& gpu, int num_gpus, double hours, double cost, bool fits = true) {
  Forecast result{.gpu = gpu, .num_gpus = num_gpus, .fits = fits};
  result.hours = hours;
  result.hours_low = 0.8 * hours;
  result.hours_high = 1.5 * hours;
  result.cost_usd = cost;
  result.memory.weights = std::int64_t{3} << 30;
  result.memory.workspaces = std::int64_t{1} << 30;
  return result;
}

bench::ForecastResult some() {
  bench::ForecastResult result{.model = "a model"};
  result.data = {.num_documents = 10, .num_tokens = 5000, .max_seq_len = 2048};
  result.rows = {row("A10G", 1, 10, 10), row("A10G", 4, 3, 12), row("H100", 1, 2, 5), row("H100", 4, 0.6, 6),
                 row("B200", 1, 0.1, 0.1, false)};
  return result;
}

TEST(PlanVerdict, IsTheCheapestInTimeTheFastestForTheMoneyOrTheNearest) {
  auto result = some();
  result.rows.push_back(row("CPU", 1, 0.5, 0));
  result.rows.back().cost_usd.reset();  // neither cheap nor within a budget
  const std::tuple<PlanLimits, bool, std::size_t, const char*> cases[] = {
      {{.deadline_s = 3600}, true, 3, "the cheapest within the deadline is 4 x H100: 36m 00s"},
      {{.deadline_s = 3 * 3600.0}, true, 2, "the cheapest within the deadline is 1 x H100"},
      {{.budget_usd = 5.5}, true, 2, "the fastest within the budget is 1 x H100"},
      {{.budget_usd = 100}, true, 3, "the fastest within the budget is 4 x H100"},
      {{.deadline_s = 60}, false, 5, "nothing meets the limits; the closest is"},
      {{.budget_usd = 1}, false, 2, "nothing meets the limits; the closest is 1 x H100"},
      {{.deadline_s = 3600, .budget_usd = 5.5}, false, 5, "nothing meets the limits"}};
  for (const auto& [limits, is_met, nearest, text] : cases) {
    const PlanVerdict verdict = judge(result, limits);
    EXPECT_EQ(verdict.is_met, is_met) << text;
    EXPECT_EQ(verdict.row, &result.rows[nearest]) << text;
    expect_parts(verdict.text, {text});
  }
  expect_parts(plan_json(result, {}), {"\"cost_usd\":null"});
  expect_parts(plan_table(result, {}, 1), {"no price"});
}

TEST(PlanVerdict, ARunThatFitsNowhereSaysWhatToChange) {
  bench::ForecastResult result = some();
  for (Forecast& one : result.rows) one.fits = false;
  result.rows[1].memory_limit = 100;
  result.rows[1].ways_to_fit = {"micro_batch_size: auto", "base_precision: nf4"};
  const PlanVerdict verdict = judge(result, {.budget_usd = 1});
  EXPECT_EQ(verdict.row, nullptr);
  const std::string change = "it would fit on 4 x A10G with micro_batch_size: auto, or with base_precision: nf4";
  expect_parts(verdict.text, {change});
  expect_parts(plan_table(result, {}, 1), {change});
}

TEST(PlanTable, EndsWithTheCheapestAndTheFastest) {
  const std::string text = plan_table(some(), {}, 1);
  const std::string verdict = "\nVerdict: the run fits in 4 of 5 cases; the cheapest is 1 x H100: 2h 00m";
  EXPECT_NE(text.find(verdict), std::string::npos) << text;
  const std::size_t fastest = text.find("; the fastest is 4 x H100: 36m 00s", text.find(verdict));
  EXPECT_EQ(text.find('\n', fastest), text.size() - 1) << text;
}

TEST(PlanJson, HasARowForEveryGpuAndAVerdict) {
  std::vector<nlohmann::json> objects;
  for (const auto& line : testing_support::lines_of(plan_json(some(), {.deadline_s = 3600})))
    objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 6U);
  EXPECT_EQ(objects[4]["fits"], false);
  EXPECT_EQ(objects[0]["memory_gib"]["total"], 4.0);
  for (const char* key : {"weights", "quantization", "adapter", "optimizer", "activations", "workspace"})
    EXPECT_TRUE(objects[0]["memory_gib"].contains(key)) << key;
  expect_members(objects[5], R"({"gpu": "H100", "num_gpus": 4})");
  EXPECT_TRUE(objects[5]["verdict"].is_string());
}

TEST(PlanTable, NamesWhatDoesNotFitAndWhatATimeIsBasedOn) {
  bench::ForecastResult result = some();
  expect_parts(plan_table(result, {.budget_usd = 5.5}, 1),
               {"4.0 of 0.0 NO", "$10.00  assumed rates\n", "Verdict: the fastest within the budget is 1 x H100"});
  result.rows[0].is_measured = result.rows[1].is_measured = true;
  result.rows[1].num_past_runs = 3;
  expect_parts(plan_table(result, {}, 1), {"$10.00  measured rates\n", "$12.00  3 runs\n"});
}

TEST(PlanTable, HasTheLeastMemoryBesideThePlannedOneAndWhatACheckpointCosts) {
  bench::ForecastResult result = some();
  result.rows[0].least_memory = std::int64_t{5} << 29;
  result.variants = {{"base_precision: nf4", result.rows[0]}};
  expect_parts(plan_table(result, {}, 1),
               {"memory (GiB)      least   rows", "4.0 of 0.0          2.5      0", "4.0 GiB     least    2.5"});
  expect_parts(plan_json(result, {}), {"\"least_memory_gib\":2.5"});
  result = some();
  result.rows[0].checkpoint_bytes = 20'000'000'000;
  result.rows[0].step_s = 0.1;
  const bench::SaveCost cost = bench::save_cost(result.rows[0], 0.5);
  EXPECT_DOUBLE_EQ(cost.pause_s, 2);
  EXPECT_DOUBLE_EQ(cost.write_s, 40);
  EXPECT_DOUBLE_EQ(cost.share_of(result.rows[0], 500), 0.04);
  EXPECT_DOUBLE_EQ(cost.share_of(result.rows[0], 100), 3.2);  // 30 s more, until the one before is on disk
  expect_parts(plan_table(result, {}, 0.5), {"save_steps: 100 costs 320.00% of the steps' time, 500 4.00%"});
}

}  // namespace
}  // namespace lora_train::cli

#include "lora_train/report/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::expect_members;
using testing_support::keys_of;

Json object_of(const RunSummary& summary) { return Json::parse(to_json(summary)); }

TEST(Summary, HasTheKeysOfTheContractInItsOrderAndNullForUnknown) {
  const Json object = object_of({});
  EXPECT_EQ(keys_of(object),
            "status exit_code reason step total_steps epoch train_loss eval_loss best_eval_loss best_step best_metric "
            "eval_tasks tokens supervised_tokens tokens_per_s steps_per_s wall_s train_s eval_share phases_s startup_s "
            "peak_memory_gib startup_peak_memory_gib peak_host_memory_gib gpu num_gpus cuda_graphs cost_usd energy_wh "
            "mean_gpu_utilization cpu_s ledger adapter adapter_step run_name profile_hash version gpu_price_per_hour "
            "price_source ");
  for (const char* key :
       {"train_loss", "eval_loss", "best_eval_loss", "best_step", "best_metric", "adapter_step", "peak_memory_gib",
        "startup_peak_memory_gib", "gpu", "cost_usd", "adapter", "energy_wh", "mean_gpu_utilization", "cpu_s"}) {
    EXPECT_TRUE(object.at(key).is_null()) << key;
  }
  RunSummary summary;
  expect_members(object_of(summary), R"({"cuda_graphs": {"recorded": false, "reason": "no step was computed"}})");
  summary.cuda_graphs = {true, ""};
  expect_members(object_of(summary), R"({"cuda_graphs": {"recorded": true, "reason": null}})");
}

TEST(Summary, KeepsEveryBitOfADoubleAndReplacesNonFiniteOnes) {
  RunSummary summary;
  summary.train_loss = 0.1 + 0.2;
  summary.eval_loss = std::nextafter(1.0, 2.0);
  summary.tokens_per_s = std::numeric_limits<double>::infinity();
  const Json object = object_of(summary);
  EXPECT_EQ(object.at("train_loss").get<double>(), 0.1 + 0.2);
  EXPECT_EQ(object.at("eval_loss").get<double>(), std::nextafter(1.0, 2.0));
  EXPECT_TRUE(object.at("tokens_per_s").is_null());
}

TEST(Summary, ShowsLedgerAndError) {
  RunSummary summary;
  summary.ledger = {.total = 10, .kept = 7, .entries = {{data::LedgerReason::kOverlength, 3, "train.jsonl:4", ""}}};
  summary.ledger.thoughts = {1, 2, 3};
  summary.num_held_out = 2;
  summary.error = RunError{"numeric", "loss is not finite", "step 3"};
  EXPECT_EQ(keys_of(object_of(summary).at("ledger")), "total kept held_out reasons thoughts ");
  EXPECT_EQ(keys_of(object_of(summary).at("error")), "kind message where ");
  expect_members(object_of(summary), R"({
    "ledger": {"total": 10, "kept": 7, "held_out": 2, "reasons": {"overlength": {"count": 3, "first": "train.jsonl:4"}},
               "thoughts": {"kept": 1, "dropped": 2, "empty": 3}},
    "error": {"kind": "numeric", "message": "loss is not finite", "where": "step 3"}})");
}

RunSummary timed_summary() {
  RunSummary summary;
  summary.tokens = 3000;
  summary.step = 6;
  summary.price = Price{3.5, 1, "profile"};
  RunTimes times{.cost_usd = 2.581};
  times[Phase::kData] = 3;
  times[Phase::kTune] = 0.01;
  times[Phase::kTrain] = 75;
  times[Phase::kOther] = 21.99;
  set_times(summary, times);
  return summary;
}

TEST(Summary, RatesAndWordsAreThoseOfTheWholeRun) {
  const Json object = object_of(timed_summary());
  expect_members(object, R"({"wall_s": 100, "train_s": 75, "tokens_per_s": 40, "steps_per_s": 0.08, "cost_usd": 2.581,
                             "price_source": "profile", "gpu_price_per_hour": 3.5})");
  EXPECT_EQ(keys_of(object.at("phases_s")), "data load tune train evaluate save result other ");
  EXPECT_EQ(times_in_words(timed_summary()),
            "time: 1m 40s: data 3.0s, train 1m 15s (75%), other 22s; 40 tokens a second in steps; $2.58 at $3.50 an "
            "hour (profile)");
  EXPECT_EQ(times_in_words(RunSummary{}), "time: 0.0s");
}

TEST(Summary, SaysWhatTheGpusUsed) {
  RunSummary summary = timed_summary();
  RunTimes times =
      RunTimes::of(summary.phases_s, 2.581, {.cpu_s = 80, .energy_wh = 430.4, .gpu_watched_s = 80, .gpu_busy_s = 60});
  set_times(summary, times);
  expect_members(object_of(summary), R"({"energy_wh": 430.4, "mean_gpu_utilization": 75, "cpu_s": 80})");
  EXPECT_TRUE(times_in_words(summary).ends_with("hour (profile); 430 Wh; GPU busy 75% of the time"))
      << times_in_words(summary);
  times.usage.energy_wh = 1234;
  summary.num_gpus = 2;
  set_times(summary, times);
  EXPECT_TRUE(times_in_words(summary).ends_with("; 1.23 kWh; GPUs busy 75% of the time"));
  times.usage.energy_wh = 0.123;
  set_times(summary, times);
  EXPECT_NE(times_in_words(summary).find("; 0.12 Wh;"), std::string::npos);
}

TEST(Summary, AStopBeforeTheFirstStepSaysWhereTheRunIs) {
  RunSummary summary;
  summary.status = "stopped";
  summary.reason = "SIGTERM";
  EXPECT_NE(in_words(summary).find("before the end of step 1"), std::string::npos);
  summary.step = 4;  // of a checkpoint; how many steps there are is not known yet
  EXPECT_NE(in_words(summary).find("after step 4;"), std::string::npos) << in_words(summary);
  summary.total_steps = 9;
  EXPECT_NE(in_words(summary).find("at step 4 of 9"), std::string::npos);
}

TEST(Summary, CommandsThatComeNextReadTheResult) {
  RunSummary summary;
  summary.adapter = "runs/my run/adapter";
  summary.status = "stopped";
  EXPECT_TRUE(next_commands(summary, "runs/my run", {}).empty()) << "it is not done";
  summary.status = "done";
  EXPECT_EQ(next_commands(summary, "runs/my run", {"--prompt", "What's 3?"}),
            (std::vector<std::string>{"lora-train generate --adapter 'runs/my run' --prompt 'What'\\''s 3?'",
                                      "lora-train merge --adapter 'runs/my run' --output-dir 'runs/my run-merged'"}));
  summary.adapter = "runs/full/model";
  EXPECT_EQ(next_commands(summary, "runs/full", {"--prompt", "Hello!"}),
            (std::vector<std::string>{"lora-train generate --model runs/full/model --prompt 'Hello!'"}));
}

TEST(Summary, IsOneLineWhateverThePathHolds) {
  RunSummary summary;
  summary.adapter = "runs/a\nb\xff/adapter";
  const std::string text = to_json(summary);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(text).at("adapter"), "runs/a\nb\xef\xbf\xbd/adapter");
  const testing_support::TemporaryFolder folder;
  write_summary(folder / "summary.json", summary);
  EXPECT_EQ(read_file(folder / "summary.json"), text + "\n");
}

}  // namespace
}  // namespace lora_train::report

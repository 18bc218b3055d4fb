#include "lora_train/metrics/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::metrics {
namespace {

using Json = nlohmann::ordered_json;

std::string names_of(const Json& object) {
  std::string keys;
  for (const auto& item : object.items()) keys += item.key() + " ";
  return keys;
}

TEST(Summary, HasTheKeysOfTheContractInItsOrder) {
  EXPECT_EQ(names_of(Json::parse(to_json(RunSummary{}))),
            "status exit_code reason step total_steps epoch train_loss eval_loss best_eval_loss best_step tokens "
            "supervised_tokens tokens_per_s steps_per_s wall_s train_s startup_s peak_memory_gib peak_host_memory_gib "
            "gpu num_gpus cuda_graphs "
            "cost_usd ledger adapter run_name profile_hash version ");
}

TEST(Summary, WritesUnknownAsNull) {
  const Json object = Json::parse(to_json(RunSummary{}));
  for (const char* key :
       {"train_loss", "eval_loss", "best_eval_loss", "best_step", "peak_memory_gib", "gpu", "cost_usd", "adapter"}) {
    EXPECT_TRUE(object.at(key).is_null()) << key;
  }
}

TEST(Summary, SaysWhetherStepsAreRecordedAndWhyNot) {
  RunSummary summary;
  EXPECT_EQ(Json::parse(to_json(summary)).at("cuda_graphs"),
            (Json{{"recorded", false}, {"reason", "no step was computed"}}));
  summary.cuda_graphs = {true, ""};
  EXPECT_EQ(Json::parse(to_json(summary)).at("cuda_graphs"), (Json{{"recorded", true}, {"reason", nullptr}}));
}

TEST(Summary, KeepsEveryBitOfADoubleAndReplacesNonFiniteOnes) {
  RunSummary summary;
  summary.train_loss = 0.1 + 0.2;
  summary.eval_loss = std::nextafter(1.0, 2.0);
  summary.tokens_per_s = std::numeric_limits<double>::infinity();
  const Json object = Json::parse(to_json(summary));
  EXPECT_EQ(object.at("train_loss").get<double>(), 0.1 + 0.2);
  EXPECT_EQ(object.at("eval_loss").get<double>(), std::nextafter(1.0, 2.0));
  EXPECT_TRUE(object.at("tokens_per_s").is_null());
}

TEST(Summary, ShowsLedgerAndError) {
  RunSummary summary;
  summary.ledger = {.total = 10, .kept = 7, .reasons = {{"overlength", 3, "train.jsonl:4"}}};
  summary.error = RunError{"numeric", "loss is not finite", "step 3"};
  const Json object = Json::parse(to_json(summary));
  EXPECT_EQ(object.at("ledger").dump(),
            R"({"total":10,"kept":7,"reasons":{"overlength":{"count":3,"first":"train.jsonl:4"}}})");
  EXPECT_EQ(object.at("error").dump(), R"({"kind":"numeric","message":"loss is not finite","where":"step 3"})");
}

TEST(Summary, IsOneLineWhateverThePathHolds) {
  RunSummary summary;
  summary.adapter = "runs/a\nb\xff/adapter";
  const std::string text = to_json(summary);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(text).at("adapter"), "runs/a\nb\xef\xbf\xbd/adapter");
}

TEST(Summary, IsWrittenWithALineEnd) {
  const testing_support::TemporaryFolder folder;
  write_summary(folder / "summary.json", RunSummary{});
  EXPECT_EQ(read_file(folder / "summary.json"), to_json(RunSummary{}) + "\n");
}

}  // namespace
}  // namespace lora_train::metrics

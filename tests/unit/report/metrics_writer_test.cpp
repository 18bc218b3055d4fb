#include "lora_train/report/metrics_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "run_files.h"
#include "support/expect_parts.h"
#include "support/expect_refused.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::expect_members;
using testing_support::keys_of;

StepRecord train_at(long long step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.0 / 3.0 + static_cast<double>(step);
  return record;
}

class MetricsFile : public testing::Test {
 protected:
  std::vector<Json> lines() const {
    std::vector<Json> lines;
    for (const auto& line : testing_support::lines_of(read_file(path_))) lines.push_back(Json::parse(line));
    return lines;
  }
  /// The lines of a file to which these are added.
  template <typename... Records>
  std::vector<Json> written(const Records&... records) const {
    MetricsWriter writer(path_);
    (writer.write(records), ...);
    return lines();
  }

  const testing_support::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsFile, HasEveryEventWithItsKeys) {
  const auto lines = written(StartRecord{}, train_at(1), EvalRecord{}, CheckpointRecord{}, EndRecord{});
  const std::pair<const char*, std::string> events[] = {
      {"start",
       "event step total_steps version profile_hash device world_size run_name num_rows num_documents time elapsed_s "
       "phases_s cost_usd cpu_s energy_wh gpu_watched_s gpu_busy_s gpu_price_per_hour price_source spans environment "
       "set_by base_files base_values "},
      {"train",
       "event step epoch loss supervised_tokens loss_mean grad_norm learning_rate tokens num_documents tokens_per_s "
       "step_ms data_wait_ms memory_gib time elapsed_s eta_s train_s cost_usd cpu_percent host_memory_gib "},
      {"eval", "event step name loss perplexity token_accuracy num_tokens eval_s ece num_documents bins spans "},
      {"checkpoint", "event step path save_s stall_s time spans "},
      {"end",
       "event step status exit_code reason time elapsed_s phases_s cost_usd cpu_s energy_wh gpu_watched_s gpu_busy_s "
       "spans "}};
  ASSERT_EQ(lines.size(), std::size(events));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("event"), events[i].first);
    EXPECT_EQ(keys_of(lines[i]), events[i].second);
  }
}

TEST_F(MetricsFile, AStepHasWhatIsKnownOfTheGpuTheRanksAndTheOptimizer) {
  StepRecord record = train_at(1);
  record.gpu_utilization = 97;
  record.gpu_power_w = 612.5;
  record.gpu_temperature_c = 65;
  record.gpu_clock_mhz = 1980;
  record.gpu_memory_used_gib = 70.5;
  record.gpu_throttle = {"power_cap", "thermal"};
  record.optim_zero_second_moments = 0.125;
  record.rank_compute_ms = {1.5, 2};
  record.rank_data_wait_ms = {0, 3};
  record.rank_memory_gib = {7, 8};
  const auto lines = written(record, StepRecord{.gpu_temperature_c = 65});
  expect_members(lines[0], R"({"gpu_utilization": 97, "gpu_power_w": 612.5, "gpu_temperature_c": 65,
                               "gpu_clock_mhz": 1980, "gpu_memory_used_gib": 70.5,
                               "gpu_throttle": ["power_cap", "thermal"], "optim_zero_second_moments": 0.125,
                               "rank_compute_ms": [1.5, 2], "rank_data_wait_ms": [0, 3], "rank_memory_gib": [7, 8]})");
  EXPECT_TRUE(keys_of(lines[1]).ends_with("host_memory_gib gpu_temperature_c ")) << "no key for what is not known";
}

TEST_F(MetricsFile, SaysWhereTheRunCameFrom) {
  StartRecord start;
  start.provenance = {
      {{"command", "lora-train train"}, {"driver", ""}}, {{"lora_r", "my.yaml:3"}}, {"h100.yaml"}, {{"lora_r", "16"}}};
  start.document_lengths = length_histogram({1, 40, 41, 95});
  const auto line = written(start)[0];
  EXPECT_EQ(line.at("environment").dump(), R"({"command":"lora-train train"})");  // no key for what is not known
  expect_members(line, R"({"set_by": {"lora_r": "my.yaml:3"}, "base_files": ["h100.yaml"],
                           "base_values": {"lora_r": "16"}})");
  EXPECT_EQ(line.at("document_lengths").dump(),
            R"({"bin_width":5,"counts":[1,0,0,0,0,0,0,1,1,0,0,0,0,0,0,0,0,0,1],"num_tokens":177,"longest":95})");
}

TEST(LengthHistogram, HasAtMostFortyBinsOfARoundWidth) {
  EXPECT_EQ(length_histogram({40}).bin_width, 1);
  EXPECT_EQ(length_histogram({41}).bin_width, 2);
  EXPECT_EQ(length_histogram({32'768}).bin_width, 1000);
  EXPECT_EQ(length_histogram({32'768}).counts.size(), 33U);
  EXPECT_EQ(length_histogram({}).bin_width, 0);
}

TEST_F(MetricsFile, ALineOfATaskHasItsKindAndItsFigures) {
  const std::vector<Judged> answers = {{0.75, true}, {1, true}};
  const auto of_task = [&](TaskKind kind) { return EvalRecord{task_figures(kind, answers), 4, 0.5}; };
  const auto lines =
      written(of_task(TaskKind::kConfidence), of_task(TaskKind::kChoices), of_task(TaskKind::kExactMatch));
  EXPECT_EQ(
      keys_of(lines[0]),
      "event step name kind accuracy ece ece_equal_mass brier auroc mean_confidence over_confidence num_rows eval_s "
      "bins spans ");
  EXPECT_EQ(keys_of(lines[1]), "event step name kind accuracy ece brier num_rows eval_s bins spans ");
  EXPECT_EQ(keys_of(lines[2]), "event step name kind accuracy num_rows eval_s spans ");
  expect_members(lines[0], R"({"event": "eval", "kind": "confidence", "auroc": null})");  // all answers are right
  EXPECT_EQ(lines[0].at("bins")[14].dump(), "[1,1.0,1]");
}

TEST_F(MetricsFile, SaysWhatTheTimeWentInto) {
  EndRecord end;
  end.times[Phase::kSave] = 1.0 / 3;
  end.times.cost_usd = 0.125;
  end.spans = {{Phase::kTrain, 1, 2.12345}, {Phase::kSave, 2.5, 3}};
  StartRecord start;
  start.price = Price{2.5, 4, "GPU table"};
  const auto lines = written(end, start);
  EXPECT_EQ(lines[0].at("phases_s").at("save").get<double>(), 1.0 / 3);
  EXPECT_EQ(lines[0].at("spans").dump(), R"([["train",1,2.123],["save",2.5,3]])");
  expect_members(lines[0], R"({"cost_usd": 0.125})");
  expect_members(lines[1], R"({"gpu_price_per_hour": 2.5, "price_source": "GPU table", "cost_usd": null})");
}

TEST_F(MetricsFile, LossReadsBackWithTheSameBits) {
  StepRecord record = train_at(1);
  record.learning_rate = 2e-4 / 3;
  const auto line = written(record)[0];
  EXPECT_EQ(line.at("loss").get<double>(), record.loss);
  EXPECT_EQ(line.at("learning_rate").get<double>(), record.learning_rate);
  EXPECT_TRUE(line.at("memory_gib").is_null());
}

TEST_F(MetricsFile, DropAfterKeepsEarlierLinesByteForByte) {
  // Other spacing than ours must survive. The evaluation of step 2 comes after its checkpoint.
  const std::string kept =
      "{\"event\": \"start\",  \"step\":0}\n{\"event\":\"train\",\"step\":1}\n{\"event\":\"train\",\"step\":2 }\n"
      "{\"event\":\"checkpoint\",\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n";
  write_text(path_, kept + "{\"event\":\"train\",\"step\":3}\n{\"event\":\"end\",\"step\":3}\n");
  MetricsWriter writer(path_);
  for (int i = 0; i < 2; ++i) {  // the second time there is nothing to drop
    writer.drop_after(2);
    EXPECT_EQ(read_file(path_), kept);
  }
  writer.write(train_at(3));
  EXPECT_EQ(read_file(path_).substr(0, kept.size()), kept);
  EXPECT_EQ(lines().at(5).at("step"), 3);
  writer.drop_after(-1);
  EXPECT_EQ(read_file(path_), "");
}

// A checkpoint is on the disk, and logged, some steps after it was begun.
TEST_F(MetricsFile, DropAfterKeepsTheCheckpointThatWasLoggedLater) {
  const std::string step_2 = "{\"event\":\"train\",\"step\":2}\n", saved = "{\"event\":\"checkpoint\",\"step\":2}\n";
  write_text(path_, step_2 + "{\"event\":\"train\",\"step\":3}\n" + saved + "{\"event\":\"train\",\"step\":4}\n");
  MetricsWriter writer(path_);
  writer.drop_after(2);
  EXPECT_EQ(read_file(path_), step_2 + saved);
  writer.write(train_at(3));
  EXPECT_EQ(lines().size(), 3U);
}

TEST_F(MetricsFile, KnowsWhetherAStepWasLogged) {
  EXPECT_FALSE(has_event(path_, "train"));
  written(StartRecord{}, EvalRecord{}, EndRecord{});
  EXPECT_FALSE(has_event(path_, "train"));
  written(train_at(1));
  EXPECT_TRUE(has_event(path_, "train"));
  EXPECT_FALSE(has_event("/dev/full", "train"));
}

TEST_F(MetricsFile, ATornLastLineIsCut) {
  write_text(path_, "{\"event\":\"train\",\"step\":1}\n{\"event\":\"train\",\"st");
  const auto lines = written(train_at(2));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("step"), 1);
  EXPECT_EQ(lines[1].at("step"), 2);
  write_text(path_, "{\"event\":");
  written();
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(MetricsFile, ThatCannotBeOpenedIsAnIoErrorThatNamesIt) {
  const auto path = folder_ / "missing/metrics.jsonl";
  testing_support::expect_refused([&] { MetricsWriter writer(path); }, path, {"No such file"}, ExitCode::kIo);
}

TEST_F(MetricsFile, ALineThatDidNotFitIsWrittenWithTheNext) {
  MetricsWriter writer(path_);
  writer.write(train_at(1));
  const std::string before = read_file(path_);  // the line is there before write() returns
  ASSERT_EQ(lines().size(), 1U);
  {
    const testing_support::FileSizeLimit full(before.size() + 20);
    EXPECT_THROW(writer.write(train_at(2)), IoError);
    EXPECT_EQ(read_file(path_), before) << "a torn line stays";
    EXPECT_THROW(writer.write(train_at(3)), IoError);
  }
  writer.write(train_at(4));
  ASSERT_EQ(lines().size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(lines()[i].at("step"), i + 1);
}

TEST(MetricsWriter, FullDiskIsAnIoError) {
  MetricsWriter writer("/dev/full");
  EXPECT_THROW(writer.write(train_at(1)), IoError);
}

}  // namespace
}  // namespace lora_train::report

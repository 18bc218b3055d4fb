#include "lora_train/report/metrics_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::TemporaryFolder;

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string keys_of(const Json& object) {
  std::string keys;
  for (const auto& item : object.items()) keys += item.key() + " ";
  return keys;
}

StepRecord train_at(long long step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.0 / 3.0 + static_cast<double>(step);
  return record;
}

TEST(MetricsWriter, WritesEveryEventWithItsKeys) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.write(StartRecord{});
  writer.write(train_at(1));
  writer.write(EvalRecord{});
  writer.write(CheckpointRecord{});
  writer.write(EndRecord{});
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(
      keys_of(lines[0]),
      "event step total_steps version profile_hash device world_size run_name num_rows num_documents time "
      "elapsed_s phases_s cost_usd cpu_s energy_wh gpu_watched_s gpu_busy_s gpu_price_per_hour price_source spans "
      "environment set_by base_files base_values ");
  EXPECT_EQ(
      keys_of(lines[1]),
      "event step epoch loss supervised_tokens loss_mean grad_norm learning_rate tokens num_documents tokens_per_s "
      "step_ms data_wait_ms memory_gib time elapsed_s eta_s train_s cost_usd cpu_percent host_memory_gib ");
  StepRecord in_8_bits = train_at(2);
  in_8_bits.optim_zero_second_moments = 0.125;
  writer.write(in_8_bits);
  EXPECT_EQ(lines_of(folder / "metrics.jsonl")[5].at("optim_zero_second_moments"), 0.125);
  StepRecord of_ranks = train_at(3);
  of_ranks.rank_compute_ms = {1.5, 2};
  of_ranks.rank_data_wait_ms = {0, 3};
  of_ranks.rank_memory_gib = {7, 8};
  writer.write(of_ranks);
  const auto line = lines_of(folder / "metrics.jsonl")[6];
  EXPECT_EQ(line.at("rank_compute_ms"), (std::vector<double>{1.5, 2}));
  EXPECT_EQ(line.at("rank_data_wait_ms"), (std::vector<double>{0, 3}));
  EXPECT_EQ(line.at("rank_memory_gib"), (std::vector<double>{7, 8}));
  EXPECT_EQ(keys_of(lines[2]),
            "event step name loss perplexity token_accuracy num_tokens eval_s ece num_documents bins spans ");
  EXPECT_EQ(keys_of(lines[3]), "event step path save_s stall_s time spans ");
  EXPECT_EQ(keys_of(lines[4]),
            "event step status exit_code reason time elapsed_s phases_s cost_usd cpu_s energy_wh gpu_watched_s "
            "gpu_busy_s spans ");
  EXPECT_EQ(lines[0].at("event"), "start");
  EXPECT_EQ(lines[1].at("event"), "train");
  EXPECT_EQ(lines[2].at("event"), "eval");
  EXPECT_EQ(lines[3].at("event"), "checkpoint");
  EXPECT_EQ(lines[4].at("event"), "end");
}

TEST(MetricsWriter, WritesWhatIsKnownOfTheGpu) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  StepRecord record = train_at(1);
  record.gpu_utilization = 97;
  record.gpu_power_w = 612.5;
  record.gpu_temperature_c = 65;
  record.gpu_clock_mhz = 1980;
  record.gpu_memory_used_gib = 70.5;
  record.gpu_throttle = {"power_cap", "thermal"};
  writer.write(record);
  StepRecord other = train_at(2);
  other.gpu_temperature_c = 65;
  writer.write(other);
  const auto lines = lines_of(folder / "metrics.jsonl");
  EXPECT_EQ(lines[0].at("gpu_utilization"), 97);
  EXPECT_EQ(lines[0].at("gpu_power_w"), 612.5);
  EXPECT_EQ(lines[0].at("gpu_temperature_c"), 65);
  EXPECT_EQ(lines[0].at("gpu_clock_mhz"), 1980);
  EXPECT_EQ(lines[0].at("gpu_memory_used_gib"), 70.5);
  EXPECT_EQ(lines[0].at("gpu_throttle").dump(), R"(["power_cap","thermal"])");
  EXPECT_TRUE(keys_of(lines[1]).ends_with("host_memory_gib gpu_temperature_c ")) << "no key for what is not known";
}

TEST(MetricsWriter, WritesWhereTheRunCameFrom) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  StartRecord start;
  start.provenance = {
      {{"command", "lora-train train"}, {"driver", ""}}, {{"lora_r", "my.yaml:3"}}, {"h100.yaml"}, {{"lora_r", "16"}}};
  start.document_lengths = length_histogram({1, 40, 41, 95});
  writer.write(start);
  const auto line = lines_of(folder / "metrics.jsonl")[0];
  EXPECT_EQ(line.at("environment").dump(), R"({"command":"lora-train train"})");  // no key for what is not known
  EXPECT_EQ(line.at("set_by").dump(), R"({"lora_r":"my.yaml:3"})");
  EXPECT_EQ(line.at("base_files").dump(), R"(["h100.yaml"])");
  EXPECT_EQ(line.at("base_values").dump(), R"({"lora_r":"16"})");
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

TEST(MetricsWriter, ALineOfATaskHasItsKindAndItsFigures) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  const std::vector<Judged> answers = {{0.75, true}, {1, true}};
  for (const TaskKind kind : {TaskKind::kConfidence, TaskKind::kChoices, TaskKind::kExactMatch})
    writer.write(EvalRecord{task_figures(kind, answers), 4, 0.5});
  const auto lines = lines_of(folder / "metrics.jsonl");
  EXPECT_EQ(
      keys_of(lines[0]),
      "event step name kind accuracy ece ece_equal_mass brier auroc mean_confidence over_confidence num_rows eval_s "
      "bins spans ");
  EXPECT_EQ(keys_of(lines[1]), "event step name kind accuracy ece brier num_rows eval_s bins spans ");
  EXPECT_EQ(keys_of(lines[2]), "event step name kind accuracy num_rows eval_s spans ");
  EXPECT_EQ(lines[0].at("event"), "eval");
  EXPECT_EQ(lines[0].at("kind"), "confidence");
  EXPECT_TRUE(lines[0].at("auroc").is_null()) << "all answers are right";
  EXPECT_EQ(lines[0].at("bins")[14].dump(), "[1,1.0,1]");
}

TEST(MetricsWriter, WritesWhatTheTimeWentInto) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  EndRecord end;
  end.times[Phase::kSave] = 1.0 / 3;
  end.times.cost_usd = 0.125;
  end.spans = {{Phase::kTrain, 1, 2.12345}, {Phase::kSave, 2.5, 3}};
  writer.write(end);
  StartRecord start;
  start.price = Price{2.5, 4, "GPU table"};
  writer.write(start);
  const auto lines = lines_of(folder / "metrics.jsonl");
  EXPECT_EQ(lines[0].at("phases_s").at("save").get<double>(), 1.0 / 3);
  EXPECT_EQ(lines[0].at("cost_usd"), 0.125);
  EXPECT_EQ(lines[0].at("spans").dump(), R"([["train",1,2.123],["save",2.5,3]])");
  EXPECT_EQ(lines[1].at("gpu_price_per_hour"), 2.5);
  EXPECT_EQ(lines[1].at("price_source"), "GPU table");
  EXPECT_TRUE(lines[1].at("cost_usd").is_null());
}

TEST(MetricsWriter, LossReadsBackWithTheSameBits) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  StepRecord record = train_at(1);
  record.learning_rate = 2e-4 / 3;
  writer.write(record);
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("loss").get<double>(), record.loss);
  EXPECT_EQ(lines[0].at("learning_rate").get<double>(), record.learning_rate);
  EXPECT_TRUE(lines[0].at("memory_gib").is_null());
}

TEST(MetricsWriter, LineIsInTheFileBeforeWriteReturns) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.write(train_at(1));
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 1U);
}

TEST(MetricsWriter, DropAfterKeepsEarlierLinesByteForByte) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  // Written by hand: other spacing than ours must survive. The evaluation of step 2 comes after its checkpoint.
  const std::string kept =
      "{\"event\": \"start\",  \"step\":0}\n{\"event\":\"train\",\"step\":1}\n{\"event\":\"train\",\"step\":2 }\n"
      "{\"event\":\"checkpoint\",\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n";
  std::ofstream(path) << kept << "{\"event\":\"train\",\"step\":3}\n{\"event\":\"end\",\"step\":3}\n";
  MetricsWriter writer(path);
  writer.drop_after(2);
  EXPECT_EQ(read_file(path), kept);
  writer.write(train_at(3));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[5].at("step"), 3);
  EXPECT_EQ(read_file(path).substr(0, kept.size()), kept);
}

// A checkpoint is on the disk, and logged, some steps after it was begun.
TEST(MetricsWriter, DropAfterKeepsTheCheckpointThatWasLoggedLater) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"event\":\"train\",\"step\":2}\n{\"event\":\"train\",\"step\":3}\n"
                         "{\"event\":\"checkpoint\",\"step\":2}\n{\"event\":\"train\",\"step\":4}\n";
  MetricsWriter writer(path);
  writer.drop_after(2);
  EXPECT_EQ(read_file(path), "{\"event\":\"train\",\"step\":2}\n{\"event\":\"checkpoint\",\"step\":2}\n");
  writer.write(train_at(3));
  EXPECT_EQ(lines_of(path).size(), 3U);
}

TEST(MetricsWriter, DropAfterTheLastStepChangesNothing) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.write(train_at(1));
  writer.write(train_at(2));
  const std::string before = read_file(folder / "metrics.jsonl");
  writer.drop_after(2);
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), before);
}

TEST(MetricsWriter, DropAfterMinusOneBeginsAnew) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.write(StartRecord{});
  writer.write(EvalRecord{});
  writer.drop_after(-1);
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), "");
}

TEST(MetricsWriter, KnowsWhetherAStepWasLogged) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  EXPECT_FALSE(has_event(path, "train"));
  MetricsWriter writer(path);
  writer.write(StartRecord{});
  writer.write(EvalRecord{});
  writer.write(EndRecord{});
  EXPECT_FALSE(has_event(path, "train"));
  writer.write(train_at(1));
  EXPECT_TRUE(has_event(path, "train"));
  EXPECT_FALSE(has_event("/dev/full", "train"));
}

TEST(MetricsWriter, CutsATornLastLine) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"event\":\"train\",\"step\":1}\n{\"event\":\"train\",\"st";
  MetricsWriter writer(path);
  writer.write(train_at(2));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("step"), 1);
  EXPECT_EQ(lines[1].at("step"), 2);
}

TEST(MetricsWriter, CutsAFileThatHoldsOnlyATornLine) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"event\":";
  MetricsWriter writer(path);
  EXPECT_EQ(read_file(path), "");
}

TEST(MetricsWriter, RefusedFileIsAnIoErrorThatNamesIt) {
  const TemporaryFolder folder;
  try {
    MetricsWriter writer(folder / "missing/metrics.jsonl");
    FAIL() << "opened";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where(), (folder / "missing/metrics.jsonl").string());
    EXPECT_NE(error.message().find("No such file"), std::string::npos) << error.message();
  }
}

TEST(MetricsWriter, ALineThatDidNotFitIsWrittenWithTheNext) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(train_at(1));
  const std::string before = read_file(path);
  {
    const testing_support::FileSizeLimit full(before.size() + 20);
    EXPECT_THROW(writer.write(train_at(2)), IoError);
    EXPECT_EQ(read_file(path), before) << "a torn line stays";
    EXPECT_THROW(writer.write(train_at(3)), IoError);
  }
  writer.write(train_at(4));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i].at("step"), i + 1);
}

TEST(MetricsWriter, FullDiskIsAnIoError) {
  MetricsWriter writer("/dev/full");
  EXPECT_THROW(writer.write(train_at(1)), IoError);
}

}  // namespace
}  // namespace lora_train::report

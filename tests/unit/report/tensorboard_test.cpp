#include "lora_train/report/tensorboard.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using testing_support::TemporaryFolder;

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::uint32_t u32_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Payloads of all whole records; every checksum is checked on the way.
std::vector<std::string> payloads_of(const std::string& file) {
  std::vector<std::string> payloads;
  std::size_t at = 0;
  while (at + 12 <= file.size()) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    EXPECT_EQ(u32_at(file, at + 8), masked_crc32c(file.substr(at, 8)));
    if (at + 16 + length > file.size()) break;
    payloads.push_back(file.substr(at + 12, length));
    EXPECT_EQ(u32_at(file, at + 12 + length), masked_crc32c(payloads.back()));
    at += 16 + length;
  }
  EXPECT_EQ(at, file.size());
  return payloads;
}

bool has_tag(const std::string& payload, const std::string& tag) {
  const std::string field = std::string("\x0a") + static_cast<char>(tag.size()) + tag + "\x15";
  return payload.find(field) != std::string::npos;
}

/// With all figures that a CPU run has.
StepRecord full_step() {
  StepRecord record;
  for (auto member :
       {&StepRecord::epoch, &StepRecord::loss, &StepRecord::loss_mean, &StepRecord::grad_norm,
        &StepRecord::learning_rate, &StepRecord::tokens_per_s, &StepRecord::step_ms, &StepRecord::data_wait_ms,
        &StepRecord::train_s, &StepRecord::cpu_percent, &StepRecord::host_memory_gib})
    record.*member = 0;
  return record;
}

EvalRecord eval_of(const std::string& name) {
  EvalRecord record;
  record.name = name;
  record.loss = record.perplexity = record.token_accuracy = record.ece = 0;
  return record;
}

TEST(TensorBoard, Crc32cOfTheCheckString) { EXPECT_EQ(crc32c("123456789"), 0xe3069283U); }

TEST(TensorBoard, VersionRecordIsTheGolden) {
  EXPECT_EQ(version_record(1.0), from_hex("1800000000000000"
                                          "a37f4b22"
                                          "09000000000000f03f1a0d627261696e2e4576656e743a32"
                                          "86bf577a"));
}

TEST(TensorBoard, ScalarRecordIsTheGolden) {
  const std::string record = scalar_record("train/loss", 0.5F, 10, 2.0);
  ASSERT_EQ(record.size(), 8U + 4U + 32U + 4U);
  EXPECT_EQ(u32_at(record, 0), 32U);
  EXPECT_EQ(u32_at(record, 8), 0x50a9ed29U);
  EXPECT_EQ(u32_at(record, 44), 0xd95ba04dU);
}

TEST(TensorBoard, StepsPast127UseLongerVarints) {
  const std::string record = scalar_record("t", 0.0F, 300, 2.0);
  EXPECT_NE(record.find(from_hex("10ac02")), std::string::npos);
}

TEST(TensorBoard, WritesVersionThenOneRecordPerScalar) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    TensorBoardWriter writer(folder / "tensorboard");
    path = writer.path();
    StepRecord record = full_step();
    record.step = 3;
    writer.add(record);
  }
  EXPECT_EQ(path.filename().string().rfind("events.out.tfevents.", 0), 0U);
  const auto payloads = payloads_of(read_file(path));
  const char* const tags[] = {"train/epoch",          "train/loss",          "train/supervised_tokens",
                              "train/loss_mean",      "train/grad_norm",     "train/learning_rate",
                              "train/tokens",         "train/num_documents", "train/tokens_per_s",
                              "train/step_ms",        "train/data_wait_ms",  "train/elapsed_s",
                              "train/eta_s",          "train/train_s",       "train/cpu_percent",
                              "train/host_memory_gib"};
  ASSERT_EQ(payloads.size(), 1 + std::size(tags));
  EXPECT_NE(payloads[0].find("brain.Event:2"), std::string::npos);
  for (std::size_t i = 0; i < std::size(tags); ++i) EXPECT_TRUE(has_tag(payloads[i + 1], tags[i])) << tags[i];
}

TEST(TensorBoard, HasWhatIsKnownOfTheGpu) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  StepRecord record = full_step();
  record.gpu_utilization = 97;
  record.gpu_temperature_c = 65;
  record.gpu_throttle = {"power_cap"};
  writer.add(record);
  writer.flush();
  const auto payloads = payloads_of(read_file(writer.path()));
  ASSERT_EQ(payloads.size(), 19U);
  EXPECT_TRUE(has_tag(payloads[17], "train/gpu_utilization"));
  EXPECT_TRUE(has_tag(payloads[18], "train/gpu_temperature_c"));
}

TEST(TensorBoard, EachRankHasItsCurves) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  StepRecord record = full_step();
  record.rank_compute_ms = {1.5, 2};
  record.rank_data_wait_ms = {0, 3};
  record.rank_memory_gib = {7, 8};
  writer.add(record);
  writer.flush();
  const std::string text = read_file(writer.path());
  for (const char* tag : {"train/rank_compute_ms/0", "train/rank_compute_ms/1", "train/rank_data_wait_ms/1",
                          "train/rank_memory_gib/0", "train/rank_memory_gib/1"}) {
    EXPECT_NE(text.find(tag), std::string::npos) << tag;
  }
}

TEST(TensorBoard, FurtherEvaluationSetsHaveTheirNameInTheTag) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  const EvalRecord first = eval_of("val"), second = eval_of("hard");
  writer.add(first);
  writer.add(second);
  writer.add(first);
  writer.flush();
  std::map<std::string, int> seen;
  for (const auto& payload : payloads_of(read_file(writer.path()))) {
    for (const char* tag : {"eval/loss", "eval/hard/loss", "eval/val/loss", "eval/token_accuracy"}) {
      seen[tag] += has_tag(payload, tag) ? 1 : 0;
    }
  }
  EXPECT_EQ(seen["eval/loss"], 2);
  EXPECT_EQ(seen["eval/token_accuracy"], 2);
  EXPECT_EQ(seen["eval/hard/loss"], 1);
  EXPECT_EQ(seen["eval/val/loss"], 0);
}

TEST(TensorBoard, StartsWithTheProfileAndEndsWithTimes) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder / "tensorboard");
  Profile profile;
  profile.run.output_dir = "runs/a";
  writer.start(profile, 1);
  EndRecord end{.step = 2, .status = "done"};
  end.times[Phase::kTrain] = 4;
  writer.add(end);
  const std::string text = read_file(writer.path());
  for (const char* part : {"args", "    output_dir: runs/a\n", "train/train_runtime", "train/train_steps_per_second"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  payloads_of(text);
}

TEST(TensorBoard, EachOfSeveralSetsHasTheTagsOfTrainer) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), /*has_several_sets=*/true);
  EvalRecord record = eval_of("val");
  record.eval_s = 2;
  record.num_documents = 10;
  writer.add(record);
  writer.flush();
  const std::string text = read_file(writer.path());
  for (const char* tag : {"eval/loss", "eval/runtime", "eval/samples_per_second", "eval/val_loss", "eval/val_runtime",
                          "eval/val_samples_per_second"}) {
    EXPECT_NE(text.find(std::string(tag) + "\x15"), std::string::npos) << tag;
  }
}

TEST(TensorBoard, GoesOnWhereAFullDiskStoppedIt) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  const EvalRecord first = eval_of("val"), second = eval_of("hard");
  writer.add(first);
  {
    const testing_support::FileSizeLimit full(read_file(writer.path()).size() + 9);
    EXPECT_THROW(writer.flush(), IoError);
  }
  writer.add(second);
  writer.flush();
  const auto payloads = payloads_of(read_file(writer.path()));
  ASSERT_EQ(payloads.size(), 16U);
  EXPECT_TRUE(has_tag(payloads[1], "eval/loss"));
  EXPECT_TRUE(has_tag(payloads[9], "eval/hard/loss"));
}

TEST(TensorBoard, TwoWritersOfOneSecondHaveFilesOfTheirOwn) {
  const TemporaryFolder folder;
  const TensorBoardWriter first(folder.path()), second(folder.path());
  EXPECT_NE(first.path(), second.path());
}

}  // namespace
}  // namespace lora_train::report

#include "lora_train/report/tensorboard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/expect_parts.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using testing_support::expect_parts;
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
const StepRecord kFullStep{.step = 3,
                           .epoch = 0,
                           .loss = 0,
                           .loss_mean = 0,
                           .grad_norm = 0,
                           .learning_rate = 0,
                           .tokens_per_s = 0,
                           .step_ms = 0,
                           .data_wait_ms = 0,
                           .train_s = 0,
                           .cpu_percent = 0,
                           .host_memory_gib = 0};

EvalRecord eval_of(const std::string& name) {
  EvalRecord record;
  record.name = name;
  record.loss = record.perplexity = record.token_accuracy = record.ece = 0;
  return record;
}

/// The file of a writer that got these.
template <typename... Records>
std::string written(const Records&... records) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  (writer.add(records), ...);
  writer.flush();
  return read_file(writer.path());
}

TEST(TensorBoard, RecordsAreTheGoldens) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(version_record(1.0), from_hex("1800000000000000"
                                          "a37f4b22"
                                          "09000000000000f03f1a0d627261696e2e4576656e743a32"
                                          "86bf577a"));
  const std::string record = scalar_record("train/loss", 0.5F, 10, 2.0);
  ASSERT_EQ(record.size(), 8U + 4U + 32U + 4U);
  EXPECT_EQ(u32_at(record, 0), 32U);
  EXPECT_EQ(u32_at(record, 8), 0x50a9ed29U);
  EXPECT_EQ(u32_at(record, 44), 0xd95ba04dU);
  EXPECT_NE(scalar_record("t", 0.0F, 300, 2.0).find(from_hex("10ac02")), std::string::npos) << "a longer varint";
}

TEST(TensorBoard, WritesVersionThenOneRecordPerScalar) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    TensorBoardWriter writer(folder / "tensorboard");
    path = writer.path();
    writer.add(kFullStep);
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

TEST(TensorBoard, HasWhatIsKnownOfTheGpuAndOfEachRank) {
  StepRecord record = kFullStep;
  record.gpu_utilization = 97;
  record.gpu_temperature_c = 65;
  record.gpu_throttle = {"power_cap"};
  const auto payloads = payloads_of(written(record));
  ASSERT_EQ(payloads.size(), 19U);
  EXPECT_TRUE(has_tag(payloads[17], "train/gpu_utilization"));
  EXPECT_TRUE(has_tag(payloads[18], "train/gpu_temperature_c"));
  record.rank_compute_ms = {1.5, 2};
  record.rank_data_wait_ms = {0, 3};
  record.rank_memory_gib = {7, 8};
  expect_parts(written(record), {"train/rank_compute_ms/0", "train/rank_compute_ms/1", "train/rank_data_wait_ms/1",
                                 "train/rank_memory_gib/0", "train/rank_memory_gib/1"});
}

TEST(TensorBoard, FurtherEvaluationSetsHaveTheirNameInTheTag) {
  const auto payloads = payloads_of(written(eval_of("val"), eval_of("hard"), eval_of("val")));
  for (const auto& [tag, times] :
       {std::pair{"eval/loss", 2}, {"eval/token_accuracy", 2}, {"eval/hard/loss", 1}, {"eval/val/loss", 0}}) {
    const auto has = [name = std::string(tag)](const std::string& payload) { return has_tag(payload, name); };
    EXPECT_EQ(std::count_if(payloads.begin(), payloads.end(), has), times) << tag;
  }
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
  expect_parts(text, {"args", "    output_dir: runs/a\n", "train/train_runtime", "train/train_steps_per_second"});
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
  expect_parts(read_file(writer.path()),
               {"eval/loss\x15", "eval/runtime\x15", "eval/samples_per_second\x15", "eval/val_loss\x15",
                "eval/val_runtime\x15", "eval/val_samples_per_second\x15"});
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
  EXPECT_NE(TensorBoardWriter(folder.path()).path(), TensorBoardWriter(folder.path()).path());
}

}  // namespace
}  // namespace lora_train::report

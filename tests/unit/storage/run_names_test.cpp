#include "lora_train/storage/run_names.h"

#include <gtest/gtest.h>

#include <limits>

namespace lora_train::storage {
namespace {

TEST(RunNames, ACheckpointIsFoundByTheNameItWasGiven) {
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{7}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(checkpoint_step(checkpoint_name(step)), step);
    EXPECT_EQ(checkpoint_step(std::filesystem::path("runs") / checkpoint_name(step)), step);
    EXPECT_TRUE(is_run_name(checkpoint_name(step)));
  }
}

TEST(RunNames, OtherNamesAreNoCheckpoint) {
  for (const char* name :
       {"", "checkpoint", "checkpoint-", "checkpoint--1", "checkpoint-+1", "checkpoint- 1", "checkpoint-1x",
        "checkpoint-best", "Checkpoint-1", "checkpoint-9223372036854775808", "checkpoint-1.tmp"}) {
    EXPECT_EQ(checkpoint_step(name), std::nullopt) << name;
    EXPECT_FALSE(is_run_name(name)) << name;
  }
}

TEST(RunNames, ARunOwnsWhatItWritesAndNothingElse) {
  for (const char* name :
       {"run.json", "profile.yaml", "run.log", "metrics.jsonl", "eval_losses.jsonl", "eval_answers.jsonl",
        "summary.json", "report.html", "curves.png", "tensorboard", "adapter", "model"}) {
    EXPECT_TRUE(is_run_name(name)) << name;
  }
  for (const char* name : {".lora-train.lock", ".lora-train-replaced", "notes.txt", "train.jsonl", "run.log.1"}) {
    EXPECT_FALSE(is_run_name(name)) << name;
  }
  EXPECT_TRUE(is_checkpoint_file("optimizer.safetensors"));
  EXPECT_FALSE(is_checkpoint_file("tokenizer.json"));
  EXPECT_TRUE(is_result_file("tokenizer.json"));
  EXPECT_FALSE(is_result_file("optimizer.safetensors"));
}

}  // namespace
}  // namespace lora_train::storage

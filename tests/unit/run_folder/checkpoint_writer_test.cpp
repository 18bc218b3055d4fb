#include <gtest/gtest.h>

#include <atomic>

#include "lora_train/base/error.h"
#include "lora_train/run_folder/checkpoint.h"
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

using testing_support::SmallCheckpoint;
using testing_support::TemporaryFolder;

TEST(CheckpointWriter, SavesInTheBackgroundAndRotates) {
  const TemporaryFolder folder;
  CheckpointWriter saver({folder.path(), 2, {}});
  EXPECT_FALSE(saver.is_busy());
  EXPECT_FALSE(saver.poll().has_value());
  EXPECT_FALSE(saver.wait().has_value());
  for (const std::int64_t step : {1, 2, 3}) {
    const SmallCheckpoint made(step);
    saver.start(made.contents());
    EXPECT_TRUE(saver.is_busy());
    const auto result = saver.wait();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->step, step);
    EXPECT_EQ(result->error, nullptr);
    EXPECT_GT(result->durable_s, 0);
    EXPECT_EQ(verify(result->folder), "");
  }
  EXPECT_EQ(list(folder.path()).size(), 2u);
}

TEST(CheckpointWriter, WorksWhileTheCallerDoes) {
  const TemporaryFolder folder;
  CheckpointWriter saver({folder.path(), std::nullopt, {}});
  const SmallCheckpoint made(1);
  Contents contents = made.contents();
  std::atomic<bool> may_go_on = false;
  contents.files[0].tensors[0].produce = [&]() -> std::string_view {
    may_go_on.wait(false);
    return made.bytes();
  };
  saver.start(std::move(contents));
  EXPECT_FALSE(saver.poll().has_value());
  EXPECT_TRUE(saver.is_busy());
  may_go_on = true;
  may_go_on.notify_all();
  saver.settle();
  EXPECT_TRUE(saver.poll().has_value());
  EXPECT_FALSE(saver.is_busy());
}

TEST(CheckpointWriter, HandsOverWhatWentWrong) {
  const TemporaryFolder folder;
  CheckpointWriter saver({folder / "none", std::nullopt, {}});
  const SmallCheckpoint made(1);
  saver.start(made.contents());
  const auto result = saver.wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_THROW(std::rethrow_exception(result->error), IoError);
}

TEST(CheckpointWriter, ItsEndWaitsForTheSaveUnderWay) {
  const TemporaryFolder folder;
  const SmallCheckpoint made(1);
  { CheckpointWriter({folder.path(), std::nullopt, {}}).start(made.contents()); }
  EXPECT_EQ(verify(folder / "checkpoint-1"), "");
}

}  // namespace
}  // namespace lora_train::run_folder

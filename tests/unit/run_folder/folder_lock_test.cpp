#include "lora_train/run_folder/folder_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/run_names.h"
#include "support/expect_refused.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

using testing_support::TemporaryFolder;

TEST(FolderLock, KeepsASecondRunOutAndNamesTheFirst) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder / "run");
    testing_support::expect_refused([&] { const FolderLock second(folder / "run"); }, "",
                                    {"process " + std::to_string(::getpid())}, ExitCode::kUsage);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
  EXPECT_NO_THROW(FolderLock(folder / "run"));
}

TEST(FolderLock, TakesOverWhatADeadProcessLeft) {
  const TemporaryFolder folder;
  write_file_atomic(folder / ".lora-train.lock",
                    "process 1 on a-much-longer-name-than-ours-so-that-a-rest-would-show-up.example.org");
  const FolderLock lock(folder.path());
  EXPECT_EQ(read_file(folder / ".lora-train.lock").find("example.org"), std::string::npos);
}

TEST(FolderLock, LeavesFilesOfOthersAlone) {
  const TemporaryFolder folder;
  const auto file = folder / storage::kLockFile;
  write_file_atomic(file, "not a lock");
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
  EXPECT_EQ(read_file(file), "not a lock");
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
}

TEST(FolderLock, FollowsNoLinkEvenToWhatLooksLikeALock) {
  const TemporaryFolder folder;
  const auto link = folder / ".lora-train.lock";
  std::filesystem::create_symlink("mine", link);
  for (const char* content : {"mine", "", "process 1 on example.org"}) {
    write_file_atomic(folder / "mine", content);
    EXPECT_THROW(FolderLock(folder.path()), ConfigError);
    EXPECT_EQ(read_file(folder / "mine"), content);
  }
  std::filesystem::remove(link);
  std::filesystem::create_symlink("nothing", link);
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder / "nothing"));
}

TEST(FolderLock, AFolderThatCannotBeMadeIsAnIoError) { EXPECT_THROW(FolderLock("/dev/null/run"), IoError); }

}  // namespace
}  // namespace lora_train::run_folder

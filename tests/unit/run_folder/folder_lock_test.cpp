#include "lora_train/run_folder/folder_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/run_names.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

using testing_support::TemporaryFolder;

TEST(FolderLock, KeepsASecondRunOutAndNamesTheFirst) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder / "run");
    try {
      const FolderLock second(folder / "run");
      FAIL() << "locked twice";
    } catch (const ConfigError& error) {
      EXPECT_NE(error.message().find("process " + std::to_string(::getpid())), std::string::npos) << error.message();
    }
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
  write_file_atomic(folder / "mine", "mine");
  write_file_atomic(folder / storage::kLockFile, "not a lock");
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
  EXPECT_EQ(read_file(folder / storage::kLockFile), "not a lock");
  std::filesystem::remove(folder / storage::kLockFile);
  std::filesystem::create_symlink("mine", folder / storage::kLockFile);
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
  EXPECT_EQ(read_file(folder / "mine"), "mine");
  std::filesystem::remove(folder / storage::kLockFile);
  ASSERT_EQ(::mkfifo((folder / storage::kLockFile).c_str(), 0600), 0);
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
}

TEST(FolderLock, FollowsNoLinkToWhatLooksLikeALock) {
  for (const char* content : {"", "process 1 on example.org"}) {
    const TemporaryFolder folder;
    write_file_atomic(folder / "mine", content);
    std::filesystem::create_symlink("mine", folder / ".lora-train.lock");
    EXPECT_THROW(FolderLock(folder.path()), ConfigError);
    EXPECT_EQ(read_file(folder / "mine"), content);
  }
  const TemporaryFolder folder;
  std::filesystem::create_symlink("nothing", folder / ".lora-train.lock");
  EXPECT_THROW(FolderLock(folder.path()), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder / "nothing"));
}

TEST(FolderLock, AFolderThatCannotBeMadeIsAnIoError) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "file", "");
  EXPECT_THROW(FolderLock(folder / "file" / "run"), IoError);
}

}  // namespace
}  // namespace lora_train::run_folder

#include "lora_train/storage/atomic_folder.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(AtomicFolder, AppearsWithAllItsFilesAtTheCommit) {
  const TemporaryFolder folder;
  AtomicFolder made(folder / "result");
  fs::create_directory(made.path() / "inner");
  write_file_atomic(made.path() / "inner" / "a", "deep");
  write_file_atomic(made.path() / "b", "flat");
  EXPECT_EQ(made.path().parent_path(), folder.path());
  EXPECT_FALSE(fs::exists(folder / "result"));
  made.commit();
  EXPECT_EQ(read_file(folder / "result" / "inner" / "a"), "deep");
  EXPECT_EQ(read_file(folder / "result" / "b"), "flat");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"result"});
}

TEST(AtomicFolder, TakesThePlaceOfAnOlderOneWhole) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "result");
  write_file_atomic(folder / "result" / "old", "old");
  AtomicFolder made(folder / "result");
  write_file_atomic(made.path() / "new", "new");
  EXPECT_EQ(names_in(folder / "result"), std::vector<std::string>{"old"});
  made.commit();
  EXPECT_EQ(names_in(folder / "result"), std::vector<std::string>{"new"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"result"});
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "result");
  {
    AtomicFolder made(folder / "result");
    write_file_atomic(made.path() / "new", "new");
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"result"});
  EXPECT_TRUE(fs::is_empty(folder / "result"));
}

TEST(AtomicFolder, StartsEmptyWhereADeadProcessLeftOne) {
  const TemporaryFolder folder;
  const fs::path left = AtomicFolder(folder / "result").path();
  fs::create_directory(left);
  write_file_atomic(left / "half", "half");
  const AtomicFolder made(folder / "result");
  EXPECT_EQ(made.path(), left);
  EXPECT_TRUE(fs::is_empty(made.path()));
}

TEST(AtomicFolder, ReportsAMissingParent) {
  const TemporaryFolder folder;
  EXPECT_THROW(AtomicFolder(folder / "none" / "result"), IoError);
}

}  // namespace
}  // namespace lora_train::storage

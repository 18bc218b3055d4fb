#include "lora_train/storage/atomic_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

fs::path only_entry(const fs::path& folder) { return fs::directory_iterator(folder)->path(); }

TEST(AtomicFolder, AppearsWithAllItsFilesAtTheCommit) {
  const TemporaryFolder folder;
  AtomicFolder made(folder / "result");
  made.write({{"a", "first"}, {"b", "", {{"t", DType::kU8, {2}, "xy", nullptr}}}});
  made.write({{"c", ""}});
  EXPECT_FALSE(fs::exists(folder / "result"));
  made.commit();
  EXPECT_EQ(read_file(folder / "result" / "a"), "first");
  EXPECT_EQ(SafetensorsFile(folder / "result" / "b").tensors().size(), 1u);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"result"});
  ASSERT_EQ(made.files().size(), 3u);
  for (const auto& [name, file] : made.files()) {
    const FileHash read = hash_file(folder / "result" / name);
    EXPECT_EQ(file.num_bytes, read.num_bytes);
    EXPECT_EQ(file.hash, read.hash);
  }
}

TEST(AtomicFolder, TakesThePlaceOfAnOlderOneWhole) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "result" / "inner");
  write_file_atomic(folder / "result" / "inner" / "old", "old");
  {
    AtomicFolder made(folder / "result");
    made.write({{"new", "new"}});
    EXPECT_EQ(list_folder(folder / "result"), std::vector<std::string>{"inner"});
    made.commit();
  }
  EXPECT_EQ(list_folder(folder / "result"), std::vector<std::string>{"new"});
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"result"});
}

TEST(AtomicFolder, TakesBackWhatItCommitted) {
  for (const bool has_older : {false, true}) {
    const TemporaryFolder folder;
    if (has_older) {
      fs::create_directory(folder / "result");
      write_file_atomic(folder / "result" / "old", "old");
    }
    {
      AtomicFolder made(folder / "result");
      made.write({{"new", "new"}});
      made.commit();
      made.take_back();
    }
    EXPECT_EQ(fs::exists(folder / "result" / "old"), has_older);
    EXPECT_FALSE(fs::exists(folder / "result" / "new"));
    EXPECT_EQ(list_folder(folder.path()).size(), has_older ? 1U : 0U);
  }
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "result");
  {
    AtomicFolder made(folder / "result");
    made.write({{"new", "new"}});
  }
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"result"});
  EXPECT_TRUE(fs::is_empty(folder / "result"));
}

TEST(AtomicFolder, NeverTakesANameThatIsThere) {
  const TemporaryFolder folder;
  const fs::path first = AtomicFolder(folder / "result").temporary();
  fs::create_directory(first);
  write_file_atomic(first / "mine", "mine");
  const AtomicFolder made(folder / "result");
  EXPECT_NE(made.temporary(), first);
  EXPECT_EQ(read_file(first / "mine"), "mine");
}

std::vector<std::string> own_files(const fs::path& folder) {
  std::vector<std::string> names = list_folder(folder);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("own"); });
  return names;
}

/// result/ with our files and others'.
void make_mixed(const fs::path& folder) {
  fs::create_directories(folder / "evals");
  for (const char* name : {"own1", "own2", "notes", "evals/mmlu"}) write_file_atomic(folder / name, "old");
}

TEST(AtomicFolder, WhatOthersPutThereMovesToTheNewOne) {
  const TemporaryFolder folder;
  make_mixed(folder / "result");
  {
    AtomicFolder replacement(folder / "result", own_files);
    replacement.write({{"own1", "new"}});
    replacement.commit();
  }
  EXPECT_EQ(read_file(folder / "result" / "own1"), "new");
  EXPECT_EQ(read_file(folder / "result" / "evals" / "mmlu"), "old");
  EXPECT_EQ(list_folder(folder / "result").size(), 3U);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"result"});
}

TEST(AtomicFolder, WhatOthersPutThereSurvivesADeletion) {
  const TemporaryFolder folder;
  make_mixed(folder / "result");
  delete_folder(folder / "result", own_files);
  EXPECT_EQ(list_folder(folder / "result").size(), 2U);
  EXPECT_EQ(read_file(folder / "result" / "notes"), "old");
  delete_folder(folder / "result");
  EXPECT_TRUE(fs::is_empty(folder.path())) << "without own files, all goes";
  EXPECT_THROW(AtomicFolder(folder / "none" / "result"), IoError);
}

TEST(AtomicFolder, WhatOthersPutThereComesBackFromALeftover) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "result");
  make_mixed(folder / ".tmp-result-12");
  fs::create_directory(folder / ".tmp-result-13");
  write_file_atomic(folder / ".tmp-result-13" / "photo.jpg", "nothing here is ours");
  delete_temporaries(
      folder.path(), [](const std::string& name) { return name == "result"; }, own_files);
  EXPECT_EQ(read_file(folder / "result" / "evals" / "mmlu"), "old");
  EXPECT_EQ(list_folder(folder / "result").size(), 2U);
  EXPECT_FALSE(fs::exists(folder / ".tmp-result-12"));
  EXPECT_TRUE(fs::exists(folder / ".tmp-result-13" / "photo.jpg"));
}

TEST(AtomicFolder, ReservesAllFilesBeforeItWritesOne) {
  const TemporaryFolder folder;
  bool was_asked = false;
  TensorToWrite small{"t", DType::kU8, {4}, "", [&] {
                        was_asked = true;
                        return std::string_view("abcd");
                      }};
  const testing_support::FileSizeLimit full_disk(1 << 20);
  AtomicFolder made(folder / "result");
  EXPECT_THROW(made.write({{"a", "", {small}}, {"b", std::string(std::size_t{2} << 20, 'x')}}), IoError);
  EXPECT_FALSE(was_asked);
  EXPECT_TRUE(fs::is_empty(only_entry(folder.path())));
}

TEST(AtomicFolder, TemporariesOfOthersStay) {
  const TemporaryFolder folder;
  for (const char* name : {".tmp-result-12", ".tmp-other-12", ".tmp-result-7-12", "result"}) {
    fs::create_directory(folder / name);
  }
  write_file_atomic(folder / ".tmp-result-1-2", "of a file");
  write_file_atomic(folder / ".tmp-result-12-", "no number");
  delete_temporaries(folder.path(), [](const std::string& name) { return name == "result"; });
  EXPECT_EQ(list_folder(folder.path()).size(), 4u);
  EXPECT_FALSE(fs::exists(folder / ".tmp-result-12"));
  EXPECT_FALSE(fs::exists(folder / ".tmp-result-1-2"));
}

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

std::string problem_with(const fs::path& folder) {
  return testing_support::refusal<IoError>([&] { make_private_folder(folder); });
}

class UmaskZero {
 public:
  ~UmaskZero() { ::umask(previous_); }

 private:
  mode_t previous_ = ::umask(0);
};

TEST(PrivateFolder, IsCreatedForThisUserOnlyWithTheFoldersAboveIt) {
  const UmaskZero umask;
  const TemporaryFolder folder;
  EXPECT_EQ(problem_with(folder / "a/b/c/"), "accepted");
  EXPECT_EQ(mode_of(folder / "a"), 0700U);
  EXPECT_EQ(mode_of(folder / "a/b/c"), 0700U);
}

TEST(PrivateFolder, IsClosedToReadersAndRefusedWhereOthersMayWrite) {
  const TemporaryFolder folder;
  const fs::path cache = folder / "cache";
  fs::create_directory(cache);
  ::chmod(cache.c_str(), 0755);
  EXPECT_EQ(problem_with(cache), "accepted");
  EXPECT_EQ(mode_of(cache), 0700U);
  for (const mode_t mode : {0770U, 0707U, 01777U}) {
    ::chmod(cache.c_str(), mode);
    EXPECT_SAYS(problem_with(cache), "can be written to by others") << mode;
    EXPECT_EQ(mode_of(cache), mode);
  }
}

TEST(PrivateFolder, RefusesALinkAndAFile) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "target");
  fs::create_directory_symlink(folder / "target", folder / "link");
  fs::create_directory_symlink(folder / "nowhere", folder / "dangling");
  write_file_atomic(folder / "file", "mine");
  for (const char* name : {"link", "link/", "dangling"}) EXPECT_SAYS(problem_with(folder / name), "is a link") << name;
  EXPECT_SAYS(problem_with(folder / "file"), "is not a folder");
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

TEST(PrivateFolder, RefusesTheFolderOfAnotherUser) {
  const TemporaryFolder folder;
  fs::path foreign = "/usr";
  if (::geteuid() == 0) {
    foreign = folder / "foreign";
    fs::create_directory(foreign);
    ASSERT_EQ(::chown(foreign.c_str(), 12345, 12345), 0);
    ::chmod(foreign.c_str(), 0755);
  }
  EXPECT_SAYS(problem_with(foreign), "belongs to user");
  EXPECT_EQ(mode_of(foreign), 0755U);
}

}  // namespace
}  // namespace lora_train::storage

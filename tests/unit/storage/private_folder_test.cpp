#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/storage/atomic_folder.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

std::string problem_with(const fs::path& folder) {
  try {
    make_private_folder(folder);
    return "";
  } catch (const IoError& error) {
    return error.what();
  }
}

class UmaskZero {
 public:
  ~UmaskZero() { ::umask(previous_); }

 private:
  mode_t previous_ = ::umask(0);
};

TEST(PrivateFolder, IsCreatedForThisUserOnlyWithTheFoldersAboveIt) {
  const UmaskZero umask;
  const testing_support::TemporaryFolder folder;
  EXPECT_EQ(problem_with(folder / "a/b/c/"), "");
  EXPECT_EQ(mode_of(folder / "a"), 0700U);
  EXPECT_EQ(mode_of(folder / "a/b/c"), 0700U);
}

TEST(PrivateFolder, ClosesAFolderOfThisUserToReaders) {
  const testing_support::TemporaryFolder folder;
  fs::create_directory(folder / "cache");
  ::chmod((folder / "cache").c_str(), 0755);
  EXPECT_EQ(problem_with(folder / "cache"), "");
  EXPECT_EQ(mode_of(folder / "cache"), 0700U);
}

TEST(PrivateFolder, RefusesAFolderThatOthersMayWriteTo) {
  const testing_support::TemporaryFolder folder;
  fs::create_directory(folder / "cache");
  for (const mode_t mode : {0770U, 0707U, 01777U}) {
    ::chmod((folder / "cache").c_str(), mode);
    EXPECT_NE(problem_with(folder / "cache").find("can be written to by others"), std::string::npos) << mode;
    EXPECT_EQ(mode_of(folder / "cache"), mode);
  }
}

TEST(PrivateFolder, RefusesALinkAndAFile) {
  const testing_support::TemporaryFolder folder;
  fs::create_directory(folder / "target");
  fs::create_directory_symlink(folder / "target", folder / "link");
  fs::create_directory_symlink(folder / "nowhere", folder / "dangling");
  std::ofstream(folder / "file") << "mine";
  for (const char* name : {"link", "link/", "dangling"}) {
    EXPECT_NE(problem_with(folder / name).find("is a link"), std::string::npos) << name;
  }
  EXPECT_NE(problem_with(folder / "file").find("is not a folder"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

TEST(PrivateFolder, RefusesTheFolderOfAnotherUser) {
  const testing_support::TemporaryFolder folder;
  fs::path foreign = "/usr";
  if (::geteuid() == 0) {
    foreign = folder / "foreign";
    fs::create_directory(foreign);
    ASSERT_EQ(::chown(foreign.c_str(), 12345, 12345), 0);
    ::chmod(foreign.c_str(), 0755);
  }
  EXPECT_NE(problem_with(foreign).find("belongs to user"), std::string::npos) << problem_with(foreign);
  EXPECT_EQ(mode_of(foreign), 0755U);
}

}  // namespace
}  // namespace lora_train::storage

#include "lora_train/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "lora_train/base/error.h"
#include "support/temporary_folder.h"

namespace {
int interruptions = 0;
}

/// In place of the C library's: a signal whose handler came without SA_RESTART interrupts it.
extern "C" int posix_fallocate(int fd, off_t offset, off_t length) {
  if (interruptions > 0) {
    --interruptions;
    return EINTR;
  }
  return ::fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
}

namespace lora_train {
namespace {

using testing_support::TemporaryFolder;

TEST(AtomicFile, ReplacesTheOldFileWhole) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "old");
  write_file_atomic(folder / "a", "new content");
  EXPECT_EQ(read_file(folder / "a"), "new content");
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "old");
  {
    AtomicFileWriter writer(folder / "a", 100);
    writer.write("half");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, CutsWhatWasReservedTooMuch) {
  const TemporaryFolder folder;
  AtomicFileWriter writer(folder / "a", 1000);
  writer.write("abc");
  writer.commit();
  EXPECT_EQ(read_file(folder / "a"), "abc");
}

TEST(AtomicFile, SignalsWhileItReservesSpaceAreNoFailure) {
  const TemporaryFolder folder;
  interruptions = 2;
  EXPECT_NO_THROW(write_file_atomic(folder / "a", "abc"));
  EXPECT_EQ(interruptions, 0);
  EXPECT_EQ(read_file(folder / "a"), "abc");
}

TEST(AtomicFile, ReportsAMissingFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_file_atomic(folder / "none" / "a", "x"), IoError);
}

/// Pages of this process that lie in the map of a file, in KiB.
long resident_kib(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  while (std::getline(maps, line) && line.find(path.string()) == std::string::npos) {
  }
  while (std::getline(maps, line)) {
    if (line.starts_with("Rss:")) return std::stol(line.substr(4));
  }
  return -1;
}

TEST(MappedFile, ReadsAndReleasesItsPages) {
  const TemporaryFolder folder;
  const std::string bytes(1 << 20, 'x');
  write_file_atomic(folder / "a", bytes);
  const MappedFile map(folder / "a");
  EXPECT_EQ(map.bytes(), bytes);
  EXPECT_EQ(resident_kib(map.path()), 1024);
  map.release(0, map.size());
  EXPECT_EQ(resident_kib(map.path()), 0);
  EXPECT_EQ(map.bytes(), bytes);
  EXPECT_THROW(MappedFile(folder / "b"), IoError);
}

}  // namespace
}  // namespace lora_train

#include "lora_train/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "lora_train/base/error.h"
#include "support/faulty_file_ops.h"
#include "support/temporary_folder.h"

namespace lora_train {
namespace {

using testing_support::Fault;
using testing_support::FaultyFileOps;
using testing_support::ScopedFileOps;
using testing_support::TemporaryFolder;

TEST(File, ReadsItsStart) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "abc");
  EXPECT_EQ(read_start(folder / "a", 2), "ab");
  EXPECT_EQ(read_start(folder / "a", 100), "abc");
  EXPECT_THROW(read_start(folder / "none", 2), IoError);
}

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

TEST(AtomicFile, SignalsAndShortWritesAreNoFailure) {
  const TemporaryFolder folder;
  FaultyFileOps faulty(file_ops());
  const ScopedFileOps scope(faulty);
  faulty.arm(Fault::kShort, 0, true);
  write_file_atomic(folder / "a", "abcdefgh");
  EXPECT_EQ(read_file(folder / "a"), "abcdefgh");
  faulty.arm(Fault::kNone);
  write_file_atomic(folder / "a", "abc");
  for (std::size_t at = 0, end = faulty.num_operations(); at < end; ++at) {
    faulty.arm(Fault::kInterrupted, at);
    EXPECT_NO_THROW(write_file_atomic(folder / "a", std::to_string(at))) << at;
    faulty.arm(Fault::kNone);
    EXPECT_EQ(read_file(folder / "a"), std::to_string(at));
  }
}

TEST(AtomicFile, ASystemThatIsInterruptedForEverIsAnErrorAndNoHang) {
  const TemporaryFolder folder;
  FaultyFileOps faulty(file_ops());
  const ScopedFileOps scope(faulty);
  faulty.arm(Fault::kInterrupted, 0, true);
  EXPECT_THROW(write_file_atomic(folder / "a", "abc"), IoError);
}

TEST(AtomicFile, AFullDiskIsNamedWithWhatIsFree) {
  const TemporaryFolder folder;
  FaultyFileOps faulty(file_ops());
  const ScopedFileOps scope(faulty);
  faulty.arm(Fault::kNoSpace, 1);
  try {
    AtomicFileWriter(folder / "a", 3 << 20);
    FAIL();
  } catch (const IoError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("cannot reserve 3.0 MiB ("), std::string::npos) << message;
    EXPECT_NE(message.find("are free): No space left on device"), std::string::npos) << message;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AtomicFile, ReportsAMissingFolder) {
  const TemporaryFolder folder;
  try {
    write_file_atomic(folder / "none" / "a", "x");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.where(), (folder / "none" / "a").string());
    EXPECT_NE(error.message().find("its folder does not exist"), std::string::npos) << error.message();
  }
}

TEST(AtomicFile, ErrorsNameTheFileAndNotTheTemporaryOne) {
  const TemporaryFolder folder;
  FaultyFileOps faulty(file_ops());
  const ScopedFileOps scope(faulty);
  write_file_atomic(folder / "a", "abc");
  std::size_t num_failed = 0;
  for (std::size_t at = 0, end = faulty.num_operations(); at < end; ++at) {
    faulty.arm(Fault::kNoSpace, at);
    try {
      write_file_atomic(folder / "a", "abc");
    } catch (const IoError& error) {
      ++num_failed;
      EXPECT_EQ(std::string(error.what()).find(".tmp-"), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(num_failed, 4U);  // create, reserve, write, sync
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

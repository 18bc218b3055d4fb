#include "lora_train/base/file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/faulty_file_ops.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train {
namespace {

using testing_support::Fault;
using testing_support::refusal;

class AtomicFile : public ::testing::Test {
 protected:
  testing_support::TemporaryFolder folder;
};
using MappedFileTest = AtomicFile;

/// On a file system that a test makes fail.
class FaultyFile : public AtomicFile {
 protected:
  testing_support::FaultyFileOps faulty{file_ops()};
  const testing_support::ScopedFileOps scope{faulty};
};

TEST_F(AtomicFile, ReadsItsStart) {
  write_file_atomic(folder / "a", "abc");
  EXPECT_EQ(read_start(folder / "a", 2), "ab");
  EXPECT_EQ(read_start(folder / "a", 100), "abc");
  EXPECT_THROW(read_start(folder / "none", 2), IoError);
}

TEST_F(AtomicFile, ReplacesTheOldFileWholeWithACommit) {
  write_file_atomic(folder / "a", "old");
  {
    AtomicFileWriter writer(folder / "a", 100);
    writer.write("half");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  AtomicFileWriter writer(folder / "a", 1000);
  writer.write("new");
  writer.commit();
  EXPECT_EQ(read_file(folder / "a"), "new") << "what was reserved too much is cut off";
}

TEST_F(FaultyFile, SignalsAndShortWritesAreNoFailure) {
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
  faulty.arm(Fault::kInterrupted, 0, true);
  EXPECT_THROW(write_file_atomic(folder / "a", "abc"), IoError) << "for ever";
}

TEST_F(FaultyFile, AFullDiskIsNamedWithWhatIsFree) {
  faulty.arm(Fault::kNoSpace, 1);
  const std::string message = refusal<IoError>([&] { AtomicFileWriter(folder / "a", 3 << 20); });
  EXPECT_SAYS(message, "cannot reserve 3.0 MiB (");
  EXPECT_SAYS(message, "are free): No space left on device");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(AtomicFile, ReportsAMissingFolder) {
  const auto file = folder / "none" / "a";
  EXPECT_SAYS(refusal<IoError>([&] { write_file_atomic(file, "x"); }), file.string() + ": ");
  EXPECT_SAYS(refusal<IoError>([&] { write_file_atomic(file, "x"); }), "its folder does not exist");
}

TEST_F(FaultyFile, ErrorsNameTheFileAndNotTheTemporaryOne) {
  write_file_atomic(folder / "a", "abc");
  int num_failed = 0;
  for (std::size_t at = 0, end = faulty.num_operations(); at < end; ++at) {
    faulty.arm(Fault::kNoSpace, at);
    const std::string message = refusal<IoError>([&] { write_file_atomic(folder / "a", "abc"); });
    num_failed += message != "accepted" ? 1 : 0;
    EXPECT_EQ(message.find(".tmp-"), std::string::npos) << message;
  }
  EXPECT_GE(num_failed, 4);  // create, reserve, write, sync
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

TEST_F(MappedFileTest, ReadsAndReleasesItsPages) {
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

#include "lora_train/base/file.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "support/temporary_folder.h"

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

TEST(AtomicFile, ReportsAMissingFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_file_atomic(folder / "none" / "a", "x"), IoError);
}

TEST(MappedFile, ReadsAndSurvivesRelease) {
  const TemporaryFolder folder;
  const std::string bytes(100000, 'x');
  write_file_atomic(folder / "a", bytes);
  const MappedFile map(folder / "a");
  map.release(0, map.size());
  EXPECT_EQ(map.bytes(), bytes);
  EXPECT_THROW(MappedFile(folder / "b"), IoError);
}

}  // namespace
}  // namespace lora_train

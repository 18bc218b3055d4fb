#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "lora_train/base/error.h"
#include "output/doctor_report.h"
#include "support/temporary_folder.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

TEST(DiskSpeed, WritesReadsBackAndLeavesNothing) {
  const testing_support::TemporaryFolder folder;
  const std::uint64_t bytes = (std::uint64_t{9} << 20) + 5;  // no whole number of blocks
  const DiskSpeed speed = measure_disk(folder.path(), bytes);
  EXPECT_EQ(speed.folder, folder.path());
  EXPECT_EQ(speed.num_bytes, bytes);
  EXPECT_GT(speed.free_bytes, bytes);
  EXPECT_GT(speed.write_bytes_per_s, 0);
  EXPECT_GT(speed.read_bytes_per_s, 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DiskSpeed, LookingWritesNothing) {
  const DiskSpeed speed = look_at_disk(fs::temp_directory_path());
  EXPECT_GT(speed.free_bytes, 0u);
  EXPECT_EQ(speed.num_bytes, 0u);
}

TEST(DiskSpeed, FolderThatCannotHoldAFile) {
  EXPECT_THROW(measure_disk("/proc/self"), IoError);
  EXPECT_THROW(look_at_disk("/no/such/folder"), IoError);
}

TEST(DiskSpeed, FolderThatIsNotThereYetIsTheNearestAbove) {
  const testing_support::TemporaryFolder folder;
  EXPECT_EQ(existing_folder(folder / "runs/first"), folder.path());
  EXPECT_EQ(existing_folder(folder.path()), folder.path());
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(existing_folder(folder / "file"), folder.path());
  EXPECT_EQ(existing_folder("/no-such-folder/x"), "/");
}

}  // namespace
}  // namespace lora_train::cli

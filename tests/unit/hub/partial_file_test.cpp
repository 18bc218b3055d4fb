#include <gtest/gtest.h>

#include "cache_folder.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::hub {
namespace {

using testing_support::TemporaryFolder;

TEST(PartialFile, SegmentsCoverTheFile) {
  const TemporaryFolder folder;
  const PartialFile file(folder.path() / "a", 2 * kSegmentBytes + 5);
  ASSERT_EQ(file.num_segments(), 3U);
  EXPECT_EQ(file.end(0), file.begin(1));
  EXPECT_EQ(file.end(1), file.begin(2));
  EXPECT_EQ(file.end(2), 2 * kSegmentBytes + 5);
  EXPECT_EQ(PartialFile(folder.path() / "empty", 0).num_segments(), 0U);
}

TEST(PartialFile, GoesOnWhereItStopped) {
  const TemporaryFolder folder;
  const std::uint64_t size = kSegmentBytes + 4;
  {
    PartialFile file(folder.path() / "a", size);
    file.append(1, "ab");
    file.append(0, "xyz");
  }
  PartialFile file(folder.path() / "a", size);
  EXPECT_EQ(file.num_missing(0), kSegmentBytes - 3);
  EXPECT_EQ(file.num_missing(1), 2U);
  file.append(1, "cd");
  EXPECT_EQ(file.num_done(), 7U);
  file.publish(folder.path() / "whole");
  const std::string bytes = read_file(folder.path() / "whole");
  EXPECT_EQ(bytes.size(), size);
  EXPECT_EQ(bytes.substr(0, 3) + bytes.substr(kSegmentBytes), "xyzabcd");
}

TEST(PartialFile, MoreThanTheSegmentLacksIsRefused) {
  const TemporaryFolder folder;
  PartialFile file(folder.path() / "a", 4);
  file.append(0, "abc");
  EXPECT_THROW(file.append(0, "de"), IoError);
}

TEST(PartialFile, AFileOfAnotherLayoutIsBegunAnew) {
  const TemporaryFolder folder;
  for (const std::string& bytes : {std::string("short"), std::string(4 + 8, '\xff'), std::string(100, 'x')}) {
    write_file_atomic(folder.path() / "a", bytes);
    EXPECT_EQ(PartialFile(folder.path() / "a", 4).num_done(), 0U);
  }
}

}  // namespace
}  // namespace lora_train::hub

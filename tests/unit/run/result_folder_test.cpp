#include "result_folder.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace lora_train::run {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(DiskSpace, IsRefusedBelowOneCheckpointAndTheResultAndWarnedOfBelowAllOfThem) {
  struct Case {
    const char* what;
    std::int64_t num_checkpoints;
    bool makes_room;
    std::int64_t least, most;
  };
  for (const Case& c :
       {Case{"a new run keeps two and writes a third", 3, false, 40, 100},
        Case{"a short run saves once", 1, false, 40, 40}, Case{"no steps are left", 0, false, 10, 10},
        Case{"a resume deletes one of two", 1, true, 30, 40}, Case{"an old run is deleted", 3, true, 30, 100}}) {
    SCOPED_TRACE(c.what);
    const DiskNeed need = {30 * kMiB, 10 * kMiB, c.num_checkpoints, c.makes_room};
    EXPECT_EQ(check_disk_space("/run", need, c.most * kMiB), "");
    EXPECT_NO_THROW(check_disk_space("/run", need, c.least * kMiB));
    if (c.most > c.least) {
      EXPECT_NE(check_disk_space("/run", need, c.most * kMiB - 1), "");
    }
    EXPECT_SAYS(testing_support::refusal<IoError>([&] { check_disk_space("/run", need, c.least * kMiB - 1); }),
                "/run: not even one checkpoint");
  }
  EXPECT_SAYS(check_disk_space("/run", {30 * kMiB, 10 * kMiB, 3}, 50 * kMiB),
              "will write up to 100.0 MiB (3 checkpoints of 30.0 MiB, the one being written included, and the result, "
              "10.0 MiB), but only 50.0 MiB are free");
}

}  // namespace
}  // namespace lora_train::run

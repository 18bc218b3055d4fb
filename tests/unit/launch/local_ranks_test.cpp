// --nproc with a program of the test's own (fake_rank.cpp) in place of ours.
#include "lora_train/launch/local_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "lora_train/device/host.h"
#include "support/run_command.h"
#include "support/temporary_folder.h"

namespace lora_train::launch {
namespace {

using testing_support::CommandResult;
using testing_support::TemporaryFolder;

class LocalRanksTest : public ::testing::Test {
 protected:
  LocalRanksTest() {
    for (const char* name : {"fifo", "fifo.ready"}) ::mkfifo((folder_ / name).c_str(), 0600);
  }

  std::string fifo() const { return (folder_ / "fifo").string(); }

  CommandResult run(int num_ranks, const std::string& name, const std::string& grace_s = "60",
                    const std::string& num_threads = "") const {
    return testing_support::run_command(
        {FAKE_RANK, std::to_string(num_ranks), grace_s, name, fifo()},
        {.environment = {{"TMPDIR", folder_.path().string()}, {"OMP_NUM_THREADS", num_threads}}});
  }

  TemporaryFolder folder_;
};

TEST_F(LocalRanksTest, EachRankKnowsItsPlaceAndItsPartOfTheCores) {
  const CommandResult result = run(2, "environment", "60", "3");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "0 of 2, local 0 of 2, threads 3, own group, folder\n");
  EXPECT_EQ(result.err, "[rank 1] 1 of 2, local 1 of 2, threads 3, own group, folder\n");
  const std::string part = std::to_string(std::max(1, device::count_physical_cores(device::usable_cpus()) / 2));
  EXPECT_EQ(run(2, "environment").out, "0 of 2, local 0 of 2, threads " + part + ", own group, folder\n");
}

TEST_F(LocalRanksTest, RemovesTheFolderOfTheJob) {
  run(2, "environment");
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("fifo")) << entry.path();
  }
}

TEST_F(LocalRanksTest, LinesOfOtherRanksHaveTheirRankOnce) {
  const CommandResult result = run(2, "output");
  EXPECT_EQ(result.out, "result\n");
  EXPECT_EQ(result.err, "[rank 1] one\n[rank 1] two\n[rank 1] \n[rank 1] three\n");
}

TEST_F(LocalRanksTest, OneCtrlCIsOneStopRequestOfEveryRank) { EXPECT_EQ(run(3, "signals").exit_code, 75); }

TEST_F(LocalRanksTest, ARankThatASignalEndsBeforeItHandlesAnyWasStopped) { EXPECT_EQ(run(2, "early").exit_code, 75); }

TEST_F(LocalRanksTest, ReturnsTheCodeOfTheFirstThatFails) { EXPECT_EQ(run(2, "first").exit_code, 3); }

TEST_F(LocalRanksTest, KillsWhatDoesNotEndAfterAFailure) {
  const CommandResult result = run(3, "fail", "0");
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(run(3, "die", "0").exit_code, 137);
}

TEST_F(LocalRanksTest, RanksAreAskedToStopWhenTheirLauncherDies) {
  const int fd = ::open(fifo().c_str(), O_RDONLY | O_NONBLOCK);  // before any rank opens the other end
  EXPECT_EQ(run(2, "orphans").exit_code, 137);
  ::fcntl(fd, F_SETFL, 0);
  const int writer = ::open(fifo().c_str(), O_WRONLY);  // no end of file between the two
  std::string bytes(2, ' ');
  for (char& byte : bytes) ASSERT_EQ(::read(fd, &byte, 1), 1);
  EXPECT_EQ(bytes, "TT");
  ::close(writer);
  ::close(fd);
}

TEST(LocalRanks, AProgramThatCannotBeStartedIsAFailure) {
  EXPECT_EQ(run_local_ranks({{"/no/such/program"}, 2, 60}), 127);
}

}  // namespace
}  // namespace lora_train::launch

// What ranks agree on without a collective: stops, deaths, errors, the end. Processes of one host, at real signals.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/ranks/connect.h"
#include "support/rank_processes.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::ranks {
namespace {

using testing_support::expect_all;
using testing_support::RankResult;
using testing_support::run_ranks;
using testing_support::TemporaryFolder;

constexpr int kRanks = 3;

/// What each rank returns, or "kind: text" of the error that ends it after it has been reported.
std::vector<RankResult> run(const std::function<std::string(Communicator&)>& body, Patience patience = {}) {
  const TemporaryFolder folder;
  return run_ranks(kRanks, [&](int rank) -> std::string {
    set_log_level(LogLevel::kOff);
    const StopRequests requests;
    const launch::World world = testing_support::world_of(rank, kRanks, folder.path(), launch::Launcher::kNone);
    const auto ranks = connect(world, {.patience = patience});
    try {
      return body(*ranks);
    } catch (...) {
      const ErrorReport error = describe_current_exception();
      const bool is_first = ranks->report(error);
      return error.kind + ": " + error.text() + (is_first ? " (first)" : "");
    }
  });
}

std::vector<RankResult> run_with_little_patience(const std::function<std::string(Communicator&)>& body) {
  return run(body, {.same_host = std::chrono::milliseconds(800)});
}

/// That all others name the rank that is lost.
void expect_named(const std::vector<RankResult>& results, int lost, const std::string& what = "") {
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string& text = results[static_cast<std::size_t>(rank)].text;
    if (rank == lost) continue;
    EXPECT_TRUE(text.starts_with("device: rank " + std::to_string(lost) + " of 3: ")) << text;
    EXPECT_SAYS(text, what);
  }
}

std::int64_t num_steps = 0;  // of this process

void step(Communicator& ranks) {
  throw_if_stop_requested();
  float value = 1;
  ranks.all_reduce(std::array{at::from_blob(&value, {1}, at::kFloat)});
  ++num_steps;
}

/// A rank of the run that takes steps until it is told to stop; `signalled` gets SIGTERM after `at` of them.
std::string train_until_stopped(Communicator& ranks, int signalled, std::int64_t at) {
  ranks.begin_steps();
  try {
    while (true) {
      step(ranks);
      if (ranks.rank() == signalled && num_steps == at) std::raise(SIGTERM);
    }
  } catch (const StopError& error) {
    ranks.end_steps();
    const auto all = ranks.all_gather(std::to_string(num_steps));
    const bool is_same = std::all_of(all.begin(), all.end(), [&](const auto& one) { return one == all[0]; });
    return error.where() + (is_same && num_steps >= at ? " at the same step, " : " at other steps, ") +
           std::to_string(ranks.leave(75));
  }
}

TEST(Control, AStopOfOneRankStopsAllAfterTheSameStep) {
  for (int signalled = 0; signalled < kRanks; ++signalled) {
    expect_all(run([&](Communicator& ranks) { return train_until_stopped(ranks, signalled, 20); }),
               "SIGTERM at the same step, 75");
  }
}

TEST(Control, AStopReachesRanksThatWaitForAnother) {
  // Rank 0 computes something long; the others have entered the collective, so rank 0 enters it as well before it stops.
  const auto results = run([](Communicator& ranks) {
    ranks.begin_steps();
    step(ranks);
    if (ranks.rank() == 1) std::raise(SIGTERM);
    if (ranks.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return train_until_stopped(ranks, -1, 1);
  });
  expect_all(results, "SIGTERM at the same step, 75");
}

TEST(Control, AStopBeforeTheFirstStepEndsAllAtOnce) {
  const auto results = run([](Communicator& ranks) -> std::string {
    ranks.all_gather("");
    try {
      if (ranks.rank() != 2) ranks.all_gather("waits for rank 2, which will not come");
      std::raise(SIGUSR1);
      while (true) throw_if_stop_requested();
    } catch (const StopError& error) {
      return error.where() + " " + std::to_string(ranks.leave(75));
    }
  });
  expect_all(results, "SIGUSR1 75");
}

TEST(Control, SurvivorsNameTheRankThatDied) {
  for (int killed = 0; killed < kRanks; ++killed) {
    const auto results = run([&](Communicator& ranks) -> std::string {
      ranks.begin_steps();
      step(ranks);
      if (ranks.rank() == killed) std::raise(SIGKILL);
      while (true) step(ranks);
    });
    expect_named(results, killed, " of 3: process ");
    expect_named(results, killed, " has ended without a word");
  }
}

TEST(Control, ADeathIsSeenByARankThatOnlyComputes) {
  const auto results = run([](Communicator& ranks) -> std::string {
    ranks.begin_steps();
    if (ranks.rank() == 1) std::raise(SIGKILL);
    while (true) throw_if_stop_requested();
  });
  expect_named(results, 1);
}

/// Then the process is killed, for the test to end.
void stop_for_2500_ms() {
  const pid_t self = ::getpid();
  if (::fork() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    ::kill(self, SIGKILL);
    ::_exit(0);
  }
  std::raise(SIGSTOP);
}

TEST(Control, ARankThatHasStoppedAnsweringIsNamed) {
  for (const int stopped : {0, 2}) {
    const auto results = run_with_little_patience([&](Communicator& ranks) -> std::string {
      ranks.begin_steps();
      if (ranks.rank() == stopped) stop_for_2500_ms();
      while (true) step(ranks);
    });
    expect_named(results, stopped, "has stopped answering");
  }
}

TEST(Control, ARankThatStopsAnsweringAtTheEndIsNamed) {
  for (const int stopped : {0, 2}) {
    const auto start = std::chrono::steady_clock::now();
    const auto results = run_with_little_patience([&](Communicator& ranks) {
      ranks.all_gather("");  // all have connected
      if (ranks.rank() == stopped) stop_for_2500_ms();
      return std::to_string(ranks.leave(0));
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    expect_named(results, stopped);
  }
}

TEST(Control, TheFirstErrorOfAnyRankIsThatOfAll) {
  for (int failing = 0; failing < kRanks; ++failing) {
    const auto results = run([&](Communicator& ranks) -> std::string {
      ranks.begin_steps();
      step(ranks);
      if (ranks.rank() == failing) throw DataError("rows.jsonl:7", "no answer");
      while (true) step(ranks);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].text,
                std::string("data: rows.jsonl:7: no answer") + (rank == failing ? " (first)" : ""));
    }
  }
}

TEST(Control, AllLeaveWithTheExitCodeOfRank0OnceAllHaveArrived) {
  const auto results = run([](Communicator& ranks) {
    if (ranks.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // commits the result
    return std::to_string(ranks.leave(ranks.rank() == 0 ? 75 : 0));
  });
  expect_all(results, "75");
}

}  // namespace
}  // namespace lora_train::ranks

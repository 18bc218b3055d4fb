#include "rendezvous.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "support/rank_processes.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::ranks {
namespace {

using std::chrono::minutes;
using testing_support::refusal;
using testing_support::run_ranks;
using testing_support::TemporaryFolder;
using testing_support::world_of;

/// In a process of its own: a store has threads.
std::string in_a_process(const std::function<std::string()>& body) {
  return run_ranks(1, [&](int) { return body(); })[0].text;
}

TEST(Rendezvous, Rank0PublishesWhereItListensForOneProcessOfEachRank) {
  const TemporaryFolder folder;
  const std::string text = in_a_process([&] {
    const launch::World first = world_of(0, 2, folder.path(), launch::Launcher::kNproc),
                        second = world_of(1, 2, folder.path(), launch::Launcher::kNproc);
    const Rendezvous host = meet(first, {}, minutes(1)), client = meet(second, {}, minutes(1));
    host.store->set("key", "value");
    const std::string file = std::filesystem::directory_iterator(folder.path())->path().filename().string();
    return client.store->get_to_str("key") + " " + file + " " + client.host + (client.published ? " published" : "") +
           "|" + refusal([&] { meet(second, {}, minutes(1)); });
  });
  EXPECT_TRUE(
      text.starts_with("value lora-train.job.address 127.0.0.1|rank 1 of 2 (--nproc): another process has this "
                       "rank at 127.0.0.1, port "))
      << text;
}

TEST(Rendezvous, AllRanksAreClientsOfTorchrunsAgent) {
  const std::string text = in_a_process([] {
    c10d::TCPStore agent("127.0.0.1", {.port = 0, .isServer = true, .waitWorkers = false});
    const auto meet_agent = [&](int rank) {
      launch::World world = world_of(rank, 2, {}, launch::Launcher::kTorchrun);
      world.has_agent_store = true;
      world.master_address = "localhost";
      world.master_port = agent.getPort();
      return meet(world, {}, minutes(1));
    };
    const Rendezvous one = meet_agent(0), other = meet_agent(1);
    one.store->set("key", "value");
    return other.store->get_to_str("key") + " " + agent.get_to_str("lora-train/job/key");
  });
  EXPECT_EQ(text, "value value");
}

/// Two of three ranks: the third never comes. What wait_for_all() of rank 0 throws while rank 1 does `body`.
std::string while_the_other(const TemporaryFolder& folder,
                            const std::function<void(const launch::World&, const Rendezvous&)>& body) {
  const auto of_rank = [&](int rank) -> std::string {
    const StopRequests requests;
    set_log_level(LogLevel::kOff);
    const launch::World world = world_of(rank, 3, folder.path(), launch::Launcher::kNproc);
    const Rendezvous place = meet(world, {}, minutes(1));
    if (rank == 1) {
      body(world, place);
      return "";
    }
    try {
      wait_for_all(world, place, minutes(1));
    } catch (const StopError& stop) {
      return "stop: " + stop.where();
    } catch (const PeerError& error) {
      return error.what() + std::string(", ") + std::to_string(static_cast<int>(error.exit_code()));
    }
    return "met";
  };
  return run_ranks(2, of_rank)[0].text;
}

TEST(Rendezvous, ARankThatEndsBeforeAllHaveMetIsNamed) {
  const TemporaryFolder folder;
  const std::string text = while_the_other(folder, [](const auto&, const auto&) { ::_exit(0); });
  EXPECT_TRUE(text.starts_with("rank 1 of 3: ") &&
              text.ends_with("has ended without a word, before all ranks had started, 6"))
      << text;
}

TEST(Rendezvous, WhoIsAskedToStopTellsThoseWhoWait) {
  for (const bool is_told_by_rank_2 : {false, true}) {
    const TemporaryFolder folder;
    const auto stop = [&](const launch::World& world, const Rendezvous& place) {
      if (is_told_by_rank_2)
        place.store->set("fate", "SIGTERM");
      else
        set_max_time(0);
      EXPECT_THROW(wait_for_all(world, place, minutes(1)), StopError);
    };
    EXPECT_EQ(while_the_other(folder, stop), is_told_by_rank_2 ? "stop: SIGTERM" : "stop: max_time");
  }
}

TEST(Rendezvous, WhatNprocHasSeenEndsTheWait) {
  for (const auto& [ended, thrown] : std::map<std::string, std::string>{
           {"2 137 9 77", "rank 2 of 3: process 77 was killed (signal 9), before all ranks had started, 6"},
           {"2 75 0 77", "stop: rank 2"},
           {"2 3 0 77", "rank 2: has ended, 3"}}) {
    const TemporaryFolder folder;
    EXPECT_EQ(while_the_other(folder,
                              [&](const auto&, const auto& place) {
                                write_file_atomic(folder / "ended", ended);
                                while (!place.store->check({"left/0"})) std::this_thread::yield();
                              })
                  .substr(0, thrown.size()),
              thrown);
  }
}

TEST(Rendezvous, AMasterThatIsNotThereIsNamed) {
  for (const std::string host : {"127.0.0.1", "no-such-host.invalid"}) {
    launch::World world = world_of(1, 2, {}, launch::Launcher::kVariables);
    world.master_address = host;
    world.master_port = 1;
    EXPECT_SAYS(refusal<DeviceError>([&] { meet(world, {}, std::chrono::milliseconds(1)); }),
                "no answer at " + host + ", port 1");
  }
}

TEST(Rendezvous, NodesWithoutAFolderThatTheyShareAreRefused) {
  launch::World world = world_of(0, 2, {}, launch::Launcher::kSlurm);
  world.local_size = 1;
  EXPECT_THROW(meet(world, {}, minutes(1)), ConfigError);
}

TEST(Rendezvous, TheAddressIsThatOfTheRoute) {
  EXPECT_EQ(local_address_towards("127.0.0.2"), "127.0.0.1");
  EXPECT_THROW(local_address_towards("no such host"), DeviceError);
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("192.0.2.7"));
}

}  // namespace
}  // namespace lora_train::ranks

// The variables of each launcher are those that it was seen to set: torchrun 2.11, Open MPI 4.1.4 (5 has the same),
// MPICH 4.0.2; MVAPICH2 and Slurm as documented.
#include "lora_train/launch/world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>

#include "lora_train/base/error.h"
#include "support/temporary_folder.h"

namespace lora_train::launch {
namespace {

using testing_support::TemporaryFolder;
using Map = std::map<std::string, std::string>;

const Map kMaster = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const Map kBare = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Map kTorchrun = {
    {"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                      {"PMIX_NAMESPACE", "834076673"},
                      {"PMIX_RANK", "2"},
                      {"PMIX_SERVER_TMPDIR", "/tmp/ompi.vm.0/pid.23881"}};
const Map kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Map kMvapich = {{"MV2_COMM_WORLD_RANK", "0"},
                      {"MV2_COMM_WORLD_SIZE", "2"},
                      {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                      {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
const Map kBatchScript = {{"SLURM_JOB_ID", "77"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "0"}};
const Map kSrun = {
    {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "4"}, {"SLURM_STEP_NUM_TASKS", "5"},
    {"SLURM_NTASKS", "5"},  {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}};

Map together(std::initializer_list<Map> maps) {
  Map result;
  for (const Map& map : maps) {
    for (const auto& [name, value] : map) result[name] = value;
  }
  return result;
}

World world_of(const Map& variables, const std::filesystem::path& proc = "/no/proc") {
  return world_from(
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      proc);
}

/// "1/4 local 1/2"
std::string places(const World& world) {
  return std::to_string(world.rank) + "/" + std::to_string(world.size) + " local " + std::to_string(world.local_rank) +
         "/" + std::to_string(world.local_size);
}

std::string refusal(const Map& variables, const std::filesystem::path& proc = "/no/proc") {
  try {
    return "accepted as " + places(world_of(variables, proc));
  } catch (const ConfigError& error) {
    return error.what();
  }
}

void expect_refusal(const Map& variables, const std::string& text) {
  EXPECT_NE(refusal(variables).find(text), std::string::npos) << refusal(variables);
}

TEST(World, WhoeverSetsNothingIsOneProcess) {
  const World world = world_of({});
  EXPECT_EQ(world.launcher, Launcher::kNone);
  EXPECT_EQ(places(world), "0/1 local 0/1");
}

TEST(World, ASingleProcessOfALauncherIsOneProcess) {
  for (const Map& one :
       {Map{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Map{{"WORLD_SIZE", "1"}}, Map{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
        Map{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}}) {
    EXPECT_EQ(world_of(one).launcher, Launcher::kNone) << one.begin()->first;
  }
}

TEST(World, Torchrun) {
  const World world = world_of(together({kBare, kMaster, kTorchrun}));
  EXPECT_EQ(world.launcher, Launcher::kTorchrun);
  EXPECT_EQ(places(world), "5/8 local 1/4");
  EXPECT_EQ(world.job, "none.1");
  EXPECT_TRUE(world.has_agent_store);
  EXPECT_EQ(world.master_address, "node1");
  EXPECT_EQ(world.master_port, 29500);
  EXPECT_FALSE(world.is_on_one_host());
}

TEST(World, OpenMpi) {
  const World world = world_of(kOpenMpi);
  EXPECT_EQ(world.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(places(world), "2/4 local 2/4");
  EXPECT_EQ(world.job, "834076673");
  EXPECT_EQ(world.job_folder, "/tmp/ompi.vm.0/pid.23881");
  EXPECT_TRUE(world.is_on_one_host());
}

TEST(World, MpichAndMvapichJobsAreNamedByTheProcessThatStartedTheRanks) {
  const TemporaryFolder proc;
  const auto add_process = [&](const std::string& name, const std::string& stat) {
    std::filesystem::create_directories(proc / name);
    std::ofstream(proc / name / "stat") << stat << " 300 300 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 98765 1000 2\n";
  };
  add_process("self", "320 (a) b (c) S 310");
  add_process("310", "310 (sh) S 300");
  add_process("300", "300 (hydra_pmi_proxy) S 1");
  World world = world_of(kMpich, proc.path());
  EXPECT_EQ(world.launcher, Launcher::kMpich);
  EXPECT_EQ(places(world), "1/2 local 1/2");
  EXPECT_EQ(world.job, "300-98765");
  add_process("300", "300 (mpispawn) S 1");
  world = world_of(kMvapich, proc.path());
  EXPECT_EQ(world.launcher, Launcher::kMvapich);
  EXPECT_EQ(places(world), "0/2 local 0/2");
  EXPECT_EQ(world.job, "300-98765");
}

TEST(World, Slurm) {
  World world = world_of(kSrun);
  EXPECT_EQ(world.launcher, Launcher::kSlurm);
  EXPECT_EQ(places(world), "4/5 local 0/1");
  EXPECT_EQ(world.job, "77.3.0");
  EXPECT_EQ(world_of(together({kSrun, {{"SLURM_RESTART_COUNT", "2"}}})).job, "77.3.2");
  EXPECT_EQ(world_of(kBatchScript).launcher, Launcher::kNone);
  // srun --mpi=pmi2
  world = world_of(together({kSrun, {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}}}));
  EXPECT_EQ(world.launcher, Launcher::kSlurm);
  EXPECT_EQ(places(world), "4/5 local 0/1");
}

TEST(World, Nproc) {
  const World world =
      world_of(together({{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}},
                         {{"LORA_TRAIN_JOB_FOLDER", "/tmp/job"}}}));
  EXPECT_EQ(world.launcher, Launcher::kNproc);
  EXPECT_EQ(places(world), "1/2 local 1/2");
  EXPECT_EQ(world.job_folder, "/tmp/job");
}

TEST(World, BareVariables) {
  const World world = world_of(together({kBare, kMaster}));
  EXPECT_EQ(world.launcher, Launcher::kVariables);
  EXPECT_EQ(places(world), "5/8 local 1/4");
  EXPECT_FALSE(world.has_agent_store);
}

TEST(World, TheInnerLauncherCounts) {
  EXPECT_EQ(world_of(together({kBare, kMaster, kTorchrun, kOpenMpi, kSrun})).launcher, Launcher::kTorchrun);
  EXPECT_EQ(world_of(together({kOpenMpi, kSrun})).launcher, Launcher::kOpenMpi);
  EXPECT_EQ(refusal(together({kMpich, kMaster, kSrun})), "accepted as 1/2 local 1/2");
  EXPECT_EQ(places(world_of(together({kOpenMpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}}))), "2/4 local 2/4");
}

TEST(World, ContradictionsAreRefused) {
  expect_refusal(together({kOpenMpi, kBare}), "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=4 (Open MPI)");
  expect_refusal(together({kOpenMpi, kBare}), "contradicts RANK=5 and WORLD_SIZE=8");
  expect_refusal(together({kMpich, kOpenMpi}), "contradicts PMI_RANK=1 and PMI_SIZE=2 (MPICH)");
  expect_refusal(together({kSrun, {{"RANK", "3"}, {"WORLD_SIZE", "5"}}}), "contradicts RANK=3 and WORLD_SIZE=5");
  expect_refusal(together({kSrun, {{"RANK", "4"}, {"WORLD_SIZE", "6"}}}), "contradicts RANK=4 and WORLD_SIZE=6");
}

TEST(World, HalfOfThemIsRefused) {
  expect_refusal({{"RANK", "0"}}, "WORLD_SIZE: is not set, but RANK is");
  expect_refusal({{"WORLD_SIZE", "2"}}, "RANK: is not set, but WORLD_SIZE=2");
  expect_refusal({{"PMI_RANK", "0"}}, "PMI_SIZE: is not set");
  for (const auto& [all, name] :
       {std::pair(together({kBare, kMaster}), "LOCAL_RANK"), std::pair(together({kBare, kMaster}), "LOCAL_WORLD_SIZE"),
        std::pair(together({kBare, kMaster}), "MASTER_ADDR"), std::pair(together({kBare, kMaster}), "MASTER_PORT"),
        std::pair(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"), std::pair(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        std::pair(kMpich, "MPI_LOCALNRANKS"), std::pair(kSrun, "SLURM_LOCALID"), std::pair(kSrun, "SLURM_NODEID")}) {
    Map half = all;
    half.erase(name);
    expect_refusal(half, std::string(name) + ": is not set");
  }
}

TEST(World, OutOfRangeIsRefused) {
  const auto with = [](Map map, const std::string& name, const std::string& value) {
    map[name] = value;
    return map;
  };
  const Map bare = together({kBare, kMaster});
  expect_refusal(with(bare, "RANK", "8"), "RANK=8: expected a number from 0 to 7");
  expect_refusal(with(bare, "RANK", "-1"), "RANK=-1: expected");
  expect_refusal(with(bare, "WORLD_SIZE", "0"), "WORLD_SIZE=0: expected");
  expect_refusal(with(bare, "WORLD_SIZE", "four"), "WORLD_SIZE=four: expected");
  expect_refusal(with(bare, "WORLD_SIZE", "8 "), "WORLD_SIZE=8 : expected");
  expect_refusal(with(bare, "LOCAL_RANK", "4"), "LOCAL_RANK=4: expected a number from 0 to 3");
  expect_refusal(with(bare, "LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE=9: expected a number from 1 to 8");
  expect_refusal(with(bare, "MASTER_PORT", "65536"), "MASTER_PORT=65536: expected");
  expect_refusal(with(kSrun, "SLURM_STEP_TASKS_PER_NODE", "2(x2)"), "SLURM_STEP_TASKS_PER_NODE=2(x2): does not say");
  expect_refusal(with(kSrun, "SLURM_STEP_TASKS_PER_NODE", "2(x2),6"),
                 "SLURM_STEP_TASKS_PER_NODE=2(x2),6: does not say");
}

TEST(World, RanksThatCouldNotMeetAreRefused) {
  expect_refusal(kBare,
                 "MASTER_ADDR: is not set, and nothing else tells the ranks where to meet (RANK and WORLD_SIZE)");
  expect_refusal(
      kMpich,
      "MASTER_ADDR: is not set, and nothing else tells the ranks where to meet (MPICH)");  // its proxy is not found
}

TEST(World, AJobIsFitForAFileName) {
  Map variables = together({kBare, kMaster, kTorchrun});
  variables["TORCHELASTIC_RUN_ID"] = "../a job@x";
  EXPECT_EQ(world_of(variables).job, ".._a_job_x.1");
}

TEST(HostId, IsTheBootIdOrTheName) {
  const TemporaryFolder proc;
  EXPECT_EQ(host_id(), host_id());
  EXPECT_EQ(host_id().size(), 36);
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  EXPECT_EQ(host_id(proc.path()), name.data());
}

TEST(TasksOnNode, ReadsSlurmsLists) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),1", 1), 4);
  EXPECT_EQ(tasks_on_node("4(x2),1", 2), 1);
  for (const char* bad : {"", "4", "4(x0),1", "4(x1", "4(x1)1", "4,", "-4,1", "0,1", "a,1"}) {
    EXPECT_EQ(tasks_on_node(bad, 1), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace lora_train::launch

// The variables of each launcher are those that it was seen to set: torchrun 2.11, Open MPI 4.1.4 (5 has the same),
// MPICH 4.0.2; MVAPICH2 and Slurm as documented.
#include "lora_train/launch/world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <sstream>

#include "lora_train/base/error.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::launch {
namespace {

using testing_support::TemporaryFolder;
using Map = std::map<std::string, std::string>;

/// Of "NAME=VALUE NAME=VALUE".
Map variables(const std::string& text) {
  Map result;
  std::istringstream words(text);
  for (std::string word; words >> word;) result[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return result;
}

const Map kMaster = variables("MASTER_ADDR=node1 MASTER_PORT=29500");
const Map kBare = variables("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
const Map kTorchrun =
    variables("TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_USE_AGENT_STORE=True");
const Map kOpenMpi = variables(
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
    "OMPI_COMM_WORLD_NODE_RANK=2 PMIX_NAMESPACE=834076673 PMIX_RANK=2 PMIX_SERVER_TMPDIR=/tmp/ompi.vm.0/pid.23881");
const Map kMpich = variables("PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
const Map kMvapich =
    variables("MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0 MV2_COMM_WORLD_LOCAL_SIZE=2");
const Map kBatchScript = variables("SLURM_JOB_ID=77 SLURM_NTASKS=5 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0");
const Map kSrun = variables(
    "SLURM_JOB_ID=77 SLURM_STEP_ID=3 SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=5 SLURM_NTASKS=5 SLURM_LOCALID=0 "
    "SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2),1");

Map together(std::initializer_list<Map> maps) {
  Map result;
  for (const Map& map : maps) {
    for (const auto& [name, value] : map) result[name] = value;
  }
  return result;
}

World world_of(const Map& set, const std::filesystem::path& proc = "/no/proc") {
  return world_from(
      [&](const std::string& name) {
        const auto found = set.find(name);
        return found == set.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      proc);
}

/// "1/4 local 1/2"
std::string places(const World& world) {
  return std::to_string(world.rank) + "/" + std::to_string(world.size) + " local " + std::to_string(world.local_rank) +
         "/" + std::to_string(world.local_size);
}

std::string refusal(const Map& set) {
  try {
    return "accepted as " + places(world_of(set));
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(World, EachLauncherIsKnownByItsVariables) {
  const Map nproc = variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 LORA_TRAIN_JOB_FOLDER=/tmp/job");
  const Map pmi2 = variables("PMI_RANK=4 PMI_SIZE=5");  // of srun --mpi=pmi2
  const std::tuple<Map, Launcher, std::string, std::string> cases[] = {
      {{}, Launcher::kNone, "0/1 local 0/1", ""},
      {together({kBare, kMaster, kTorchrun}), Launcher::kTorchrun, "5/8 local 1/4", "none.1"},
      {kOpenMpi, Launcher::kOpenMpi, "2/4 local 2/4", "834076673"},
      {kSrun, Launcher::kSlurm, "4/5 local 0/1", "77.3.0"},
      {together({kSrun, pmi2}), Launcher::kSlurm, "4/5 local 0/1", "77.3.0"},
      {together({kSrun, variables("SLURM_RESTART_COUNT=2")}), Launcher::kSlurm, "4/5 local 0/1", "77.3.2"},
      {kBatchScript, Launcher::kNone, "0/1 local 0/1", ""},
      {nproc, Launcher::kNproc, "1/2 local 1/2", "nproc"},
      {together({kBare, kMaster}), Launcher::kVariables, "5/8 local 1/4", ""},
      // the inner launcher counts
      {together({kBare, kMaster, kTorchrun, kOpenMpi, kSrun}), Launcher::kTorchrun, "5/8 local 1/4", "none.1"},
      {together({kOpenMpi, kSrun}), Launcher::kOpenMpi, "2/4 local 2/4", "834076673"},
      {together({kMpich, kMaster, kSrun}), Launcher::kMpich, "1/2 local 1/2", ""},
      {together({kOpenMpi, variables("RANK=2 WORLD_SIZE=4")}), Launcher::kOpenMpi, "2/4 local 2/4", "834076673"},
      // one process of a launcher is one process
      {variables("RANK=0 WORLD_SIZE=1"), Launcher::kNone, "0/1 local 0/1", ""},
      {variables("WORLD_SIZE=1"), Launcher::kNone, "0/1 local 0/1", ""},
      {variables("PMI_RANK=0 PMI_SIZE=1"), Launcher::kNone, "0/1 local 0/1", ""},
      {variables("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"), Launcher::kNone, "0/1 local 0/1", ""}};
  for (const auto& [set, launcher, place, job] : cases) {
    SCOPED_TRACE(set.empty() ? "" : set.begin()->first + " of " + std::to_string(set.size()));
    const World world = world_of(set);
    EXPECT_EQ(world.launcher, launcher);
    EXPECT_EQ(places(world), place);
    EXPECT_EQ(world.job, job);
  }
  EXPECT_EQ(world_of(nproc).job_folder, "/tmp/job");
}

TEST(World, KnowsWhereRanksMeetAndNamesAJobFitForAFile) {
  const World torchrun = world_of(together({kBare, kMaster, kTorchrun})), open_mpi = world_of(kOpenMpi);
  EXPECT_EQ(torchrun.master_address, "node1");
  EXPECT_EQ(torchrun.master_port, 29500);
  EXPECT_TRUE(torchrun.has_agent_store);
  EXPECT_FALSE(world_of(together({kBare, kMaster})).has_agent_store);
  EXPECT_FALSE(torchrun.is_on_one_host());
  EXPECT_TRUE(open_mpi.is_on_one_host());
  EXPECT_EQ(open_mpi.job_folder, "/tmp/ompi.vm.0/pid.23881");
  Map odd = together({kBare, kMaster, kTorchrun});
  odd["TORCHELASTIC_RUN_ID"] = "../a job@x";
  EXPECT_EQ(world_of(odd).job, ".._a_job_x.1");
}

TEST(World, MpichAndMvapichJobsAreNamedByTheProcessThatStartedTheRanks) {
  const TemporaryFolder proc;
  const auto add_process = [&](const std::string& name, const std::string& stat) {
    std::filesystem::create_directories(proc / name);
    std::ofstream(proc / name / "stat") << stat << " 300 300 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 98765 1000 2\n";
  };
  add_process("self", "320 (a) b (c) S 310");
  add_process("310", "310 (sh) S 300");
  for (const auto& [set, proxy, launcher, place] :
       {std::tuple{kMpich, "hydra_pmi_proxy", Launcher::kMpich, "1/2 local 1/2"},
        {kMvapich, "mpispawn", Launcher::kMvapich, "0/2 local 0/2"}}) {
    add_process("300", "300 (" + std::string(proxy) + ") S 1");
    const World world = world_of(set, proc.path());
    EXPECT_EQ(world.launcher, launcher);
    EXPECT_EQ(places(world), place);
    EXPECT_EQ(world.job, "300-98765");
  }
}

TEST(World, ContradictionsAreRefused) {
  EXPECT_SAYS(refusal(together({kOpenMpi, kBare})),
              "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=4 (Open MPI): contradicts RANK=5 and WORLD_SIZE=8");
  EXPECT_SAYS(refusal(together({kMpich, kOpenMpi})), "contradicts PMI_RANK=1 and PMI_SIZE=2 (MPICH)");
  EXPECT_SAYS(refusal(together({kSrun, variables("RANK=3 WORLD_SIZE=5")})), "contradicts RANK=3 and WORLD_SIZE=5");
  EXPECT_SAYS(refusal(together({kSrun, variables("RANK=4 WORLD_SIZE=6")})), "contradicts RANK=4 and WORLD_SIZE=6");
}

TEST(World, HalfOfThemIsRefused) {
  EXPECT_SAYS(refusal(variables("RANK=0")), "WORLD_SIZE: is not set, but RANK is");
  EXPECT_SAYS(refusal(variables("WORLD_SIZE=2")), "RANK: is not set, but WORLD_SIZE=2");
  EXPECT_SAYS(refusal(variables("PMI_RANK=0")), "PMI_SIZE: is not set");
  for (const auto& [all, name] :
       {std::pair(together({kBare, kMaster}), "LOCAL_RANK"), std::pair(together({kBare, kMaster}), "LOCAL_WORLD_SIZE"),
        std::pair(together({kBare, kMaster}), "MASTER_ADDR"), std::pair(together({kBare, kMaster}), "MASTER_PORT"),
        std::pair(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"), std::pair(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        std::pair(kMpich, "MPI_LOCALNRANKS"), std::pair(kSrun, "SLURM_LOCALID"), std::pair(kSrun, "SLURM_NODEID")}) {
    Map half = all;
    half.erase(name);
    EXPECT_SAYS(refusal(half), std::string(name) + ": is not set");
  }
}

TEST(World, OutOfRangeIsRefused) {
  const Map bare = together({kBare, kMaster});
  const std::string tasks = "SLURM_STEP_TASKS_PER_NODE";
  const std::tuple<Map, std::string, std::string, std::string> cases[] = {
      {bare, "RANK", "8", "expected a number from 0 to 7"},
      {bare, "RANK", "-1", "expected"},
      {bare, "WORLD_SIZE", "0", "expected"},
      {bare, "WORLD_SIZE", "four", "expected"},
      {bare, "WORLD_SIZE", "8 ", "expected"},
      {bare, "LOCAL_RANK", "4", "expected a number from 0 to 3"},
      {bare, "LOCAL_WORLD_SIZE", "9", "expected a number from 1 to 8"},
      {bare, "MASTER_PORT", "65536", "expected"},
      {kSrun, tasks, "2(x2)", "does not say"},
      {kSrun, tasks, "2(x2),6", "does not say"}};
  for (const auto& [good, name, value, expected] : cases) {
    Map map = good;
    map[name] = value;
    EXPECT_SAYS(refusal(map), name + "=" + value + ": " + expected);
  }
}

TEST(World, RanksThatCouldNotMeetAreRefused) {
  const std::string text = "MASTER_ADDR: is not set, and nothing else tells the ranks where to meet ";
  EXPECT_SAYS(refusal(kBare), text + "(RANK and WORLD_SIZE)");
  EXPECT_SAYS(refusal(kMpich), text + "(MPICH)");  // its proxy is not found
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

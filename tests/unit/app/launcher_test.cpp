#include "app/engine/launcher.h"

#include <gtest/gtest.h>

#include <map>

namespace lora_train::app {
namespace {

std::string several(const std::map<std::string, std::string>& variables) {
  return several_processes([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

TEST(Launcher, EachIsKnownByItsWorldSize) {
  EXPECT_EQ(several({{"RANK", "1"}, {"WORLD_SIZE", "4"}}), "WORLD_SIZE=4 (torchrun)");
  EXPECT_EQ(several({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
            "OMPI_COMM_WORLD_SIZE=2 (Open MPI)");
  EXPECT_EQ(several({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "PMI_SIZE=2 (MPICH)");
  EXPECT_EQ(several({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}), "MV2_COMM_WORLD_SIZE=2 (MVAPICH)");
  EXPECT_EQ(several({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), "SLURM_NTASKS=8 (Slurm)");
}

TEST(Launcher, OneProcessAndLeftoversAreNotSeveral) {
  EXPECT_EQ(several({}), "");
  EXPECT_EQ(several({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
  EXPECT_EQ(several({{"WORLD_SIZE", "4"}}), "");
  EXPECT_EQ(several({{"RANK", "0"}, {"WORLD_SIZE", "four"}}), "");
  EXPECT_EQ(several({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NAME", "bash"}}), "");
}

}  // namespace
}  // namespace lora_train::app

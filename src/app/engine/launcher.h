// Whether a launcher started this process as one of several.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lora_train::app {

/// "WORLD_SIZE=4 (torchrun)" when torchrun, Open MPI, MPICH, MVAPICH or Slurm says that there are more processes than
/// this one, else empty. Variables count only beside the launcher's rank, and those of Slurm not in an interactive
/// shell, so that what an allocation left in the environment refuses nothing.
std::string several_processes(const std::function<std::optional<std::string>(const std::string&)>& environment);

}  // namespace lora_train::app

// The processes of a run: how many there are, which one this is, and how they find each other. Read from the variables that the
// launcher sets.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::launch {

/// Who started the ranks. kVariables: RANK and WORLD_SIZE, set by hand or by a scheduler.
enum class Launcher { kNone, kNproc, kTorchrun, kOpenMpi, kMpich, kMvapich, kSlurm, kVariables };

/// "--nproc", "torchrun", "Open MPI", "MPICH", "MVAPICH", "Slurm", "RANK and WORLD_SIZE"; "no launcher"
const char* to_string(Launcher launcher);

struct World {
  Launcher launcher = Launcher::kNone;
  int rank = 0, size = 1;              ///< of all processes of the run
  int local_rank = 0, local_size = 1;  ///< of those on this host

  std::string job;  ///< the same on all ranks, another one for every job on a host; fit for a file name. May be empty
  std::filesystem::path job_folder;  ///< a folder on this host that the launcher made for this job alone; may be empty
  std::string master_address;        ///< MASTER_ADDR, the host of rank 0; may be empty
  int master_port = 0;               ///< MASTER_PORT; 0 without MASTER_ADDR
  bool has_agent_store = false;      ///< torchrun's agent listens at the master's address: every rank is its client

  bool is_on_one_host() const { return local_size == size; }
};

/// The value of a variable, empty if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string&)>;

/// The World that these variables describe. One process if no launcher set any, or one that started a single process.
///
/// Where launchers are nested, the inner one counts: torchrun or --nproc inside anything, MPI inside Slurm. RANK and WORLD_SIZE
/// alone have to agree with the launcher around them. Slurm counts in a step (srun), not in a batch script or a shell of salloc.
/// MPICH and MVAPICH name no job: on one host, its process that started the ranks does, found under `proc`.
///
/// Throws ConfigError, naming the variables, if some are missing, out of range, no numbers, or contradict each other, or if the
/// ranks could not find each other.
World world_from(const Variables& variables, const std::filesystem::path& proc = "/proc");

/// The same for processes of one machine since it was started: its boot id, or its name where /proc does not say.
std::string host_id(const std::filesystem::path& proc = "/proc");

/// The entry of node `node` in a list such as "4(x2),1" (4, 4, 1). Empty if the list is malformed or has no such node.
std::optional<int> tasks_on_node(std::string_view list, int node);

}  // namespace lora_train::launch

// The processes of a run: their number, the rank of this one, and how they find each other. Read from the launcher's
// variables.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace lora_train::launch {

/// The launcher of the ranks. kVariables: RANK and WORLD_SIZE, set by hand or by a scheduler.
enum class Launcher { kNone, kNproc, kTorchrun, kOpenMpi, kMpich, kMvapich, kSlurm, kVariables };

/// "--nproc", "torchrun", "Open MPI", "MPICH", "MVAPICH", "Slurm", "RANK and WORLD_SIZE"; "no launcher"
const char* to_string(Launcher launcher);

struct World {
  Launcher launcher = Launcher::kNone;
  int rank = 0, size = 1;              ///< among all processes of the run
  int local_rank = 0, local_size = 1;  ///< among those on this host

  std::string job;  ///< same on all ranks, unique per job on a host, usable in a file name. May be empty
  std::filesystem::path job_folder;  ///< this job's own folder on this host, made by the launcher; may be empty
  std::string master_address;        ///< MASTER_ADDR, the host of rank 0; may be empty
  int master_port = 0;               ///< MASTER_PORT; 0 without MASTER_ADDR
  bool has_agent_store = false;      ///< torchrun's agent listens at the master's address: every rank is its client

  bool is_on_one_host() const { return local_size == size; }
};

/// The value of a variable, empty if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string&)>;

/// The World described by these variables. One process if no launcher has set any or the launcher started a single
/// process.
///
/// If launchers are nested, the inner one counts: torchrun or --nproc inside anything, MPI inside Slurm. RANK and
/// WORLD_SIZE alone must agree with the launcher around them. Slurm counts in a step (srun), not in a batch script or a
/// salloc shell. MPICH and MVAPICH do not name the job: on one host, the process that started the ranks, found under
/// `proc`, identifies it.
///
/// Throws ConfigError, naming the variables, if some are missing, out of range, not numbers or contradictory, or if the
/// ranks could not find each other.
World world_from(const Variables& variables, const std::filesystem::path& proc = "/proc");

/// The same for all processes of one machine since its start: its boot id, or its name if /proc does not have that.
std::string host_id(const std::filesystem::path& proc = "/proc");

/// The entry of node `node` in a list such as "4(x2),1" (4, 4, 1). Empty if the list is malformed or has no such node.
std::optional<int> tasks_on_node(const std::string& list, int node);

}  // namespace lora_train::launch

// lora-train train --nproc N: starts the ranks of a run on this host and waits for them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/launch/world.h"

namespace lora_train::launch {

/// Tells the ranks the job's folder. A process with this variable is a rank of --nproc.
inline constexpr const char* kJobFolderVariable = "LORA_TRAIN_JOB_FOLDER";

struct LocalRanks {
  std::vector<std::string> command;  ///< run by each rank; command[0] is a path
  int num_ranks = 2;
  double grace_s = 60;  ///< seconds from the first failure until the remaining ranks are killed
};

/// Starts the ranks, waits for all, and returns the exit code of the first that failed: 128 + n if signal n ended it. A
/// stop (75) is not a failure, and is returned if none failed.
///
/// Each rank has its own process group, so that Ctrl-C reaches it once: SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless
/// ignored) are forwarded to all ranks. Ranks get SIGTERM if the launcher dies. The survivors of a failure end by
/// themselves; SIGKILL ends those that have not after `grace_s`.
///
/// Rank 0 writes directly to stdout and stderr. Lines of the others, from both, go to stderr after "[rank n] ", unless
/// they start with it already. stdin of all ranks is /dev/null. OMP_NUM_THREADS, unless set, becomes each rank's share
/// of the physical cores.
///
/// The others can see the first rank that ended (find_ended_rank).
///
/// `forwarded` receives the signals that arrived meanwhile; nothing else in this process sees them.
///
/// Call it before starting any thread. Throws IoError if the ranks cannot be started, and leaves none running.
int run_local_ranks(const LocalRanks& ranks, std::vector<int>* forwarded = nullptr);

struct EndedRank {
  int rank = 0;
  int exit_code = 0;
  int signal = 0;  ///< signal that killed it, or 0
  long pid = 0;
};
/// The first rank of --nproc that ended with a code other than 0; nothing under other launchers. For ranks that cannot
/// reach each other yet.
std::optional<EndedRank> find_ended_rank(const World& world);

}  // namespace lora_train::launch

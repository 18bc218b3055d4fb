// lora-train train --nproc N: starts the ranks of a run on this host and waits for them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/launch/world.h"

namespace lora_train::launch {

/// Names the job's folder to its ranks; who sees it is a rank of --nproc.
inline constexpr const char* kJobFolderVariable = "LORA_TRAIN_JOB_FOLDER";

struct LocalRanks {
  std::vector<std::string> command;  ///< of each rank; command[0] is a path
  int num_ranks = 2;
  double grace_s = 60;  ///< after the first failure, this long until the remaining ranks are killed
};

/// Starts the ranks, waits for all, and returns the exit code of the first that failed: 128 + n if signal n ended it. A stop
/// (75) is no failure, and is returned if none failed.
///
/// Each rank is in a process group of its own, so that Ctrl-C reaches it once: SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless
/// ignored) are forwarded to all ranks. Ranks get SIGTERM when the launcher dies. The survivors of a failure end by themselves;
/// SIGKILL ends those that have not after `grace_s`.
///
/// Rank 0 writes to stdout and stderr as they are. Lines of the others, of either, go to stderr with "[rank n] " before them
/// unless they begin so. stdin of all ranks is /dev/null. Each rank has its part of the cores as OMP_NUM_THREADS, unless that is
/// set.
///
/// A rank that ends is made known to the others (find_ended_rank).
///
/// `forwarded` gets the signals that came meanwhile: nothing else in this process has seen them.
///
/// Call it before any thread is started. Throws IoError if the ranks cannot be started; then none is left running.
int run_local_ranks(const LocalRanks& ranks, std::vector<int>* forwarded = nullptr);

struct EndedRank {
  int rank = 0;
  int exit_code = 0;
  int signal = 0;  ///< that killed it, or 0
  long pid = 0;
};
/// The first rank of --nproc that ended with another code than 0; nothing under other launchers. For ranks that cannot reach each
/// other yet.
std::optional<EndedRank> find_ended_rank(const World& world);

}  // namespace lora_train::launch

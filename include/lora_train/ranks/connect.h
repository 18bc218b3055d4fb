// Connects the ranks of a run.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "lora_train/launch/world.h"
#include "lora_train/ranks/communicator.h"

namespace lora_train::ranks {

/// How long a rank may not answer until it counts as lost. Deaths on the same host are seen at once.
struct Patience {
  std::chrono::milliseconds same_host = std::chrono::seconds(45);
  std::chrono::milliseconds another_host = std::chrono::seconds(10);
};

struct ConnectOptions {
  /// A folder that all nodes share. Ranks on several nodes meet there unless MASTER_ADDR says where; may be empty otherwise.
  std::filesystem::path shared_folder = {};
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);  ///< for the slowest rank to arrive
  Patience patience = {};
};

/// Connects the ranks of `world`: OneRank; or Gloo over TCP for tensors in host memory, and NCCL for those on GPUs. Returns once
/// the hosts are connected.
///
/// Where they meet: at torchrun's agent; else rank 0 listens, at MASTER_PORT, or at a free port that it publishes in a file of
/// the job: in the launcher's folder, the folder for temporary files, or `shared_folder` when there are several nodes. The file
/// is removed once all have arrived. On one host they use the loopback interface alone; otherwise the interface of the route to
/// the other nodes. From then on, stop requests are deferred (base/stop_request.h), and each rank watches the others.
///
/// SIGPIPE has to be ignored (main() does): Gloo writes to the socket of a rank that has died.
///
/// Throws ConfigError if another process has the same rank in the same place (two jobs with one MASTER_PORT), DeviceError if the
/// ranks do not all arrive in time, IoError if the file cannot be written.
std::unique_ptr<Communicator> connect(const launch::World& world, const ConnectOptions& options);

}  // namespace lora_train::ranks

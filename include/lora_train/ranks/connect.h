// Connects the ranks of a run.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "lora_train/launch/world.h"
#include "lora_train/ranks/communicator.h"

namespace lora_train::ranks {

/// How long a rank may be silent before it counts as lost. Deaths on the same host are noticed at once.
struct Patience {
  std::chrono::milliseconds same_host = std::chrono::seconds(45);
  std::chrono::milliseconds another_host = std::chrono::seconds(10);
};

struct ConnectOptions {
  /// A folder shared by all nodes, where ranks on several nodes meet unless MASTER_ADDR is set. May be empty otherwise.
  std::filesystem::path shared_folder = {};
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);  ///< for the slowest rank to arrive
  Patience patience = {};
};

/// Connects the ranks of `world`: OneRank; or Gloo over TCP for tensors in host memory and NCCL for those on GPUs.
/// Returns once the hosts are connected.
///
/// The ranks meet at torchrun's agent. Without one, rank 0 listens at MASTER_PORT, or at a free port that it publishes
/// in a file of the job: in the launcher's folder, the folder for temporary files, or `shared_folder` if there are
/// several nodes. The file is removed once all have arrived. On one host they use only the loopback interface;
/// otherwise the interface of the route to the other nodes. From then on, stop requests are deferred
/// (base/stop_request.h), and each rank watches the others.
///
/// SIGPIPE must be ignored (main() does so): Gloo writes to the sockets of dead ranks.
///
/// Throws ConfigError if another process has the same rank at the same place (two jobs with one MASTER_PORT),
/// DeviceError if not all ranks arrive in time, IoError if the file cannot be written.
std::unique_ptr<Communicator> connect(const launch::World& world, const ConnectOptions& options);

}  // namespace lora_train::ranks

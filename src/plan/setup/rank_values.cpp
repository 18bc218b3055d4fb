#include "lora_train/plan/setup/rank_values.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::plan {
namespace {

using ranks::Communicator;

void divide_cores(Communicator& ranks) {
  if (ranks.world_size() == 1) return;
  cpu_set_t cores{};
  const bool is_known = ::sched_getaffinity(0, sizeof cores, &cores) == 0;
  const std::string own = launch::host_id() + std::string(reinterpret_cast<const char*>(&cores), sizeof cores);
  const std::vector<std::string> all = ranks.all_gather(own);  // also where only the others need it
  if (!is_known || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto num_sharing = static_cast<int>(std::count(all.begin(), all.end(), own));
  at::set_num_threads(std::max(1, CPU_COUNT(&cores) / num_sharing));
}

void refuse_unfit_devices(const RunDevice& device, int num_local_ranks) {
  const std::vector<std::string> all = device.ranks->all_gather(device.uuid);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].empty() == all[0].empty()) continue;
    throw ConfigError("device", "rank 0 of " + std::to_string(all.size()) + " computes on " +
                                    (all[0].empty() ? "its CPU, rank " : "a GPU, rank ") + std::to_string(rank) +
                                    (all[0].empty() ? " on a GPU" : " on its CPU") +
                                    ". Let all ranks see GPUs, or set device: cpu");
  }
  const char* const may_share = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");  // of NCCL 2.30 and newer
  if (may_share != nullptr && std::string_view(may_share) == "1") return;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), all[rank]) - all.begin());
    if (all[rank].empty() || first == rank) continue;
    throw DeviceError("device", "ranks " + std::to_string(first) + " and " + std::to_string(rank) + " of " +
                                    std::to_string(all.size()) + " see the same GPU (" + all[rank] +
                                    "). Start at most one rank for each GPU: " + std::to_string(num_local_ranks) +
                                    " were started on this host.");
  }
}

}  // namespace

RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world,
                       const std::shared_ptr<Communicator>& ranks) {
  divide_cores(*ranks);
  RunDevice device = start_device(profile, config, {world.local_rank, world.local_size});
  device.ranks = ranks;
  refuse_unfit_devices(device, world.local_size);
  return device;
}

void require_equal(Communicator& ranks, const std::map<std::string, std::string>& own) {
  const std::vector<std::string> all = ranks.all_gather(nlohmann::json(own).dump());
  const auto first = nlohmann::json::parse(all[0]);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = nlohmann::json::parse(all[rank]);
    for (const auto& [what, value] : first.items()) {
      if (other[what] == value) continue;
      throw ConfigError(
          "rank " + std::to_string(rank) + " of " + std::to_string(all.size()),
          "has another " + what + " than rank 0 (" + other[what].get<std::string>() + " instead of " +
              value.get<std::string>() +
              "). Give all ranks the same command, files and program; paths must name the same on every node");
    }
  }
}

int work_as_rank(Communicator& ranks, const std::function<int()>& work) {
  std::optional<StopError> stop;
  int exit_code = 0;
  try {
    try {
      exit_code = work();
    } catch (const StopError& error) {
      stop = error;
      exit_code = static_cast<int>(ExitCode::kStopped);
    }
    exit_code = ranks.leave(exit_code);
  } catch (...) {
    const ErrorReport error = describe_current_exception();
    if (ranks.report(error)) throw;
    throw PeerError(error.where, error.message, error.kind, error.code);
  }
  if (stop) throw *stop;
  return exit_code;
}

}  // namespace lora_train::plan

// The ranks of a command: their devices, and what all of them must have alike.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lora_train/launch/world.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::plan {

/// start_device() for one of several ranks, which becomes a part of the result. Its threads get their part of the cores that other ranks may use as well,
/// unless OMP_NUM_THREADS is set. Throws ConfigError if some ranks compute on GPUs and others do not. Throws DeviceError, naming
/// ranks and GPU, if two compute on one GPU, unless NCCL_MULTI_RANK_GPU_ENABLE=1 says that NCCL can. A collective.
RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world,
                       const std::shared_ptr<ranks::Communicator>& ranks);

/// By name. Throws ConfigError, the same on all ranks, that names the first rank that has something else than rank 0. A collective.
void require_equal(ranks::Communicator& ranks, const std::map<std::string, std::string>& own);

/// Does the work of a rank and leaves: returns the exit code of rank 0, once all ranks have one. A StopError, which all ranks have
/// together, is thrown once all have left. If `work` throws anything else, the other ranks hear of it; where one of them has failed
/// before, throws the PeerError of that one instead.
int work_as_rank(ranks::Communicator& ranks, const std::function<int()>& work);

}  // namespace lora_train::plan

// Collectives over Gloo, for tensors in host memory.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport.h"

namespace lora_train::ranks {

/// Connects all ranks. `address`: of the interface at which the others reach this one. Throws DeviceError.
std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const std::string& address, std::chrono::milliseconds timeout);

}  // namespace lora_train::ranks

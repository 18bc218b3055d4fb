// Gloo's collectives for tensors in host memory, as c10d wraps them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lora_train::ranks {

/// Connects every rank with every other. `address`: of the interface at which the others reach this one. `timeout`: of connecting,
/// and of collectives until setTimeout(). Throws what c10d and Gloo throw (std::exception).
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, const std::string& address,
                                                  std::chrono::milliseconds timeout);

}  // namespace lora_train::ranks

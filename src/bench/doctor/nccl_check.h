#pragma once

#include <chrono>

#include "lora_train/bench/doctor/doctor.h"

namespace lora_train::bench {

/// All-reduce by NCCL over all GPUs that this process sees, one thread for each, against the sum on the host. `shape` has the number of GPUs,
/// the size, and the bandwidth of each GPU in a ring. A GPU that does not answer within `patience` has not passed. On one
/// GPU, which trains without NCCL, an NCCL that does not run is a note.
KernelCheck check_nccl(std::chrono::seconds patience);

}  // namespace lora_train::bench

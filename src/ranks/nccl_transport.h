// Collectives of a run on GPUs.
#pragma once

#include <memory>

#include "transport.h"

namespace lora_train::ranks {

/// NCCL for CUDA tensors, all on the device that the CUDA library was started on; `host` for tensors in host memory and for texts.
/// A call has tensors of one kind.
///
/// NCCL connects at the first collective of CUDA tensors; while that waits for the other ranks, a stop request ends it (StopError).
/// abort() ends the calls of `host` as well.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int rank, int world_size);

}  // namespace lora_train::ranks

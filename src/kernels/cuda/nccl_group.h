#pragma once

#include "lora_train/kernels/cuda/nccl_group.h"

namespace lora_train::cuda {

extern const kernels::Nccl kNccl;

}  // namespace lora_train::cuda

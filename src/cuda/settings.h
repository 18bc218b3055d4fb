#pragma once

#include "lora_train/kernels/cuda_library.h"

namespace lora_train::cuda {

/// As start() was given them.
const kernels::CudaSettings& settings();

}  // namespace lora_train::cuda

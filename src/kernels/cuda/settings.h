#pragma once

#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::cuda {

/// The settings that were passed to start().
const kernels::CudaSettings& settings();

}  // namespace lora_train::cuda

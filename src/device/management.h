// What libnvidia-ml.so.1 knows about GPUs that libcuda.so.1 has found.
#pragma once

#include <string>

#include "lora_train/device/gpu.h"

namespace lora_train::device {

/// Fills driver_version, free memory, processes and peer access; management_problem where that is not possible.
void ask_management_library(const std::string& library, GpuSystem& system);

}  // namespace lora_train::device

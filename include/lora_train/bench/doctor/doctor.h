// `doctor`: compares every kernel of this build with its reference on one device.
#pragma once

#include <vector>

#include "lora_train/bench/doctor/doctor_request.h"

namespace lora_train::bench {

/// Runs every kernel and its reference on the device, with a few shapes each; on a GPU, also NCCL over all of
/// them. A kernel that throws has not passed.
std::vector<KernelCheck> check_kernels(const DoctorRequest& request);

}  // namespace lora_train::bench

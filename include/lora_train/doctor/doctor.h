// `doctor`: every kernel of this build against its reference on one device.
#pragma once

#include <vector>

#include "lora_train/doctor/doctor_request.h"

namespace lora_train::doctor {

/// Runs every kernel and its reference on the device, at a few shapes each; a kernel that throws is one that has not passed.
std::vector<KernelCheck> check_kernels(const DoctorRequest& request);

}  // namespace lora_train::doctor

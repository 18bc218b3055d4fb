// `doctor`: compares every kernel of this build with its reference on one device.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lora_train::bench {

/// The result of comparing one of our kernels with its reference. `name` includes the dtype: "rms_norm forward fp32".
struct KernelCheck {
  std::string name;
  std::string shape;     ///< "N=37 D=896"
  double max_error = 0;  ///< largest |own - reference| / |reference| of its outputs (Euclidean norms)
  double tolerance = 0;
  double own_us = 0, reference_us = 0;  ///< microseconds per call
  bool passed = false;
  std::string note;  ///< why it could not run, or a remark
};

struct DoctorRequest {
  bool use_cuda = false;                                  ///< if true, the first GPU, else the CPU
  std::function<void(const KernelCheck&)> on_check = {};  ///< called as each check ends
};

/// Runs every kernel and its reference on the device with a few shapes each; on a GPU, also NCCL over all GPUs. A
/// kernel that throws fails its check.
std::vector<KernelCheck> check_kernels(const DoctorRequest& request);

}  // namespace lora_train::bench

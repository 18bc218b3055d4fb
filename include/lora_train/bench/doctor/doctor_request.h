// The request of `doctor` to the engine, and the result. Plain data without torch.
#pragma once

#include <functional>
#include <string>

namespace lora_train::bench {

/// One of our kernels against its reference. `name` includes the dtype: "rms_norm forward fp32".
struct KernelCheck {
  std::string name;
  std::string shape;     ///< "N=37 D=896"
  double max_error = 0;  ///< largest |own - reference| / |reference| of its outputs (Euclidean norms)
  double tolerance = 0;
  double own_us = 0, reference_us = 0;  ///< microseconds of one call
  bool passed = false;
  std::string note;  ///< why it could not run, or a remark
};

struct DoctorRequest {
  bool use_cuda = false;                                  ///< true: the first GPU; false: the CPU
  std::function<void(const KernelCheck&)> on_check = {};  ///< called as each check ends
};

}  // namespace lora_train::bench

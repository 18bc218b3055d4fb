// What `doctor` asks of the engine, and what it is told. Plain data without torch.
#pragma once

#include <string>

namespace lora_train::doctor {

struct DoctorRequest {
  bool use_cuda = false;  ///< on the first GPU, else on the CPU
};

/// One of our kernels against its reference, on the device and in the dtype that `name` says: "rms_norm forward fp32".
struct KernelCheck {
  std::string name;
  std::string shape;     ///< "N=37 D=896"
  double max_error = 0;  ///< largest of its outputs' |own - reference| / |reference| (Euclidean norms)
  double tolerance = 0;
  double own_us = 0, reference_us = 0;  ///< of one call
  bool passed = false;
  std::string note;  ///< why it could not be run, or what is special
};

}  // namespace lora_train::doctor

// Blocks of the flat buffers that an optimizer treats alike.
#pragma once

#include <cstdint>

namespace lora_train::kernels {

/// Elements [begin, begin + count).
struct ParameterBlock {
  std::int64_t begin = 0, count = 0;
  double lr_factor = 1.0;  ///< multiplies the learning rate, weight decay included; more than 0
  bool decays = true;      ///< takes weight decay
  bool operator==(const ParameterBlock&) const = default;
};

}  // namespace lora_train::kernels

// Ranges of the flat buffers that an optimizer treats alike.
#pragma once

#include <cstdint>

namespace lora_train::kernels {

/// Elements [begin, begin + count).
struct ParameterBlock {
  std::int64_t begin = 0, count = 0;
  double lr_factor = 1.0;  ///< above 0; multiplies the learning rate, and through it the weight decay
  bool decays = true;      ///< whether weight decay applies
  bool operator==(const ParameterBlock&) const = default;
};

}  // namespace lora_train::kernels

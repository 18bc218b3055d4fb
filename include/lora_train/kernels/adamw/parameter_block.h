// The trained tensors as ranges of the flat buffers that an optimizer works on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lora_train::kernels {

/// A tensor: elements [begin, begin + count).
struct ParameterBlock {
  std::int64_t begin = 0, count = 0;
  double lr_factor = 1.0;     ///< above 0; multiplies the learning rate, and through it the weight decay
  bool decays = true;         ///< whether weight decay applies
  bool is_embedding = false;  ///< keeps fp32 state where others keep 8 bits
  bool operator==(const ParameterBlock&) const = default;
};

/// Joins neighbours with the same lr_factor and `decays`.
inline std::vector<ParameterBlock> merged(std::span<const ParameterBlock> blocks) {
  std::vector<ParameterBlock> all;
  for (const ParameterBlock& block : blocks) {
    if (!all.empty() && all.back().lr_factor == block.lr_factor && all.back().decays == block.decays) {
      all.back().count += block.count;
    } else {
      all.push_back(block);
    }
  }
  return all;
}

}  // namespace lora_train::kernels

// Checks a merge: compares the logits of the merged folder with those of the base model and adapter. No torch here; the
// engine computes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lora_train::lora {

struct MergeCheckRequest {
  std::filesystem::path model, adapter, merged;
  std::vector<std::vector<std::int32_t>> rows;  ///< token ids, no row empty; at most a few thousand tokens in total
};

struct MergeCheck {
  double max_difference = 0;          ///< between two logits, over all positions and the whole vocabulary
  double max_logit = 0;               ///< largest |logit| of base and adapter, for scale
  std::size_t row = 0, position = 0;  ///< position of the largest difference
  std::int64_t num_positions = 0;
  std::int64_t num_argmax_changed = 0;  ///< positions at which another token is the most likely
};

/// Runs both models in fp32 on the CPU, with one layer in memory at a time, and keeps the logits of only one. Throws
/// FormatError, NumericError naming row and position if a logit is not finite, StopError.
MergeCheck check_merge(const MergeCheckRequest& request);

}  // namespace lora_train::lora

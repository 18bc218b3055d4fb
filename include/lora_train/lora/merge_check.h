// What merging changed: logits of the merged folder against those of the base with the adapter beside it. Plain data
// without torch; computed by the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lora_train::lora {

struct MergeCheckRequest {
  std::filesystem::path model, adapter, merged;
  std::vector<std::vector<std::int32_t>> rows;  ///< token ids, none empty; in all at most a few thousand
};

struct MergeCheck {
  double max_difference = 0;          ///< of two logits, over all positions and the whole vocabulary
  double max_logit = 0;               ///< largest |logit| of base and adapter, to compare with
  std::size_t row = 0, position = 0;  ///< where the largest difference is
  std::int64_t num_positions = 0;
  std::int64_t num_argmax_changed = 0;  ///< positions where another token is the most likely
};

/// Both models in fp32 on the CPU, one layer in memory at a time; the logits of the rows are kept once. Throws FormatError,
/// NumericError naming row and position when a logit is not finite, StopError.
MergeCheck check_merge(const MergeCheckRequest& request);

}  // namespace lora_train::lora

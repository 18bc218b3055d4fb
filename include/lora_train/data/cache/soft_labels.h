// What a teacher thought of the tokens that a row trains.
#pragma once

#include <cstdint>
#include <span>

namespace lora_train::data {

/// Of every trained token, in their order, `width` tokens of the teacher in its place, with their log-probabilities.
struct SoftLabels {
  static constexpr std::int32_t kNone = -1;  ///< fills up where there are fewer

  std::int64_t width = 0;  ///< 0: the row has none
  std::span<const std::int32_t> ids = {};
  std::span<const float> log_probs = {};

  /// Of the first trained tokens.
  SoftLabels first(std::size_t num_supervised) const {
    const std::size_t count = num_supervised * static_cast<std::size_t>(width);
    return {width, ids.first(count), log_probs.first(count)};
  }
};

}  // namespace lora_train::data

// Forced choice among given completions: accuracy, calibration and Brier score from summed log probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/evaluate/eval_request.h"

namespace lora_train::evaluate {

/// Of the choices of one row: softmax of their summed log probabilities.
std::vector<double> choice_shares(std::span<const double> log_probabilities);

/// Sums over rows. Of equally likely choices the first is taken, as numpy.argmax and lm-evaluation-harness do, whose acc and
/// acc_norm the two accuracies are.
class ChoiceCounter {
 public:
  /// num_chars: of the choices' texts, each above 0. `answer` is the right choice.
  void add(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars, std::size_t answer);
  ChoiceFigures figures() const;

 private:
  static constexpr std::size_t kBins = 15;
  std::int64_t num_rows_ = 0, num_right_ = 0, num_right_normalized_ = 0;
  double brier_ = 0;
  double bin_gap_[kBins] = {};  ///< sum of share of the taken choice - whether it is right
};

}  // namespace lora_train::evaluate

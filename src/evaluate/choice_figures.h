// Multiple choice among given completions: accuracy, calibration and Brier score from summed log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/evaluate/eval_request.h"

namespace lora_train::evaluate {

/// The probabilities of a row's choices: softmax of their summed log-probabilities.
std::vector<double> choice_shares(std::span<const double> log_probabilities);

/// Accumulates rows. The two accuracies are acc and acc_norm of lm-evaluation-harness. Among equally likely choices the first
/// one counts, as in numpy.argmax and lm-evaluation-harness.
class ChoiceCounter {
 public:
  /// num_chars: length of each choice's text, above 0. `answer`: index of the right choice.
  void add(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars, std::size_t answer);
  ChoiceFigures figures() const;

 private:
  static constexpr std::size_t kBins = 15;
  std::int64_t num_rows_ = 0, num_right_ = 0, num_right_normalized_ = 0;
  double brier_ = 0;
  double bin_gap_[kBins] = {};  ///< sum of (probability of the most likely choice - whether it is right)
};

}  // namespace lora_train::evaluate

// Multiple choice among given completions: accuracy, calibration and Brier score from summed log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/evaluate/evaluation.h"

namespace lora_train::evaluate {

/// The probabilities of a row's choices: softmax of their summed log-probabilities.
std::vector<double> choice_shares(std::span<const double> log_probabilities);

/// What the model chose in a row.
struct ChoiceOutcome {
  std::size_t taken = 0;  ///< the most likely choice
  bool is_right = false;
  bool is_right_normalized = false;  ///< by log-probabilities per character
  double confidence = 0;             ///< the probability of the choice taken
  double brier = 0;                  ///< sum over choices of (probability - is right)^2
};

/// num_chars: length of each choice's text, above 0. `answer`: index of the right choice. Among equally likely choices the first
/// one counts, as in numpy.argmax and lm-evaluation-harness.
ChoiceOutcome choice_outcome(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars,
                             std::size_t answer);

/// The two accuracies are acc and acc_norm of lm-evaluation-harness.
ChoiceFigures choice_figures(std::span<const ChoiceOutcome> outcomes);

}  // namespace lora_train::evaluate

#include "choice_figures.h"

#include <algorithm>
#include <cmath>

#include "lora_train/report/calibration.h"

namespace lora_train::evaluate {

std::vector<double> choice_shares(std::span<const double> log_probabilities) {
  const double largest = *std::max_element(log_probabilities.begin(), log_probabilities.end());
  std::vector<double> shares;
  double sum = 0;
  for (const double value : log_probabilities) sum += shares.emplace_back(std::exp(value - largest));
  for (double& share : shares) share /= sum;
  return shares;
}

ChoiceOutcome choice_outcome(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars,
                             std::size_t answer) {
  const auto best = [](const std::vector<double>& values) {
    return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  };
  const std::vector<double> shares = choice_shares(log_probabilities);
  std::vector<double> normalized(log_probabilities.begin(), log_probabilities.end());
  for (std::size_t i = 0; i < normalized.size(); ++i) normalized[i] /= static_cast<double>(num_chars[i]);
  ChoiceOutcome outcome;
  outcome.taken = best({log_probabilities.begin(), log_probabilities.end()});
  outcome.is_right = outcome.taken == answer;
  outcome.is_right_normalized = best(normalized) == answer;
  outcome.confidence = shares[outcome.taken];
  for (std::size_t i = 0; i < shares.size(); ++i) outcome.brier += std::pow(shares[i] - (i == answer ? 1 : 0), 2);
  return outcome;
}

ChoiceFigures choice_figures(std::span<const ChoiceOutcome> outcomes) {
  const auto count = static_cast<double>(outcomes.size());
  std::vector<report::Judged> answers;
  ChoiceFigures figures;
  double num_right_normalized = 0;
  figures.num_rows = std::ssize(outcomes);
  for (const ChoiceOutcome& outcome : outcomes) {
    answers.push_back({outcome.confidence, outcome.is_right});
    num_right_normalized += outcome.is_right_normalized ? 1 : 0;
    figures.brier += outcome.brier / count;
  }
  figures.accuracy = report::share_right(answers);
  figures.normalized_accuracy = num_right_normalized / count;
  figures.ece = report::calibration_error(report::equal_width_bins(answers));
  return figures;
}

}  // namespace lora_train::evaluate

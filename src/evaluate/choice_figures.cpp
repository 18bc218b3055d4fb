#include "choice_figures.h"

#include <algorithm>
#include <cmath>

namespace lora_train::evaluate {

std::vector<double> choice_shares(std::span<const double> log_probabilities) {
  const double largest = *std::max_element(log_probabilities.begin(), log_probabilities.end());
  std::vector<double> shares;
  double sum = 0;
  for (const double value : log_probabilities) sum += shares.emplace_back(std::exp(value - largest));
  for (double& share : shares) share /= sum;
  return shares;
}

void ChoiceCounter::add(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars,
                        std::size_t answer) {
  const auto best = [](const std::vector<double>& values) {
    return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  };
  const std::vector<double> shares = choice_shares(log_probabilities);
  std::vector<double> normalized(log_probabilities.begin(), log_probabilities.end());
  for (std::size_t i = 0; i < normalized.size(); ++i) normalized[i] /= static_cast<double>(num_chars[i]);
  const std::size_t taken = best({log_probabilities.begin(), log_probabilities.end()});
  const bool is_right = taken == answer;
  ++num_rows_;
  num_right_ += is_right ? 1 : 0;
  num_right_normalized_ += best(normalized) == answer ? 1 : 0;
  for (std::size_t i = 0; i < shares.size(); ++i) brier_ += std::pow(shares[i] - (i == answer ? 1 : 0), 2);
  const auto bin = static_cast<std::size_t>(shares[taken] * static_cast<double>(kBins));
  bin_gap_[std::min(bin, kBins - 1)] += shares[taken] - (is_right ? 1 : 0);
}

ChoiceFigures ChoiceCounter::figures() const {
  const auto count = static_cast<double>(num_rows_);
  ChoiceFigures figures;
  figures.num_rows = num_rows_;
  figures.accuracy = static_cast<double>(num_right_) / count;
  figures.normalized_accuracy = static_cast<double>(num_right_normalized_) / count;
  figures.brier = brier_ / count;
  for (const double gap : bin_gap_) figures.ece += std::abs(gap) / count;
  return figures;
}

}  // namespace lora_train::evaluate

#include "confidence.h"

#include <algorithm>

#include "choice_figures.h"

namespace lora_train::evaluate {

ConfidenceReading read_confidence(std::span<const float> logits, const data::ConfidenceTokens& tokens) {
  ConfidenceReading reading;
  for (const std::int32_t id : tokens.ids) reading.logits.push_back(logits[static_cast<std::size_t>(id)]);
  const std::vector<double> shares = choice_shares(reading.logits);
  for (std::size_t i = 0; i < shares.size(); ++i) reading.expected += shares[i] * tokens.probabilities[i];
  const auto [least, most] = std::ranges::minmax(tokens.probabilities);
  reading.expected = std::clamp(reading.expected, least, most);  // rounding must not leave the scale
  const auto best = std::ranges::max_element(shares) - shares.begin();
  reading.most_likely = tokens.probabilities[static_cast<std::size_t>(best)];
  return reading;
}

}  // namespace lora_train::evaluate

// Sampling on the host. No torch here.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::kernels {
namespace {

/// The index of the largest logit; the first of equals.
std::size_t most_likely(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

bool is_before(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

/// Keeps the `number` most likely, and ties with the last.
void keep_largest(std::vector<Candidate>& list, std::size_t number) {
  if (number >= list.size()) return;
  std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(number - 1), list.end(), is_before);
  const double last = list[number - 1].probability;
  list.erase(std::partition(list.begin(), list.end(), [last](const Candidate& c) { return c.probability >= last; }),
             list.end());
}

double sum_of(const std::vector<Candidate>& list) {
  return std::accumulate(list.begin(), list.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.probability; });
}

/// Keeps the most likely, sorted, until their total reaches top_p. Sorts in parts, so that a few candidates do not cost
/// a sort of the whole vocabulary.
void sort_and_cut(std::vector<Candidate>& list, double top_p) {
  const double wanted = top_p * sum_of(list);
  constexpr std::size_t kFirst = 256;
  double reached = 0;
  std::size_t sorted = 0;
  while (sorted < list.size()) {
    const std::size_t next = std::min(list.size(), std::max(kFirst, 4 * sorted));
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(sorted),
               end = list.begin() + static_cast<std::ptrdiff_t>(next);
    std::partial_sort(begin, end, list.end(), is_before);
    for (; sorted < next; ++sorted) {
      if (reached >= wanted) return list.resize(sorted);
      reached += list[sorted].probability;
    }
  }
}

}  // namespace

std::vector<Candidate> sampling_candidates(std::span<const float> logits, const SamplingFilter& filter) {
  const auto largest = static_cast<double>(logits[most_likely(logits)]);
  std::vector<Candidate> list;
  list.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    list.push_back(
        {static_cast<std::int32_t>(i), std::exp((static_cast<double>(logits[i]) - largest) / filter.temperature)});
  }
  if (filter.top_k > 0) keep_largest(list, static_cast<std::size_t>(filter.top_k));
  if (filter.top_p < 1) {
    sort_and_cut(list, filter.top_p);
  } else if (filter.top_k > 0) {
    std::sort(list.begin(), list.end(), is_before);
  }
  std::erase_if(list, [&](const Candidate& c) { return c.probability < filter.min_p; });
  return list;
}

std::int32_t sample_token(std::span<const float> logits, const SamplingFilter& filter, double draw) {
  if (filter.temperature == 0) return static_cast<std::int32_t>(most_likely(logits));
  const std::vector<Candidate> list = sampling_candidates(logits, filter);
  const double wanted = draw * sum_of(list);
  double reached = 0;
  std::int32_t chosen = 0;
  for (const Candidate& c : list) {
    if (c.probability == 0) continue;
    chosen = c.id;
    reached += c.probability;
    if (wanted < reached) break;
  }
  return chosen;
}

}  // namespace lora_train::kernels

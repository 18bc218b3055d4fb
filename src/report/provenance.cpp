#include "lora_train/report/provenance.h"

#include <algorithm>

namespace lora_train::report {
namespace {

constexpr long long kMostLengthBins = 40;

/// The first of 1, 2, 5, 10, 20, 50, ... that is enough.
long long bin_width_for(long long longest) {
  for (long long power = 1;; power *= 10) {
    for (const long long factor : {1, 2, 5}) {
      if (factor * power * kMostLengthBins >= longest) return factor * power;
    }
  }
}

}  // namespace

LengthHistogram length_histogram(const std::vector<long long>& lengths) {
  LengthHistogram histogram;
  for (const long long length : lengths) {
    histogram.longest = std::max(histogram.longest, length);
    histogram.num_tokens += length;
  }
  if (histogram.longest == 0) return {};
  histogram.bin_width = bin_width_for(histogram.longest);
  histogram.counts.resize(static_cast<std::size_t>((histogram.longest - 1) / histogram.bin_width + 1));
  for (const long long length : lengths) {
    if (length > 0) ++histogram.counts[static_cast<std::size_t>((length - 1) / histogram.bin_width)];
  }
  return histogram;
}

}  // namespace lora_train::report

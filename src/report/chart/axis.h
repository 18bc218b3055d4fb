// The range and the ticks of an axis.
#pragma once

#include <string>
#include <vector>

namespace lora_train::report {

struct Range {
  double low = 0, high = 1;
  double share_of(double value) const { return (value - low) / (high - low); }
};

/// Round values in the range, about `count` of them: multiples of 1, 2, 2.5 or 5 times a power of ten.
std::vector<double> nice_ticks(const Range& range, int count);

/// Of the values of a curve over x, each from 0 (its start) to 1: what its first tenth and a few far values must not press flat is
/// the range of the others, where that of all is much wider. Never empty. `from_zero`: it reaches down to 0.
struct Sample {
  double x = 0, y = 0;
};
Range fitted_range(const std::vector<Sample>& samples, bool from_zero);

/// "0.25", "12k", "3e-05"
std::string tick_text(double value);

}  // namespace lora_train::report

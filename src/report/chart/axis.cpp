#include "axis.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

constexpr double kStart = 0.1;       ///< of a curve, whose values may be left out
constexpr double kMuchWider = 1.8;   ///< times the range of the other values
constexpr double kFarShare = 0.005;  ///< of the values, on each side, may lie outside
constexpr std::size_t kFewValues = 50;

Range range_of(const std::vector<Sample>& samples) {
  const auto [low, high] =
      std::minmax_element(samples.begin(), samples.end(), [](auto& a, auto& b) { return a.y < b.y; });
  return {low->y, high->y};
}

/// The range of the values after the start, with room; that of all where there are too few.
Range later_range(const std::vector<Sample>& samples, const Range& whole) {
  std::vector<double> later;
  for (const Sample& sample : samples) {
    if (sample.x >= kStart) later.push_back(sample.y);
  }
  if (later.size() < 3) return whole;
  std::sort(later.begin(), later.end());
  const double far = later.size() > kFewValues ? kFarShare : 0;
  const auto last = static_cast<double>(later.size() - 1);
  const double low = later[static_cast<std::size_t>(std::ceil(far * last))];
  const double high = later[static_cast<std::size_t>((1 - far) * last)];
  const double room = std::max({0.3 * (high - low), 0.02 * std::abs(high), 1e-9});
  return {std::max(whole.low, low - room), std::min(whole.high, high + room)};
}

}  // namespace

std::vector<double> nice_ticks(const Range& range, int count) {
  const double raw = (range.high - range.low) / std::max(count, 1);
  if (!(raw > 0) || !std::isfinite(raw)) return {};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
    if (factor * power >= raw * 0.999) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(range.low / step - 1e-9); i * step <= range.high + step * 1e-9; ++i)
    ticks.push_back(i * step + 0.0);  // never -0
  return ticks;
}

Range fitted_range(const std::vector<Sample>& samples, bool from_zero) {
  if (samples.empty()) return {};
  Range range = range_of(samples);
  const Range later = later_range(samples, range);
  const double low = from_zero ? std::min(0.0, later.low) : later.low;
  if (range.high - range.low > kMuchWider * (later.high - low)) range = later;
  if (from_zero) range.low = std::min(0.0, range.low);
  if (range.high <= range.low) {
    const double room = std::abs(range.high) * 0.1 + 1e-9;
    return {range.low - room, range.high + room};
  }
  const double pad = 0.05 * (range.high - range.low);
  return {from_zero && range.low == 0 ? 0 : range.low - pad, range.high + pad};
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return string_printf("%.4gG", value / 1e9);
  if (size >= 1e6) return string_printf("%.4gM", value / 1e6);
  if (size >= 1e4) return string_printf("%.4gk", value / 1e3);
  return string_printf("%.4g", value);
}

}  // namespace lora_train::report

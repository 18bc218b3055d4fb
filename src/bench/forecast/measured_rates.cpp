#include "measured_rates.h"

#include <algorithm>

namespace lora_train::bench {
namespace {

constexpr double kMarginOfOneRun = 0.15, kLeastMargin = 0.05;

double median(const std::vector<double>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace

void Calibrations::add(const std::string& gpu, Precision precision, double ratio) {
  std::vector<double>& ratios = ratios_[{gpu, precision}];
  ratios.insert(std::ranges::upper_bound(ratios, ratio), ratio);
  const double middle = median(ratios);
  const double margin = ratios.size() == 1 ? kMarginOfOneRun : kLeastMargin;
  calibrations_[{gpu, precision}] = {middle, std::min(ratios.front(), (1 - margin) * middle),
                                     std::max(ratios.back(), (1 + margin) * middle), static_cast<int>(ratios.size())};
}

const Calibration* Calibrations::find(const std::string& gpu, Precision precision) const {
  const auto found = calibrations_.find({gpu, precision});
  return found == calibrations_.end() ? nullptr : &found->second;
}

}  // namespace lora_train::bench

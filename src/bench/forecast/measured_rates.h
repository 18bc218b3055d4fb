// What past runs say about the times of a plan.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train::bench {

struct Calibration {
  double factor = 1;         ///< the median of measured / planned time
  double low = 1, high = 1;  ///< the least and the largest, at least 5% from it; of a single run 15%
  int num_runs = 0;
};

/// By GPU and precision: what is lost beside the products differs between them.
class Calibrations {
 public:
  /// ratio: measured / planned time of a run.
  void add(const std::string& gpu, Precision precision, double ratio);
  /// Null without runs.
  const Calibration* find(const std::string& gpu, Precision precision) const;

 private:
  using Key = std::pair<std::string, Precision>;
  std::map<Key, std::vector<double>> ratios_;
  std::map<Key, Calibration> calibrations_;
};

}  // namespace lora_train::bench

// What past runs say about the times of a plan.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train::forecast {

struct Calibration {
  double factor = 1;  ///< the median of measured / planned time
  double margin = 0;  ///< the next run is expected within (1 +- margin) of the scaled time
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

}  // namespace lora_train::forecast

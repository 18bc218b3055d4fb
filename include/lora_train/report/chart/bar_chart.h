// Horizontal bars with labels: one a setting, one a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/chart/drawing.h"

namespace lora_train::report {

struct Bar {
  std::string name = {};
  std::optional<double> value = {};  ///< >= 0; empty: no bar, and the text says why
  std::string text = {};             ///< beside the bar: the value in words
  bool is_accented = false;
};

struct BarChart {
  std::string title = {}, subtitle = {};
  std::vector<Bar> bars = {};
};

/// As wide as names and texts need, at least 640. Bars begin at zero.
Drawing draw(const BarChart& chart);

}  // namespace lora_train::report

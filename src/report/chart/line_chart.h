// Curves over steps, in panels beside and below each other; and reliability diagrams.
#pragma once

#include <string>
#include <vector>

#include "lora_train/report/chart/drawing.h"

namespace lora_train::report {

struct Curve {
  std::string name = {};           ///< in the key of its panel; empty: not there
  std::vector<Point> points = {};  ///< by ascending x
  Ink ink = Ink::kAccent;
  bool has_dots = false;
  bool is_faint = false;  ///< behind the others: the values whose mean another curve is
};

struct Panel {
  std::string title = {};
  std::vector<Curve> curves = {};
  bool from_zero = false;  ///< the axis reaches down to 0
};

struct LineCharts {
  std::string title = {}, subtitle = {};
  std::vector<Panel> panels = {};
};

/// Two panels a row. An axis leaves out a steep start and a few far values; a panel says how many points it does not show.
Drawing draw(const LineCharts& charts);

/// Accuracy over confidence by bin, with the number in each bin below.
struct ReliabilityCurve {
  struct Bin {
    double count = 0, confidence = 0, accuracy = 0;  ///< the means in the bin
  };
  std::string name = {};
  std::vector<Bin> bins = {};  ///< of equal width, from 0 to 1
  Ink ink = Ink::kAccent;
};
struct ReliabilityChart {
  std::string title = {};
  std::vector<ReliabilityCurve> curves = {};
};
Drawing draw(const ReliabilityChart& chart);

}  // namespace lora_train::report

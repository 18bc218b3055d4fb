// Charts as drawings: curves over steps, in panels beside and below each other; reliability diagrams; horizontal bars; and those of a run, for
// curves.png and TensorBoard, without a browser.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/chart/drawing.h"
#include "lora_train/report/run_log.h"

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

/// Of an axis.
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

/// One a setting, one a run.
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

/// A PNG of loss, accuracy, learning rate, gradient norm, throughput, memory and use of the device over steps, each where the run has it.
/// Throws std::runtime_error.
std::string curves_png(const RunRecord& run);

/// A curve of a reliability diagram.
ReliabilityCurve reliability_curve(const std::string& name, const std::vector<ReliabilityBin>& bins, Ink ink);

}  // namespace lora_train::report

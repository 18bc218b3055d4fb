// Charts as drawings: curves over steps, in a grid of panels; reliability diagrams; horizontal bars. Also the charts of
// a run, for curves.png and TensorBoard, without a browser.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/chart/drawing.h"
#include "lora_train/report/run_log.h"

namespace lora_train::report {

struct Curve {
  std::string name = {};           ///< in the key of its panel; empty: not listed
  std::vector<Point> points = {};  ///< by ascending x
  Ink ink = Ink::kAccent;
  bool has_dots = false;
  bool is_faint = false;  ///< drawn behind the others: the raw values of a smoothed curve
};

struct Panel {
  std::string title = {};
  std::vector<Curve> curves = {};
  bool from_zero = false;  ///< the axis extends down to 0
};

struct LineCharts {
  std::string title = {}, subtitle = {};
  std::vector<Panel> panels = {};
};

/// Two panels per row. Axes leave out a steep start and a few outliers; a panel states how many points it hides.
Drawing draw(const LineCharts& charts);

/// Accuracy over confidence by bin, with the number in each bin below.
struct ReliabilityCurve {
  std::string name = {};
  std::vector<CalibrationBin> bins = {};  ///< of equal width, from 0 to 1
  Ink ink = Ink::kAccent;
};
struct ReliabilityChart {
  std::string title = {};
  std::vector<ReliabilityCurve> curves = {};
};
Drawing draw(const ReliabilityChart& chart);

/// Range of an axis.
struct Range {
  double low = 0, high = 1;
  double share_of(double value) const { return (value - low) / (high - low); }
};

/// Round values in the range, about `count` of them: multiples of 1, 2, 2.5 or 5 times a power of ten.
std::vector<double> nice_ticks(const Range& range, int count);

/// The range for the values of a curve over x in 0 (its start) to 1. Excludes its first tenth and a few outliers if
/// they make the full range much wider. Never empty. `from_zero`: it extends down to 0.
struct Sample {
  double x = 0, y = 0;
};
Range fitted_range(const std::vector<Sample>& samples, bool from_zero);

/// "0.25", "12k", "3e-05"
std::string tick_text(double value);

/// One per setting or per run.
struct Bar {
  std::string name = {};
  std::optional<double> value = {};  ///< >= 0; empty: no bar, and the text says why
  std::string text = {};             ///< next to the bar: the value in words
  bool is_accented = false;
};

struct BarChart {
  std::string title = {}, subtitle = {};
  std::vector<Bar> bars = {};
};

/// As wide as names and texts need, at least 640. Bars begin at zero.
Drawing draw(const BarChart& chart);

/// A PNG of loss, accuracy, learning rate, gradient norm, throughput, memory and device use over steps, as far as the
/// run has them. Throws std::runtime_error.
std::string curves_png(const RunRecord& run);

/// The curve of an evaluation in a reliability diagram.
ReliabilityCurve reliability_curve(const EvalRecord& eval, Ink ink);

}  // namespace lora_train::report

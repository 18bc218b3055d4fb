#include "charts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "figures.h"
#include "lora_train/base/text.h"
#include "step_fields.h"

namespace lora_train::report {
namespace {

constexpr double kPageMargin = 24, kPageTitleSize = 18, kPanelTitleSize = 14, kPanelTextSize = 12, kPanelTickSize = 11;
constexpr double kPanelWidth = 540, kPanelHeight = 240, kPanelGap = 28, kHead = 30, kPanelLeft = 58, kRight = 10,
                 kFoot = 26;
constexpr int kPanelsPerRow = 2;
constexpr double kLineWidth = 1.8, kFaintWidth = 1.1, kFaintOpacity = 0.4, kCurveDotWidth = 5.5;

/// The area of a panel's values in the drawing.
struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  Range x = {}, y = {};
  Point at(const Point& point) const {
    return {left + x.share_of(point.x) * (right - left), bottom - y.share_of(point.y) * (bottom - top)};
  }
};

Frame frame_of(const Panel& panel, double left, double top) {
  Frame frame{left + kPanelLeft, top + kHead, left + kPanelWidth - kRight, top + kPanelHeight - kFoot};
  bool is_first = true;
  for (const Curve& curve : panel.curves) {
    for (const Point& point : curve.points) {
      frame.x.low = is_first ? point.x : std::min(frame.x.low, point.x);
      frame.x.high = is_first ? point.x : std::max(frame.x.high, point.x);
      is_first = false;
    }
  }
  if (frame.x.high <= frame.x.low) frame.x.high = frame.x.low + 1;
  std::vector<Sample> samples;
  for (const Curve& curve : panel.curves) {
    for (const Point& point : curve.points) samples.push_back({frame.x.share_of(point.x), point.y});
  }
  frame.y = fitted_range(samples, panel.from_zero);
  return frame;
}

void add_label(Drawing& drawing, double x, double baseline, const std::string& text, double size, Ink ink = Ink::kText,
               Align align = Align::kLeft) {
  drawing.labels.push_back({.x = x, .baseline = baseline, .text = text, .size = size, .ink = ink, .align = align});
}

void draw_axes(const Frame& frame, Drawing& drawing) {
  for (const double y : nice_ticks(frame.y, 5)) {
    const double at = frame.at({frame.x.low, y}).y;
    drawing.rectangles.push_back({frame.left, at - 0.5, frame.right - frame.left, 1, Ink::kGrid});
    add_label(drawing, frame.left - 8, at + 4, tick_text(y), kPanelTickSize, Ink::kMuted, Align::kRight);
  }
  for (const double x : nice_ticks(frame.x, 6)) {
    const double at = frame.at({x, 0}).x;
    const bool is_at_edge = at > frame.right - 14;
    add_label(drawing, is_at_edge ? frame.right : at, frame.bottom + 18, tick_text(x), kPanelTickSize, Ink::kMuted,
              is_at_edge ? Align::kRight : Align::kCenter);
  }
}

/// The point where the line from `inside` to `outside` leaves the range.
Point cut(const Point& inside, const Point& outside, const Range& range) {
  const double edge = outside.y > range.high ? range.high : range.low;
  const double share = (edge - inside.y) / (outside.y - inside.y);
  return {inside.x + share * (outside.x - inside.x), edge};
}

/// Draws the parts of a curve within the range. Returns the number of points outside.
int draw_curve(const Curve& curve, const Frame& frame, Drawing& drawing) {
  const auto is_inside = [&](const Point& point) { return point.y >= frame.y.low && point.y <= frame.y.high; };
  Polyline line{.width = curve.is_faint ? kFaintWidth : kLineWidth,
                .ink = curve.ink,
                .opacity = curve.is_faint ? kFaintOpacity : 1};
  int num_outside = 0;
  const auto finish = [&] {
    if (!line.points.empty()) drawing.polylines.push_back(line);
    line.points.clear();
  };
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const Point& point = curve.points[i];
    const bool was_inside = i > 0 && is_inside(curve.points[i - 1]);
    if (!is_inside(point)) {
      ++num_outside;
      if (was_inside) line.points.push_back(frame.at(cut(curve.points[i - 1], point, frame.y)));
      finish();
      continue;
    }
    if (i > 0 && !was_inside) line.points.push_back(frame.at(cut(point, curve.points[i - 1], frame.y)));
    line.points.push_back(frame.at(point));
    if (curve.has_dots) drawing.polylines.push_back({{frame.at(point)}, kCurveDotWidth, curve.ink, 1});
  }
  finish();
  return num_outside;
}

/// "train", "eval: val" after strokes in their colours, right-aligned with the title.
void draw_key(const Panel& panel, double left, double baseline, Drawing& drawing) {
  double x = left + label_width(panel.title, kPanelTitleSize) + 18;
  for (const Curve& curve : panel.curves) {
    if (curve.name.empty()) continue;
    drawing.polylines.push_back({{{x, baseline - 4}, {x + 16, baseline - 4}}, 3, curve.ink, 1});
    add_label(drawing, x + 22, baseline, curve.name, kPanelTextSize, Ink::kMuted);
    x += 22 + label_width(curve.name, kPanelTextSize) + 14;
  }
}

void draw_panel(const Panel& panel, double left, double top, Drawing& drawing) {
  const Frame frame = frame_of(panel, left, top);
  draw_axes(frame, drawing);
  int num_outside = 0;
  for (const Curve& curve : panel.curves) num_outside += draw_curve(curve, frame, drawing);
  const double baseline = top + kPanelTitleSize;
  add_label(drawing, left, baseline, panel.title, kPanelTitleSize);
  draw_key(panel, left, baseline, drawing);
  if (num_outside == 0) return;
  add_label(drawing, frame.right, frame.top + 4, count_of(num_outside, "point") + " outside", kPanelTickSize,
            Ink::kMuted, Align::kRight);
}

constexpr double kSquareMargin = 20, kSquareTitleSize = 15, kSquareTextSize = 12, kSquareTickSize = 11,
                 kSquareLeft = 64, kSide = 360, kCountsHeight = 70;
constexpr double kSquareLineHeight = 20, kBinDotWidth = 8, kSquareWidth = kSquareLeft + kSide + kSquareMargin;

/// The square, its ticks and the diagonal. `top` is that of the square.
void draw_square(double top, Drawing& drawing) {
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double y = top + kSide * (1 - share), x = kSquareLeft + kSide * share;
    drawing.rectangles.push_back({kSquareLeft, y - 0.5, kSide, 1, Ink::kGrid});
    add_label(drawing, kSquareLeft - 8, y + 4, tick_text(share), kSquareTickSize, Ink::kMuted, Align::kRight);
    add_label(drawing, x, top + kSide + 18, tick_text(share), kSquareTickSize, Ink::kMuted, Align::kCenter);
  }
  drawing.polylines.push_back({{{kSquareLeft, top + kSide}, {kSquareLeft + kSide, top}}, 1, Ink::kMuted, 0.6});
  add_label(drawing, kSquareLeft + kSide / 2, top + kSide + 36, "confidence; vertical: share correct", kSquareTickSize,
            Ink::kMuted, Align::kCenter);
}

constexpr double kStart = 0.1;       ///< first part of a curve, whose values may be left out
constexpr double kMuchWider = 1.8;   ///< times the range of the other values
constexpr double kFarShare = 0.005;  ///< share of the values that may be outside, per side
constexpr std::size_t kFewValues = 50;

/// The range of the values after the start, with a margin; the full range if there are too few.
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

constexpr double kMargin = 20, kTextGap = 10, kTitleSize = 17, kTextSize = 13, kBarHeight = 20, kRowHeight = 30;
constexpr double kLongestBar = 360, kLeastWidth = 640, kLineHeight = 24;

double widest(const std::vector<Bar>& bars, std::string Bar::*text) {
  double width = 0;
  for (const Bar& bar : bars) width = std::max(width, label_width(bar.*text, kTextSize));
  return width;
}

constexpr std::size_t kMaxPicturePoints = 500;  ///< per curve; a panel has 540 pixels
constexpr std::size_t kManySteps = 50;          ///< from this many on, the train loss is smoothed
constexpr std::size_t kSmoothing = 25;          ///< a mean covers this fraction of the points

using Points = std::vector<Point>;

/// Averages neighbours so that at most kMaxPicturePoints remain.
Points thinned(const Points& points) {
  const std::size_t group = (points.size() + kMaxPicturePoints - 1) / kMaxPicturePoints;
  Points out;
  for (std::size_t begin = 0; begin < points.size(); begin += group) {
    const std::size_t end = std::min(points.size(), begin + group);
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].y;
    out.push_back({points[end - 1].x, sum / static_cast<double>(end - begin)});
  }
  return out;
}

Points points_of(const RunRecord& run, std::optional<double> StepRecord::*value) {
  Points points;
  for (const LoggedStep& step : run.steps) {
    if (step.*value) points.push_back({static_cast<double>(step.step), *(step.*value)});
  }
  return thinned(points);
}

Points points_of(const RunRecord& run, const std::string& name, std::optional<double> EvalFigures::*value) {
  Points points;
  for (const LoggedEval& eval : run.evals) {
    if (eval.name == name && eval.*value) points.push_back({static_cast<double>(eval.step), *(eval.*value)});
  }
  return points;
}

/// The mean over a window of points up to each point.
Points smoothed(const Points& points) {
  const std::size_t window = std::max<std::size_t>(1, points.size() / kSmoothing);
  Points out;
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sum += points[i].y;
    if (i >= window) sum -= points[i - window].y;
    out.push_back({points[i].x, sum / static_cast<double>(std::min(i + 1, window))});
  }
  return out;
}

/// Names of the datasets and tasks, in order of first appearance.
std::vector<std::string> names_of(const std::vector<LoggedEval>& evals) {
  std::vector<std::string> names;
  for (const LoggedEval& eval : evals) {
    if (std::find(names.begin(), names.end(), eval.name) == names.end()) names.push_back(eval.name);
  }
  return names;
}

void add_evals(const RunRecord& run, const std::string& prefix, std::optional<double> EvalFigures::*value,
               Panel& panel) {
  for (const std::string& name : names_of(run.evals)) {
    const Points points = points_of(run, name, value);
    if (points.empty()) continue;
    panel.curves.push_back(
        {.name = prefix + name, .points = points, .ink = ink_of_curve(panel.curves.size()), .has_dots = true});
  }
}

Panel loss_panel(const RunRecord& run) {
  Panel panel{.title = "Loss"};
  const Points points = points_of(run, &StepRecord::loss_mean);
  const bool is_smoothed = points.size() >= kManySteps;
  if (!points.empty()) panel.curves.push_back({.name = "train", .points = is_smoothed ? smoothed(points) : points});
  add_evals(run, "eval: ", &EvalFigures::loss, panel);
  if (is_smoothed) panel.curves.push_back({.points = points, .is_faint = true});
  return panel;
}

Panel accuracy_panel(const RunRecord& run) {
  Panel panel{.title = "Accuracy"};
  add_evals(run, "", &EvalFigures::accuracy, panel);
  add_evals(run, "tokens: ", &EvalFigures::token_accuracy, panel);
  return panel;
}

Panel panel_of(const RunRecord& run, const StepChart& chart) {
  const StepCurve& shown = chart.shown;
  Panel panel{.title = shown.title, .from_zero = shown.from_zero};
  if (*shown.unit != '\0') panel.title += std::string(", ") + shown.unit;
  for (const StepChart::Curve& curve : chart.curves) {
    const Points points = points_of(run, curve.value);
    if (points.empty()) continue;
    panel.curves.push_back({.name = curve.name, .points = points, .ink = ink_of_curve(panel.curves.size())});
  }
  return panel;
}

std::string subtitle_of(const RunRecord& run) {
  std::string text = run.status;
  const auto add = [&](const char* name, const std::optional<double>& value, FigureKind kind) {
    if (value) text += std::string(", ") + name + format_figure(*value, kind);
  };
  add("step ", run.figures.step, FigureKind::kCount);
  add("train loss ", run.figures.last_train_loss, FigureKind::kLoss);
  add("eval loss ", run.figures.eval_loss, FigureKind::kLoss);
  add("tokens per second ", run.figures.tokens_per_s, FigureKind::kCount);
  return text + ". Over steps.";
}

}  // namespace

Drawing draw(const LineCharts& charts) {
  Drawing drawing;
  drawing.title = charts.title;
  add_label(drawing, kPageMargin, kPageMargin + kPageTitleSize, charts.title, kPageTitleSize);
  add_label(drawing, kPageMargin, kPageMargin + kPageTitleSize + 22, charts.subtitle, kPanelTextSize, Ink::kMuted);
  const double top = kPageMargin + kPageTitleSize + 44;
  for (std::size_t i = 0; i < charts.panels.size(); ++i) {
    const auto column = static_cast<double>(i % kPanelsPerRow), row = static_cast<double>(i / kPanelsPerRow);
    draw_panel(charts.panels[i], kPageMargin + column * (kPanelWidth + kPanelGap),
               top + row * (kPanelHeight + kPanelGap), drawing);
  }
  const double num_rows = std::ceil(static_cast<double>(charts.panels.size()) / kPanelsPerRow);
  drawing.width = static_cast<int>(2 * kPageMargin + kPanelsPerRow * kPanelWidth + (kPanelsPerRow - 1) * kPanelGap);
  drawing.height = static_cast<int>(top + num_rows * (kPanelHeight + kPanelGap) + kPageMargin - kPanelGap);
  return drawing;
}

Drawing draw(const ReliabilityChart& chart) {
  Drawing drawing;
  drawing.title = chart.title;
  double y = kSquareMargin + kSquareTitleSize;
  add_label(drawing, kSquareMargin, y, chart.title, kSquareTitleSize, Ink::kText, Align::kLeft);
  for (const ReliabilityCurve& curve : chart.curves) {
    y += kSquareLineHeight;
    drawing.polylines.push_back({{{kSquareMargin, y - 4}, {kSquareMargin + 18, y - 4}}, 3, curve.ink, 1});
    add_label(drawing, kSquareMargin + 26, y, curve.name, kSquareTextSize, Ink::kMuted, Align::kLeft);
  }
  const double top = y + kSquareLineHeight, counts_bottom = top + kSide + 56 + kCountsHeight;
  draw_square(top, drawing);
  double most = 1;
  for (const ReliabilityCurve& curve : chart.curves) {
    for (const CalibrationBin& bin : curve.bins) most = std::max(most, static_cast<double>(bin.count));
  }
  const auto num_curves = static_cast<double>(chart.curves.size());
  for (std::size_t k = 0; k < chart.curves.size(); ++k) {
    const ReliabilityCurve& curve = chart.curves[k];
    Polyline line{.width = 2, .ink = curve.ink};
    const double width = kSide / static_cast<double>(curve.bins.size()), bar = (width - 2) / num_curves;
    for (std::size_t i = 0; i < curve.bins.size(); ++i) {
      const CalibrationBin& bin = curve.bins[i];
      if (bin.count <= 0) continue;
      const auto count = static_cast<double>(bin.count), num_right = static_cast<double>(bin.num_right);
      const std::string title = fmt::format("{}: confidence {:.3g}, right {:.3g}, {} in the bin", curve.name,
                                            bin.confidence / count, num_right / count, format_count(bin.count));
      line.points.push_back({kSquareLeft + kSide * bin.confidence / count, top + kSide * (1 - num_right / count)});
      drawing.polylines.push_back({{line.points.back()}, kBinDotWidth, curve.ink, 1, title});
      const double height = std::max(2.0, kCountsHeight * std::log(count + 1) / std::log(most + 1));
      const double left = kSquareLeft + static_cast<double>(i) * width + 1 + static_cast<double>(k) * bar;
      drawing.rectangles.push_back({left, counts_bottom - height, bar, height, curve.ink, title});
    }
    if (!line.points.empty()) drawing.polylines.push_back(line);
  }
  add_label(drawing, kSquareLeft - 8, counts_bottom - kCountsHeight + 10, tick_text(most), kSquareTickSize, Ink::kMuted,
            Align::kRight);
  add_label(drawing, kSquareLeft + kSide / 2, counts_bottom + 18, "count per bin (log)", kSquareTickSize, Ink::kMuted,
            Align::kCenter);
  drawing.width = static_cast<int>(kSquareWidth);
  drawing.height = static_cast<int>(counts_bottom + 18 + kSquareMargin);
  return drawing;
}

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
  const auto [least, most] = std::ranges::minmax(samples, {}, &Sample::y);
  Range range{least.y, most.y};
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
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

Drawing draw(const BarChart& chart) {
  const double names = widest(chart.bars, &Bar::name), texts = widest(chart.bars, &Bar::text);
  double largest = 0;
  for (const Bar& bar : chart.bars) largest = std::max(largest, bar.value.value_or(0));
  const double titles = std::max(label_width(chart.title, kTitleSize), label_width(chart.subtitle, kTextSize));
  const double row_width = names + kTextGap + kLongestBar + kTextGap + texts;
  Drawing drawing;
  drawing.title = chart.title;
  drawing.width = static_cast<int>(std::ceil(std::max({kLeastWidth, row_width + 2 * kMargin, titles + 2 * kMargin})));
  double y = kMargin + kTitleSize;
  add_label(drawing, kMargin, y, chart.title, kTitleSize);
  if (!chart.subtitle.empty()) {
    y += kLineHeight;
    add_label(drawing, kMargin, y, chart.subtitle, kTextSize, Ink::kMuted);
  }
  y += kTextGap;
  const double left = kMargin + names + kTextGap, longest = drawing.width - left - kTextGap - texts - kMargin;
  const double top = y;
  for (const Bar& bar : chart.bars) {
    const double baseline = y + kRowHeight / 2 + kTextSize * 0.36;
    add_label(drawing, left - kTextGap, baseline, bar.name, kTextSize, Ink::kText, Align::kRight);
    const double length = largest > 0 ? longest * bar.value.value_or(0) / largest : 0;
    if (bar.value)
      drawing.rectangles.push_back({left, y + (kRowHeight - kBarHeight) / 2, std::max(1.0, length), kBarHeight,
                                    bar.is_accented ? Ink::kAccent : Ink::kBar});
    add_label(drawing, left + length + kTextGap, baseline, bar.text, kTextSize, bar.value ? Ink::kText : Ink::kBad);
    y += kRowHeight;
  }
  drawing.rectangles.push_back({left - 1, top, 1, y - top, Ink::kGrid});
  drawing.height = static_cast<int>(std::ceil(y + kMargin));
  return drawing;
}

const std::vector<StepChart>& step_charts() {
  static const std::vector<StepChart> all = [] {
    std::vector<StepChart> charts;
    for_each_field<StepRecord>([&](const auto& field) {
      if constexpr (requires { field.curve; }) {
        const auto is_same = [&](const StepChart& chart) {
          return std::string_view(chart.shown.title) == field.curve.title;
        };
        auto chart = std::ranges::find_if(charts, is_same);
        if (chart == charts.end()) chart = charts.insert(chart, StepChart{field.curve, {}});
        chart->curves.push_back({field.key, field.curve.name, field.member, field.curve.is_peak});
      }
    });
    return charts;
  }();
  return all;
}

std::string curves_png(const RunRecord& run) {
  LineCharts charts{.title = run.name, .subtitle = subtitle_of(run)};
  std::vector<Panel> panels = {loss_panel(run), accuracy_panel(run)};
  for (const StepChart& chart : step_charts()) panels.push_back(panel_of(run, chart));
  std::ranges::copy_if(panels, std::back_inserter(charts.panels),
                       [](const Panel& panel) { return !panel.curves.empty(); });
  return to_png(draw(charts), 1);
}

ReliabilityCurve reliability_curve(const EvalRecord& eval, Ink ink) {
  return {fmt::format("step {}{}", eval.step, eval.ece ? fmt::format(": calibration error {:.4f}", *eval.ece) : ""),
          eval.bins, ink};
}

}  // namespace lora_train::report

#include "line_chart.h"

#include <algorithm>
#include <cmath>

#include "axis.h"

namespace lora_train::report {
namespace {

constexpr double kPageMargin = 24, kPageTitleSize = 18, kPanelTitleSize = 14, kPanelTextSize = 12, kPanelTickSize = 11;
constexpr double kPanelWidth = 540, kPanelHeight = 240, kPanelGap = 28, kHead = 30, kPanelLeft = 58, kRight = 10,
                 kFoot = 26;
constexpr int kPanelsPerRow = 2;
constexpr double kLineWidth = 1.8, kFaintWidth = 1.1, kFaintOpacity = 0.4, kCurveDotWidth = 5.5;

/// Where a panel's values lie in the drawing.
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

void draw_axes(const Frame& frame, Drawing& drawing) {
  for (const double y : nice_ticks(frame.y, 5)) {
    const double at = frame.at({frame.x.low, y}).y;
    drawing.rectangles.push_back({frame.left, at - 0.5, frame.right - frame.left, 1, Ink::kGrid});
    drawing.labels.push_back({.x = frame.left - 8,
                              .baseline = at + 4,
                              .text = tick_text(y),
                              .size = kPanelTickSize,
                              .ink = Ink::kMuted,
                              .align = Align::kRight});
  }
  for (const double x : nice_ticks(frame.x, 6)) {
    const double at = frame.at({x, 0}).x;
    const bool is_at_edge = at > frame.right - 14;
    drawing.labels.push_back({.x = is_at_edge ? frame.right : at,
                              .baseline = frame.bottom + 18,
                              .text = tick_text(x),
                              .size = kPanelTickSize,
                              .ink = Ink::kMuted,
                              .align = is_at_edge ? Align::kRight : Align::kCenter});
  }
}

/// Where the line from `inside` to `outside` leaves the range.
Point cut(const Point& inside, const Point& outside, const Range& range) {
  const double edge = outside.y > range.high ? range.high : range.low;
  const double share = (edge - inside.y) / (outside.y - inside.y);
  return {inside.x + share * (outside.x - inside.x), edge};
}

/// The parts of a curve that lie within the range. Returns how many points do not.
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

/// "train", "eval: val" behind strokes of their colours, from the right end of the title.
void draw_key(const Panel& panel, double left, double baseline, Drawing& drawing) {
  double x = left + label_width(panel.title, kPanelTitleSize) + 18;
  for (const Curve& curve : panel.curves) {
    if (curve.name.empty()) continue;
    drawing.polylines.push_back({{{x, baseline - 4}, {x + 16, baseline - 4}}, 3, curve.ink, 1});
    drawing.labels.push_back(
        {.x = x + 22, .baseline = baseline, .text = curve.name, .size = kPanelTextSize, .ink = Ink::kMuted});
    x += 22 + label_width(curve.name, kPanelTextSize) + 14;
  }
}

void draw_panel(const Panel& panel, double left, double top, Drawing& drawing) {
  const Frame frame = frame_of(panel, left, top);
  draw_axes(frame, drawing);
  int num_outside = 0;
  for (const Curve& curve : panel.curves) num_outside += draw_curve(curve, frame, drawing);
  const double baseline = top + kPanelTitleSize;
  drawing.labels.push_back({.x = left, .baseline = baseline, .text = panel.title, .size = kPanelTitleSize});
  draw_key(panel, left, baseline, drawing);
  if (num_outside == 0) return;
  drawing.labels.push_back({.x = frame.right,
                            .baseline = frame.top + 4,
                            .text = count_of(num_outside, "point") + " outside",
                            .size = kPanelTickSize,
                            .ink = Ink::kMuted,
                            .align = Align::kRight});
}

constexpr double kSquareMargin = 20, kSquareTitleSize = 15, kSquareTextSize = 12, kSquareTickSize = 11,
                 kSquareLeft = 64, kSide = 360, kCountsHeight = 70;
constexpr double kSquareLineHeight = 20, kBinDotWidth = 8, kSquareWidth = kSquareLeft + kSide + kSquareMargin;

void add_label(Drawing& drawing, double x, double baseline, const std::string& text, double size, Ink ink,
               Align align) {
  drawing.labels.push_back({.x = x, .baseline = baseline, .text = text, .size = size, .ink = ink, .align = align});
}

/// The square, its ticks and the diagonal. `top`: of the square.
void draw_square(double top, Drawing& drawing) {
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double y = top + kSide * (1 - share), x = kSquareLeft + kSide * share;
    drawing.rectangles.push_back({kSquareLeft, y - 0.5, kSide, 1, Ink::kGrid});
    add_label(drawing, kSquareLeft - 8, y + 4, tick_text(share), kSquareTickSize, Ink::kMuted, Align::kRight);
    add_label(drawing, x, top + kSide + 18, tick_text(share), kSquareTickSize, Ink::kMuted, Align::kCenter);
  }
  drawing.polylines.push_back({{{kSquareLeft, top + kSide}, {kSquareLeft + kSide, top}}, 1, Ink::kMuted, 0.6});
  add_label(drawing, kSquareLeft + kSide / 2, top + kSide + 36, "confidence; upwards: share that is right",
            kSquareTickSize, Ink::kMuted, Align::kCenter);
}

}  // namespace

Drawing draw(const LineCharts& charts) {
  Drawing drawing;
  drawing.title = charts.title;
  drawing.labels.push_back(
      {.x = kPageMargin, .baseline = kPageMargin + kPageTitleSize, .text = charts.title, .size = kPageTitleSize});
  drawing.labels.push_back({.x = kPageMargin,
                            .baseline = kPageMargin + kPageTitleSize + 22,
                            .text = charts.subtitle,
                            .size = kPanelTextSize,
                            .ink = Ink::kMuted});
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
    for (const auto& bin : curve.bins) most = std::max(most, bin.count);
  }
  const auto num_curves = static_cast<double>(chart.curves.size());
  for (std::size_t k = 0; k < chart.curves.size(); ++k) {
    const ReliabilityCurve& curve = chart.curves[k];
    Polyline line{.width = 2, .ink = curve.ink};
    const double width = kSide / static_cast<double>(curve.bins.size()), bar = (width - 2) / num_curves;
    for (std::size_t i = 0; i < curve.bins.size(); ++i) {
      const auto& bin = curve.bins[i];
      if (bin.count <= 0) continue;
      line.points.push_back({kSquareLeft + kSide * bin.confidence, top + kSide * (1 - bin.accuracy)});
      drawing.polylines.push_back({{line.points.back()}, kBinDotWidth, curve.ink, 1});
      const double height = std::max(2.0, kCountsHeight * std::log(bin.count + 1) / std::log(most + 1));
      const double left = kSquareLeft + static_cast<double>(i) * width + 1 + static_cast<double>(k) * bar;
      drawing.rectangles.push_back({left, counts_bottom - height, bar, height, curve.ink});
    }
    if (!line.points.empty()) drawing.polylines.push_back(line);
  }
  add_label(drawing, kSquareLeft - 8, counts_bottom - kCountsHeight + 10, tick_text(most), kSquareTickSize, Ink::kMuted,
            Align::kRight);
  add_label(drawing, kSquareLeft + kSide / 2, counts_bottom + 18, "how many are in each bin (log)", kSquareTickSize,
            Ink::kMuted, Align::kCenter);
  drawing.width = static_cast<int>(kSquareWidth);
  drawing.height = static_cast<int>(counts_bottom + 18 + kSquareMargin);
  return drawing;
}

}  // namespace lora_train::report

#include <algorithm>
#include <cmath>

#include "axis.h"
#include "lora_train/chart/line_chart.h"

namespace lora_train::chart {
namespace {

constexpr double kMargin = 20, kTitleSize = 15, kTextSize = 12, kTickSize = 11, kLeft = 64, kSide = 360,
                 kCountsHeight = 70;
constexpr double kLineHeight = 20, kDotWidth = 8, kWidth = kLeft + kSide + kMargin;

void add_label(Drawing& drawing, double x, double baseline, const std::string& text, double size, Ink ink,
               Align align) {
  drawing.labels.push_back({.x = x, .baseline = baseline, .text = text, .size = size, .ink = ink, .align = align});
}

/// The square, its ticks and the diagonal. `top`: of the square.
void draw_square(double top, Drawing& drawing) {
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double y = top + kSide * (1 - share), x = kLeft + kSide * share;
    drawing.rectangles.push_back({kLeft, y - 0.5, kSide, 1, Ink::kGrid});
    add_label(drawing, kLeft - 8, y + 4, tick_text(share), kTickSize, Ink::kMuted, Align::kRight);
    add_label(drawing, x, top + kSide + 18, tick_text(share), kTickSize, Ink::kMuted, Align::kCenter);
  }
  drawing.polylines.push_back({{{kLeft, top + kSide}, {kLeft + kSide, top}}, 1, Ink::kMuted, 0.6});
  add_label(drawing, kLeft + kSide / 2, top + kSide + 36, "confidence; upwards: share that is right", kTickSize,
            Ink::kMuted, Align::kCenter);
}

}  // namespace

Drawing draw(const ReliabilityChart& chart) {
  Drawing drawing;
  drawing.title = chart.title;
  double y = kMargin + kTitleSize;
  add_label(drawing, kMargin, y, chart.title, kTitleSize, Ink::kText, Align::kLeft);
  for (const ReliabilityCurve& curve : chart.curves) {
    y += kLineHeight;
    drawing.polylines.push_back({{{kMargin, y - 4}, {kMargin + 18, y - 4}}, 3, curve.ink, 1});
    add_label(drawing, kMargin + 26, y, curve.name, kTextSize, Ink::kMuted, Align::kLeft);
  }
  const double top = y + kLineHeight, counts_bottom = top + kSide + 56 + kCountsHeight;
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
      line.points.push_back({kLeft + kSide * bin.confidence, top + kSide * (1 - bin.accuracy)});
      drawing.polylines.push_back({{line.points.back()}, kDotWidth, curve.ink, 1});
      const double height = std::max(2.0, kCountsHeight * std::log(bin.count + 1) / std::log(most + 1));
      const double left = kLeft + static_cast<double>(i) * width + 1 + static_cast<double>(k) * bar;
      drawing.rectangles.push_back({left, counts_bottom - height, bar, height, curve.ink});
    }
    if (!line.points.empty()) drawing.polylines.push_back(line);
  }
  add_label(drawing, kLeft - 8, counts_bottom - kCountsHeight + 10, tick_text(most), kTickSize, Ink::kMuted,
            Align::kRight);
  add_label(drawing, kLeft + kSide / 2, counts_bottom + 18, "how many are in each bin (log)", kTickSize, Ink::kMuted,
            Align::kCenter);
  drawing.width = static_cast<int>(kWidth);
  drawing.height = static_cast<int>(counts_bottom + 18 + kMargin);
  return drawing;
}

}  // namespace lora_train::chart

#include <algorithm>
#include <cmath>

#include "axis.h"
#include "line_chart.h"

namespace lora_train::report {
namespace {

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

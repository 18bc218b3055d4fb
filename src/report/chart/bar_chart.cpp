#include "lora_train/report/chart/bar_chart.h"

#include <algorithm>
#include <cmath>

namespace lora_train::report {
namespace {

constexpr double kMargin = 20, kTextGap = 10, kTitleSize = 17, kTextSize = 13, kBarHeight = 20, kRowHeight = 30;
constexpr double kLongestBar = 360, kLeastWidth = 640, kLineHeight = 24;

double widest(const std::vector<Bar>& bars, std::string Bar::*text) {
  double width = 0;
  for (const Bar& bar : bars) width = std::max(width, label_width(bar.*text, kTextSize));
  return width;
}

}  // namespace

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
  drawing.labels.push_back({.x = kMargin, .baseline = y, .text = chart.title, .size = kTitleSize});
  if (!chart.subtitle.empty()) {
    y += kLineHeight;
    drawing.labels.push_back(
        {.x = kMargin, .baseline = y, .text = chart.subtitle, .size = kTextSize, .ink = Ink::kMuted});
  }
  y += kTextGap;
  const double left = kMargin + names + kTextGap, longest = drawing.width - left - kTextGap - texts - kMargin;
  const double top = y;
  for (const Bar& bar : chart.bars) {
    const double baseline = y + kRowHeight / 2 + kTextSize * 0.36;
    drawing.labels.push_back(
        {.x = left - kTextGap, .baseline = baseline, .text = bar.name, .size = kTextSize, .align = Align::kRight});
    const double length = largest > 0 ? longest * bar.value.value_or(0) / largest : 0;
    if (bar.value)
      drawing.rectangles.push_back({left, y + (kRowHeight - kBarHeight) / 2, std::max(1.0, length), kBarHeight,
                                    bar.is_accented ? Ink::kAccent : Ink::kBar});
    drawing.labels.push_back({.x = left + length + kTextGap,
                              .baseline = baseline,
                              .text = bar.text,
                              .size = kTextSize,
                              .ink = bar.value ? Ink::kText : Ink::kBad});
    y += kRowHeight;
  }
  drawing.rectangles.push_back({left - 1, top, 1, y - top, Ink::kGrid});
  drawing.height = static_cast<int>(std::ceil(y + kMargin));
  return drawing;
}

}  // namespace lora_train::report

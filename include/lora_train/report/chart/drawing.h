// A chart as a list of shapes, and its output formats PNG and SVG.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::report {

/// The role of a shape. PNG uses the colours of a light page, SVG those of the surrounding page (--text and so on).
/// kAccent and kCurve2 to kCurve6 distinguish curves.
enum class Ink { kText, kMuted, kGrid, kBar, kAccent, kBad, kCurve2, kCurve3, kCurve4, kCurve5, kCurve6 };

/// Ink of the i-th curve of a chart; repeats from the seventh on.
inline Ink ink_of_curve(std::size_t i) {
  constexpr Ink kCurves[] = {Ink::kAccent, Ink::kCurve2, Ink::kCurve3, Ink::kCurve4, Ink::kCurve5, Ink::kCurve6};
  return kCurves[i % std::size(kCurves)];
}

/// Lengths are in SVG pixels, from the top left.
struct Rectangle {
  double x = 0, y = 0, width = 0, height = 0;
  Ink ink = Ink::kBar;
  std::string title = {};  ///< shown by a browser under the pointer (SVG)
};

struct Point {
  double x = 0, y = 0;
};

/// An open anti-aliased line with round joints and ends. A single point is a dot of diameter `width`.
struct Polyline {
  std::vector<Point> points = {};
  double width = 1.6;
  Ink ink = Ink::kAccent;
  double opacity = 1;
  std::string title = {};  ///< of a dot, as for rectangles
};

enum class Align { kLeft, kRight, kCenter };

/// One line of UTF-8 text.
struct Label {
  double x = 0, baseline = 0;  ///< x of the left end, right end or middle
  std::string text = {};
  double size = 13;
  Ink ink = Ink::kText;
  Align align = Align::kLeft;
};

/// Painted in this order: rectangles, polylines, labels.
struct Drawing {
  int width = 0, height = 0;
  std::string title = {};  ///< alternative text for screen readers (SVG)
  std::vector<Rectangle> rectangles = {};
  std::vector<Polyline> polylines = {};
  std::vector<Label> labels = {};
};

/// DejaVu Sans as a TrueType file, embedded in the program because a training machine may have no fonts.
std::string_view embedded_font();

/// Width of a label in that font, which to_png() uses.
double label_width(const std::string& text, double size);

/// An RGB image with `scale` pixels per unit of length. Throws std::runtime_error if the drawing has no area or more
/// than 2^27 pixels.
std::string to_png(const Drawing& drawing, int scale = 2);

/// An <svg> element without a header, to embed in a page. All text is escaped.
std::string to_svg(const Drawing& drawing);

}  // namespace lora_train::report

#include <gtest/gtest.h>
#include <png.h>

#include <array>
#include <cmath>

#include "chart/charts.h"

namespace lora_train::report {
namespace {

/// The pixels of a PNG, read back by libpng.
class Picture {
 public:
  explicit Picture(const std::string& file) {
    image_.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image_, file.data(), file.size()) == 0) return;
    image_.format = PNG_FORMAT_RGB;
    pixels_.resize(PNG_IMAGE_SIZE(image_));
    png_image_finish_read(&image_, nullptr, pixels_.data(), 0, nullptr);
  }
  int width() const { return static_cast<int>(image_.width); }
  int height() const { return static_cast<int>(image_.height); }
  std::array<int, 3> at(int x, int y) const {
    const std::size_t start = 3 * (static_cast<std::size_t>(y) * image_.width + static_cast<std::size_t>(x));
    return {pixels_.at(start), pixels_.at(start + 1), pixels_.at(start + 2)};
  }
  /// Of all pixels between two columns.
  int num_dark(int begin, int end) const {
    int count = 0;
    for (int y = 0; y < height(); ++y) {
      for (int x = begin; x < end; ++x) count += at(x, y)[0] < 128 ? 1 : 0;
    }
    return count;
  }

 private:
  png_image image_{};
  std::vector<png_byte> pixels_;
};

constexpr std::array kWhite{255, 255, 255}, kBarColor{147, 179, 226}, kAccentColor{37, 99, 235};

TEST(Drawing, PaintsRectanglesWhereTheyAreAndNoPictureWithoutAnAreaOrTooLarge) {
  const Drawing drawing{.width = 40, .height = 20, .rectangles = {{10, 5, 20, 10, Ink::kBar}}};
  const Picture picture(to_png(drawing, 2));
  ASSERT_EQ(picture.width(), 80);
  ASSERT_EQ(picture.height(), 40);
  for (const auto& [x, y] : {std::pair{20, 10}, {59, 29}}) EXPECT_EQ(picture.at(x, y), kBarColor) << x;
  for (const auto& [x, y] : {std::pair{19, 10}, {60, 29}, {20, 30}}) EXPECT_EQ(picture.at(x, y), kWhite) << x;
  EXPECT_THROW(to_png(Drawing{.width = 0, .height = 5}), std::runtime_error);
  EXPECT_THROW(to_png(Drawing{.width = 100'000, .height = 100'000}), std::runtime_error);
}

TEST(Drawing, PaintsLinesWithSmoothEdgesAndOnePointAsADot) {
  const Drawing drawing{.width = 40, .height = 20, .polylines = {{{{5, 10}, {20, 10}, {35, 10}}, 4, Ink::kAccent, 1}}};
  const Picture picture(to_png(drawing, 1));
  for (const int y : {9, 10}) EXPECT_EQ(picture.at(20, y), kAccentColor) << y;  // also where two segments meet
  EXPECT_EQ(picture.at(20, 13), kWhite);
  EXPECT_EQ(picture.at(1, 10), kWhite);
  const Drawing slanted{.width = 40, .height = 20, .polylines = {{{{0, 0}, {40, 20}}, 2, Ink::kText, 1}}};
  const Picture smooth(to_png(slanted, 1));
  bool has_shades = false;
  for (int x = 0; x < 40; ++x) has_shades = has_shades || (smooth.at(x, 10)[0] > 60 && smooth.at(x, 10)[0] < 220);
  EXPECT_TRUE(has_shades);
  const Drawing one_point{.width = 20, .height = 20, .polylines = {{{{10, 10}}, 8, Ink::kAccent, 1}}};
  const Picture dot(to_png(one_point, 1));
  for (const int y : {7, 10}) EXPECT_EQ(dot.at(10, y), kAccentColor) << y;
  EXPECT_EQ(dot.at(14, 14), kWhite);
  EXPECT_NE(to_svg(one_point).find("<circle cx=\"10.0\" cy=\"10.0\" r=\"4.0\""), std::string::npos);
}

TEST(Axis, TicksAreRound) {
  EXPECT_EQ(nice_ticks({0, 10}, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks({0.4, 2.1}, 4), (std::vector<double>{0.5, 1, 1.5, 2}));
  EXPECT_FALSE(std::signbit(nice_ticks({-0.05, 1}, 4).front()));
  EXPECT_TRUE(nice_ticks({1, 1}, 5).empty());
  EXPECT_EQ(tick_text(12'500), "12.5k");
  EXPECT_EQ(tick_text(3e-5), "3e-05");
}

TEST(Axis, ASteepStartAndAFarValueDoNotPressTheRestFlat) {
  std::vector<Sample> samples;
  for (int i = 0; i <= 100; ++i) samples.push_back({i / 100.0, i < 5 ? 11.0 - i : 1 + 0.001 * i});
  Range range = fitted_range(samples, false);
  EXPECT_LT(range.high, 2);
  EXPECT_LT(range.low, 1.01);
  samples[60].y = 500;
  EXPECT_LT(fitted_range(samples, false).high, 2);
  EXPECT_EQ(fitted_range(samples, true).low, 0);
  for (Sample& sample : samples) sample.y = sample.x;  // nothing stands out: all is shown
  range = fitted_range(samples, false);
  EXPECT_LT(range.low, 0);
  EXPECT_GT(range.high, 1);
}

TEST(LineCharts, SayHowManyPointsTheyLeaveOut) {
  LineCharts charts{"run", "done", {{.title = "Loss"}}};
  charts.panels[0].curves = {{.name = "train", .has_dots = true}, {.name = "</svg>"}};
  for (int i = 0; i <= 100; ++i) charts.panels[0].curves[0].points.push_back({i + 0.0, i < 5 ? 9.0 : 1 + 0.001 * i});
  const Drawing drawing = draw(charts);
  const std::string svg = to_svg(drawing);
  EXPECT_NE(svg.find("5 points outside"), std::string::npos);
  EXPECT_EQ(svg.find("</svg>"), svg.size() - 7);  // names are escaped
  for (const Polyline& line : drawing.polylines) {
    for (const Point& point : line.points) {
      EXPECT_GE(point.y, 0);
      EXPECT_LE(point.y, drawing.height);
      EXPECT_LE(point.x, drawing.width);
    }
  }
}

TEST(ReliabilityChart, HasADotAndABarForEachBinThatIsNotEmpty) {
  const ReliabilityCurve curve{"step 3", {{0, 0, 0}, {5, 3.75, 2}, {9, 8.1, 9}}, Ink::kAccent};
  const Drawing drawing = draw(ReliabilityChart{"tokens", {curve}});
  int dots = 0, bars = 0;
  for (const Polyline& line : drawing.polylines) dots += line.points.size() == 1 ? 1 : 0;
  for (const Rectangle& box : drawing.rectangles) bars += box.ink == Ink::kAccent ? 1 : 0;
  EXPECT_EQ(dots, 2);
  EXPECT_EQ(bars, 2);
}

TEST(Drawing, WritesLabelsAsWideAsTheirGlyphsFromTheirLeftOrRightEnd) {
  Drawing drawing{.width = 200, .height = 30, .labels = {{.x = 100, .baseline = 20, .text = "measured"}}};
  const Picture right_of(to_png(drawing, 1));
  EXPECT_EQ(right_of.num_dark(0, 99), 0);
  EXPECT_GT(right_of.num_dark(100, 200), 50);
  drawing.labels[0].align = Align::kRight;
  const Picture left_of(to_png(drawing, 1));
  EXPECT_GT(left_of.num_dark(0, 101), 50);
  EXPECT_EQ(left_of.num_dark(102, 200), 0);
  EXPECT_NEAR(label_width("10", 26), 2 * label_width("10", 13), 1e-9);
  EXPECT_GT(label_width("WWW", 13), 2 * label_width("iii", 13));
  EXPECT_GT(label_width("\xC3\xA9t\xC3\xA9", 13), label_width("t", 13));
  EXPECT_EQ(label_width("", 13), 0);
}

TEST(Drawing, TheSvgEscapesWhatItShows) {
  const Drawing drawing{.width = 9, .height = 9, .title = "a<b", .labels = {{.text = "</text><script>\"&"}}};
  const std::string svg = to_svg(drawing);
  EXPECT_NE(svg.find("&lt;/text&gt;&lt;script&gt;&quot;&amp;"), std::string::npos) << svg;
  EXPECT_NE(svg.find("<title>a&lt;b</title>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(BarChart, BarsAreAsLongAsTheirValuesAndTheChartAsWideAsItsTexts) {
  const Drawing drawing = draw({.title = "Speed", .bars = {{"a", 10, "10"}, {"b", 40, "40"}, {"c", {}, "too big"}}});
  ASSERT_EQ(drawing.rectangles.size(), 3U);  // and the line that they begin at
  EXPECT_NEAR(drawing.rectangles[1].width, 4 * drawing.rectangles[0].width, 1e-9);
  const auto& last = drawing.labels.back();
  EXPECT_EQ(last.text, "too big");
  EXPECT_EQ(last.ink, Ink::kBad);
  const std::string name(60, 'W'), text(80, 'M');
  const Drawing wide = draw({.title = "t", .bars = {{name, 1, text}}});
  for (const Label& label : wide.labels) {
    const double width = label_width(label.text, label.size);
    EXPECT_GE(label.align == Align::kLeft ? label.x : label.x - width, 0) << label.text;
    EXPECT_LE(label.align == Align::kLeft ? label.x + width : label.x, wide.width) << label.text;
  }
}

}  // namespace
}  // namespace lora_train::report

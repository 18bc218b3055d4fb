#include <gtest/gtest.h>
#include <png.h>

#include <array>

#include "lora_train/chart/bar_chart.h"

namespace lora_train::chart {
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

constexpr std::array kWhite{255, 255, 255}, kBarColor{147, 179, 226};

TEST(Drawing, PaintsRectanglesWhereTheyAre) {
  const Drawing drawing{.width = 40, .height = 20, .rectangles = {{10, 5, 20, 10, Ink::kBar}}};
  const Picture picture(to_png(drawing, 2));
  ASSERT_EQ(picture.width(), 80);
  ASSERT_EQ(picture.height(), 40);
  EXPECT_EQ(picture.at(20, 10), kBarColor);
  EXPECT_EQ(picture.at(59, 29), kBarColor);
  EXPECT_EQ(picture.at(19, 10), kWhite);
  EXPECT_EQ(picture.at(60, 29), kWhite);
  EXPECT_EQ(picture.at(20, 30), kWhite);
}

TEST(Drawing, WritesLabelsFromTheirLeftOrRightEnd) {
  Drawing drawing{.width = 200, .height = 30, .labels = {{.x = 100, .baseline = 20, .text = "measured"}}};
  const Picture right_of(to_png(drawing, 1));
  EXPECT_EQ(right_of.num_dark(0, 99), 0);
  EXPECT_GT(right_of.num_dark(100, 200), 50);
  drawing.labels[0].align = Align::kRight;
  const Picture left_of(to_png(drawing, 1));
  EXPECT_GT(left_of.num_dark(0, 101), 50);
  EXPECT_EQ(left_of.num_dark(102, 200), 0);
}

TEST(Drawing, ALabelIsAsWideAsItsGlyphs) {
  EXPECT_NEAR(label_width("10", 26), 2 * label_width("10", 13), 1e-9);
  EXPECT_GT(label_width("WWW", 13), 2 * label_width("iii", 13));
  EXPECT_GT(label_width("\xC3\xA9t\xC3\xA9", 13), label_width("t", 13));
  EXPECT_EQ(label_width("", 13), 0);
}

TEST(Drawing, RefusesWhatHasNoAreaOrTooMuch) {
  EXPECT_THROW(to_png(Drawing{.width = 0, .height = 5}), std::runtime_error);
  EXPECT_THROW(to_png(Drawing{.width = 100'000, .height = 100'000}), std::runtime_error);
}

TEST(Drawing, TheSvgEscapesWhatItShows) {
  const Drawing drawing{.width = 9, .height = 9, .title = "a<b", .labels = {{.text = "</text><script>\"&"}}};
  const std::string svg = to_svg(drawing);
  EXPECT_NE(svg.find("&lt;/text&gt;&lt;script&gt;&quot;&amp;"), std::string::npos) << svg;
  EXPECT_NE(svg.find("<title>a&lt;b</title>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(BarChart, BarsAreAsLongAsTheirValues) {
  const Drawing drawing = draw({.title = "Speed", .bars = {{"a", 10, "10"}, {"b", 40, "40"}, {"c", {}, "too big"}}});
  ASSERT_EQ(drawing.rectangles.size(), 3U);  // and the line that they begin at
  EXPECT_NEAR(drawing.rectangles[1].width, 4 * drawing.rectangles[0].width, 1e-9);
  const auto& last = drawing.labels.back();
  EXPECT_EQ(last.text, "too big");
  EXPECT_EQ(last.ink, Ink::kBad);
}

TEST(BarChart, IsWideEnoughForItsTexts) {
  const std::string name(60, 'W'), text(80, 'M');
  const Drawing drawing = draw({.title = "t", .bars = {{name, 1, text}}});
  for (const Label& label : drawing.labels) {
    const double width = label_width(label.text, label.size);
    EXPECT_GE(label.align == Align::kLeft ? label.x : label.x - width, 0) << label.text;
    EXPECT_LE(label.align == Align::kLeft ? label.x + width : label.x, drawing.width) << label.text;
  }
}

}  // namespace
}  // namespace lora_train::chart

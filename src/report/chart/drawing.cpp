// Text by FreeType, PNG files by libpng.
#include "lora_train/report/chart/drawing.h"

#include <ft2build.h>
#include FT_FREETYPE_H
#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::report {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;
constexpr std::uint8_t kBackground = 255;
constexpr double kUnitsPerPixel = 64;  // FreeType's 26.6 fixed point

/// Colours of a light page.
struct InkColor {
  const char* name;  ///< name of the page's variable: --<name>
  unsigned char red, green, blue;
};

const InkColor& color_of(Ink ink) {
  static constexpr InkColor kColors[] = {{"text", 31, 41, 55},     {"faint", 107, 114, 128}, {"line", 209, 213, 219},
                                         {"bar", 147, 179, 226},   {"accent", 37, 99, 235},  {"bad", 180, 60, 40},
                                         {"curve2", 229, 115, 11}, {"curve3", 47, 158, 95},  {"curve4", 208, 59, 75},
                                         {"curve5", 138, 99, 210}, {"curve6", 15, 159, 176}};
  return kColors[static_cast<int>(ink)];
}

[[noreturn]] void fail(const char* what) { throw std::runtime_error(std::string("a chart was not drawn: ") + what); }

/// The embedded font. Not thread-safe.
class Face {
 public:
  Face() {
    if (FT_Init_FreeType(&library_) != 0) fail("FreeType does not start");
    const std::string_view font = embedded_font();
    if (FT_New_Memory_Face(library_, reinterpret_cast<const FT_Byte*>(font.data()), static_cast<FT_Long>(font.size()),
                           0, &face_) != 0) {
      FT_Done_FreeType(library_);
      fail("FreeType does not read its font");
    }
  }
  ~Face() { FT_Done_FreeType(library_); }  // also frees the face
  Face(const Face&) = delete;
  Face& operator=(const Face&) = delete;

  /// Calls visit(x, glyph) for each glyph of the text, where x is its origin; returns the width. In pixels.
  template <typename Visit>
  double layout(const std::string& text, double size, FT_Int32 flags, const Visit& visit) {
    if (FT_Set_Char_Size(face_, 0, std::lround(size * kUnitsPerPixel), 72, 72) != 0) fail("the size of a label");
    const std::string shown = visible_text(text);
    double x = 0;
    FT_UInt previous = 0;
    for (std::size_t at = 0; at < shown.size();) {
      const Utf8Char next = utf8_char(shown, at);
      at += std::max<std::size_t>(1, next.length);
      const FT_UInt index = FT_Get_Char_Index(face_, next.code_point);
      FT_Vector kerning{};
      if (previous != 0) FT_Get_Kerning(face_, previous, index, FT_KERNING_UNFITTED, &kerning);
      x += static_cast<double>(kerning.x) / kUnitsPerPixel;
      if (FT_Load_Glyph(face_, index, flags | FT_LOAD_NO_HINTING) != 0) fail("a glyph of a label");
      visit(x, *face_->glyph);
      x += static_cast<double>(face_->glyph->linearHoriAdvance) / 65536;
      previous = index;
    }
    return x;
  }

 private:
  FT_Library library_ = nullptr;
  FT_Face face_ = nullptr;
};

class Canvas {
 public:
  Canvas(const Drawing& drawing, int scale)
      : width_(drawing.width * scale), height_(drawing.height * scale), scale_(scale) {
    if (drawing.width < 1 || drawing.height < 1 || scale < 1) fail("it has no area");
    if (std::int64_t{drawing.width} * drawing.height * scale * scale > kMostPixels) fail("it has too many pixels");
    pixels_.assign(3 * static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_), kBackground);
  }

  void paint(const Rectangle& box) {
    const auto at = [&](double position) { return static_cast<int>(std::lround(position * scale_)); };
    for (int y = at(box.y); y < at(box.y + box.height); ++y) {
      for (int x = at(box.x); x < at(box.x + box.width); ++x) blend(x, y, color_of(box.ink), 255);
    }
  }

  /// A pixel's coverage follows from its distance to the line; where segments meet, the larger coverage counts.
  void paint(const Polyline& line) {
    const double radius = line.width * scale_ / 2;
    const Box box = box_of(line, radius);
    if (box.width() < 1 || box.height() < 1) return;
    std::vector<std::uint8_t> coverage(static_cast<std::size_t>(box.width()) * static_cast<std::size_t>(box.height()),
                                       0);
    for (std::size_t i = 0; i < line.points.size(); ++i) {
      const Point from = scaled(line.points[i > 0 ? i - 1 : 0]), to = scaled(line.points[i]);
      if (i > 0 || line.points.size() == 1) cover(from, to, radius, box, coverage);
    }
    std::size_t at = 0;
    for (int y = box.top; y < box.bottom; ++y) {
      for (int x = box.left; x < box.right; ++x)
        blend(x, y, color_of(line.ink), static_cast<unsigned>(std::lround(coverage[at++] * line.opacity)));
    }
  }

  void paint(const Label& label, Face& face) {
    const double size = label.size * scale_;
    double left = label.x * scale_;
    if (label.align != Align::kLeft) {
      const double width = face.layout(label.text, size, FT_LOAD_DEFAULT, [](double, auto&) {});
      left -= label.align == Align::kRight ? width : width / 2;
    }
    const int baseline = static_cast<int>(std::lround(label.baseline * scale_));
    face.layout(label.text, size, FT_LOAD_RENDER, [&](double x, const FT_GlyphSlotRec& glyph) {
      const int start = static_cast<int>(std::lround(left + x)) + glyph.bitmap_left;
      for (unsigned row = 0; row < glyph.bitmap.rows; ++row) {
        const unsigned char* const line = glyph.bitmap.buffer + static_cast<std::ptrdiff_t>(row) * glyph.bitmap.pitch;
        for (unsigned column = 0; column < glyph.bitmap.width; ++column)
          blend(start + static_cast<int>(column), baseline - glyph.bitmap_top + static_cast<int>(row),
                color_of(label.ink), line[column]);
      }
    });
  }

  std::string png() const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(width_);
    image.height = static_cast<png_uint_32>(height_);
    image.format = PNG_FORMAT_RGB;
    std::string file(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
    png_alloc_size_t size = file.size();
    if (png_image_write_to_memory(&image, file.data(), &size, 0, pixels_.data(), 0, nullptr) == 0) fail(image.message);
    file.resize(size);
    return file;
  }

 private:
  /// Pixels; includes left and top, excludes right and bottom.
  struct Box {
    int left = 0, top = 0, right = 0, bottom = 0;
    int width() const { return right - left; }
    int height() const { return bottom - top; }
  };

  Point scaled(const Point& point) const { return {point.x * scale_, point.y * scale_}; }

  /// The part of the canvas that can have points within `radius` of the line.
  Box box_of(const Polyline& line, double radius) const {
    Box box{width_, height_, 0, 0};
    for (const Point& point : line.points) {
      const Point at = scaled(point);
      box.left = std::min(box.left, static_cast<int>(std::floor(at.x - radius - 1)));
      box.top = std::min(box.top, static_cast<int>(std::floor(at.y - radius - 1)));
      box.right = std::max(box.right, static_cast<int>(std::ceil(at.x + radius + 1)));
      box.bottom = std::max(box.bottom, static_cast<int>(std::ceil(at.y + radius + 1)));
    }
    return {std::max(box.left, 0), std::max(box.top, 0), std::min(box.right, width_), std::min(box.bottom, height_)};
  }

  static void cover(const Point& from, const Point& to, double radius, const Box& box,
                    std::vector<std::uint8_t>& coverage) {
    const double dx = to.x - from.x, dy = to.y - from.y, square = dx * dx + dy * dy, reach = radius + 1;
    const int left = std::max(box.left, static_cast<int>(std::floor(std::min(from.x, to.x) - reach)));
    const int right = std::min(box.right, static_cast<int>(std::ceil(std::max(from.x, to.x) + reach)));
    const int top = std::max(box.top, static_cast<int>(std::floor(std::min(from.y, to.y) - reach)));
    const int bottom = std::min(box.bottom, static_cast<int>(std::ceil(std::max(from.y, to.y) + reach)));
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        const double px = x + 0.5 - from.x, py = y + 0.5 - from.y;
        const double along = square > 0 ? std::clamp((px * dx + py * dy) / square, 0.0, 1.0) : 0;
        const double distance = std::hypot(px - along * dx, py - along * dy);
        const auto share = static_cast<std::uint8_t>(std::lround(255 * std::clamp(radius + 0.5 - distance, 0.0, 1.0)));
        std::uint8_t& pixel = coverage[static_cast<std::size_t>(y - box.top) * static_cast<std::size_t>(box.width()) +
                                       static_cast<std::size_t>(x - box.left)];
        pixel = std::max(pixel, share);
      }
    }
  }

  void blend(int x, int y, const InkColor& color, unsigned coverage) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
    std::uint8_t* pixel =
        &pixels_[3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x))];
    for (const unsigned channel : {unsigned{color.red}, unsigned{color.green}, unsigned{color.blue}}) {
      *pixel = static_cast<std::uint8_t>((channel * coverage + *pixel * (255 - coverage) + 127) / 255);
      ++pixel;
    }
  }

  int width_, height_, scale_;
  std::vector<std::uint8_t> pixels_;
};

std::string paint_of(Ink ink) {
  const InkColor& color = color_of(ink);
  return fmt::format("var(--{},#{:02x}{:02x}{:02x})", color.name, color.red, color.green, color.blue);
}

std::string title_of(const std::string& text) {
  return text.empty() ? "" : fmt::format("<title>{}</title>", escape_html(text));
}

std::string style_of(Ink ink) { return "fill:" + paint_of(ink); }

std::string element_of(const Polyline& line) {
  if (line.points.size() == 1) {
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" opacity=\"{:.2f}\" style=\"{}\">{}</circle>\n",
                       line.points[0].x, line.points[0].y, line.width / 2, line.opacity, style_of(line.ink),
                       title_of(line.title));
  }
  std::string points;
  for (const Point& point : line.points) points += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  return fmt::format(
      "<polyline points=\"{}\" stroke-width=\"{:.1f}\" opacity=\"{:.2f}\" style=\"fill:none;stroke:{}\"/>\n", points,
      line.width, line.opacity, paint_of(line.ink));
}

const char* anchor_of(Align align) {
  if (align == Align::kLeft) return "";
  return align == Align::kRight ? " text-anchor=\"end\"" : " text-anchor=\"middle\"";
}

}  // namespace

double label_width(const std::string& text, double size) {
  return Face().layout(text, size, FT_LOAD_DEFAULT, [](double, auto&) {});
}

std::string to_png(const Drawing& drawing, int scale) {
  Canvas canvas(drawing, scale);
  Face face;
  for (const Rectangle& box : drawing.rectangles) canvas.paint(box);
  for (const Polyline& line : drawing.polylines) canvas.paint(line);
  for (const Label& label : drawing.labels) canvas.paint(label, face);
  return canvas.png();
}

std::string to_svg(const Drawing& drawing) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" "
      "font-family=\"system-ui, sans-serif\">\n",
      drawing.width, drawing.height, drawing.width);
  svg += title_of(drawing.title) + "\n";
  for (const Rectangle& box : drawing.rectangles) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" style=\"{}\">{}</rect>\n",
                       box.x, box.y, box.width, box.height, style_of(box.ink), title_of(box.title));
  }
  for (const Polyline& line : drawing.polylines) svg += element_of(line);
  for (const Label& label : drawing.labels) {
    svg +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.0f}\"{} style=\"{}\">{}</text>\n", label.x,
                    label.baseline, label.size, anchor_of(label.align), style_of(label.ink), escape_html(label.text));
  }
  return svg + "</svg>\n";
}

}  // namespace lora_train::report

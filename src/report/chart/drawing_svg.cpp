#include "ink.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/report/chart/drawing.h"

namespace lora_train::report {
namespace {

std::string paint_of(Ink ink) {
  const InkColor& color = color_of(ink);
  return string_printf("var(--%s,#%02x%02x%02x)", color.name, color.red, color.green, color.blue);
}

std::string style_of(Ink ink) { return "fill:" + paint_of(ink); }

std::string element_of(const Polyline& line) {
  if (line.points.size() == 1) {
    return string_printf("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" opacity=\"%.2f\" style=\"", line.points[0].x,
                         line.points[0].y, line.width / 2, line.opacity) +
           style_of(line.ink) + "\"/>\n";
  }
  std::string points;
  for (const Point& point : line.points) points += string_printf("%.1f,%.1f ", point.x, point.y);
  return "<polyline points=\"" + points +
         string_printf("\" stroke-width=\"%.1f\" opacity=\"%.2f\" style=\"fill:none;stroke:", line.width,
                       line.opacity) +
         paint_of(line.ink) + "\"/>\n";
}

const char* anchor_of(Align align) {
  if (align == Align::kLeft) return "";
  return align == Align::kRight ? " text-anchor=\"end\"" : " text-anchor=\"middle\"";
}

}  // namespace

std::string to_svg(const Drawing& drawing) {
  std::string svg = string_printf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\" "
      "font-family=\"system-ui, sans-serif\">\n",
      drawing.width, drawing.height, drawing.width);
  svg += "<title>" + escape_html(drawing.title) + "</title>\n";
  for (const Rectangle& box : drawing.rectangles) {
    svg += string_printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" style=\"", box.x, box.y, box.width,
                         box.height) +
           style_of(box.ink) + "\"/>\n";
  }
  for (const Polyline& line : drawing.polylines) svg += element_of(line);
  for (const Label& label : drawing.labels) {
    svg += string_printf("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\"%s style=\"", label.x, label.baseline,
                         label.size, anchor_of(label.align)) +
           style_of(label.ink) + "\">" + escape_html(label.text) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace lora_train::report

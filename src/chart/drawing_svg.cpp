#include "ink.h"
#include "lora_train/base/text.h"
#include "lora_train/base/visible_text.h"
#include "lora_train/chart/drawing.h"

namespace lora_train::chart {
namespace {

std::string style_of(Ink ink) {
  const InkColor& color = color_of(ink);
  return string_printf("fill:var(--%s,#%02x%02x%02x)", color.name, color.red, color.green, color.blue);
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
  for (const Label& label : drawing.labels) {
    svg += string_printf("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\"%s style=\"", label.x, label.baseline,
                         label.size, label.align == Align::kRight ? " text-anchor=\"end\"" : "") +
           style_of(label.ink) + "\">" + escape_html(label.text) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace lora_train::chart

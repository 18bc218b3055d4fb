// The colours of a light page.
#pragma once

#include "lora_train/report/chart/drawing.h"

namespace lora_train::report {

struct InkColor {
  const char* name;  ///< of the page's variable: --<name>
  unsigned char red, green, blue;
};

inline const InkColor& color_of(Ink ink) {
  static constexpr InkColor kColors[] = {{"text", 31, 41, 55},     {"faint", 107, 114, 128}, {"line", 209, 213, 219},
                                         {"bar", 147, 179, 226},   {"accent", 37, 99, 235},  {"bad", 180, 60, 40},
                                         {"curve2", 229, 115, 11}, {"curve3", 47, 158, 95},  {"curve4", 208, 59, 75},
                                         {"curve5", 138, 99, 210}, {"curve6", 15, 159, 176}};
  return kColors[static_cast<int>(ink)];
}

}  // namespace lora_train::report

#include "lora_train/report/chart/drawing.h"

// LORA_TRAIN_FONT is the path of the file (cmake/Dependencies.cmake).
asm(".section .rodata\n"
    ".global lora_train_font_begin\n"
    ".global lora_train_font_end\n"
    "lora_train_font_begin:\n"
    ".incbin \"" LORA_TRAIN_FONT
    "\"\n"
    "lora_train_font_end:\n"
    ".previous\n");

extern "C" const char lora_train_font_begin[], lora_train_font_end[];

namespace lora_train::report {

std::string_view embedded_font() {
  return {lora_train_font_begin, static_cast<std::size_t>(lora_train_font_end - lora_train_font_begin)};
}

}  // namespace lora_train::report

// DejaVu Sans, embedded in the program: a machine that trains may have no fonts.
#pragma once

#include <string_view>

namespace lora_train::report {

/// The TrueType file.
std::string_view embedded_font();

}  // namespace lora_train::report

// The files of page/, embedded in the program (cmake/embed_text.cmake generates page_assets.cpp).
#pragma once

#include <string_view>

namespace lora_train::report {

extern const std::string_view kPageStyle;   ///< page/page.css
extern const std::string_view kPageScript;  ///< page/*.js, concatenated

}  // namespace lora_train::report

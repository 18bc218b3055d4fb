// The files of page/, carried in the program (cmake/embed_text.cmake makes page_assets.cpp).
#pragma once

#include <string_view>

namespace lora_train::metrics {

extern const std::string_view kPageStyle;   ///< page/page.css
extern const std::string_view kPageScript;  ///< page/*.js, one after the other

}  // namespace lora_train::metrics

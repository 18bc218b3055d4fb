#pragma once

#include <string>
#include <string_view>

namespace lora_train::hub {

/// With padding, in one line.
std::string base64(std::string_view bytes);

}  // namespace lora_train::hub

// Chat templates that come with the program (templates/*.jinja): the formats of common models, for chats without tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer {

/// Its text; nothing for a name that is not built in.
std::optional<std::string_view> builtin_template(std::string_view name);

/// "chatml", "qwen2.5", ...
std::vector<std::string> builtin_template_names();

}  // namespace lora_train::tokenizer

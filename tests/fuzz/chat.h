// The chat that fuzzed templates render, with every kind of value an example can hold.
#pragma once

#include <string>
#include <string_view>

#include "lora_train/base/error.h"
#include "tokenizer/jinja/jinja.h"

namespace lora_train::fuzz {

inline const tokenizer::jinja::Dict& chat_variables() {
  static const tokenizer::jinja::Dict variables = [] {
    const auto json = nlohmann::ordered_json::parse(R"({
      "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi \u00e9\n<|im_end|>"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!", "reasoning_content": null},
        {"role": "tool", "content": "{\"x\": 1}", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": null,
         "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [true, null, 2.5, {"z": -7}]}}}]}
      ],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": []}}}],
      "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": false, "enable_thinking": true})");
    tokenizer::jinja::Dict dict;
    for (const auto& [key, value] : json.items()) {
      if (key != "messages") dict.set(key, tokenizer::jinja::from_json(value));
    }
    tokenizer::jinja::List messages;
    for (const auto& message : json["messages"]) {
      messages.push_back(tokenizer::jinja::message_from_json(message, static_cast<int>(messages.size())));
    }
    dict.set("messages", std::move(messages));
    return dict;
  }();
  return variables;
}

/// Limits far below the product's, so that many inputs are tried in a second.
inline void render_template(std::string_view source) {
  static const std::string name = "t";
  try {
    const auto parsed = tokenizer::jinja::parse(source, name);
    tokenizer::jinja::run(parsed, chat_variables(), name, {.steps = 20000, .bytes = std::size_t{32} << 20U});
  } catch (const FormatError&) {
  } catch (const DataError&) {
  }
}

}  // namespace lora_train::fuzz

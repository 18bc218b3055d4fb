// The bodies of /v1/chat/completions and /v1/completions. Pure functions of their text.
// Source: OpenAI's API reference (platform.openai.com/docs/api-reference); top_k and min_p as in vLLM.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/sampling.h"

namespace lora_train::serve {

/// Maximum number of answers to one request: prompts times n.
inline constexpr std::int64_t kMaxChoices = 128;

struct ApiRequest {
  bool is_chat = true;
  std::string model;
  std::string chat;  ///< an example as data::make_prompt_of_example takes it: messages, tools, chat_template_kwargs
  std::vector<std::string> texts;                      ///< completions: prompts as text,
  std::vector<std::vector<std::int32_t>> token_lists;  ///< or as tokens
  SamplingOptions sampling{.temperature = 1};          ///< has a seed only if the client gives one
  bool has_seed = false;
  std::optional<std::int64_t> max_tokens;
  std::vector<std::string> stop;
  std::int64_t n = 1;
  bool streams = false, include_usage = false;
  std::optional<std::int64_t> num_top;  ///< log-probabilities, with this many of the most likely tokens

  std::size_t num_prompts() const { return is_chat ? 1 : texts.size() + token_lists.size(); }
};

/// Throws ApiError (400) naming the field: if the body is not a JSON object, is nested deeper than 64, lacks a field,
/// or has a wrong value or an unsupported or unknown field. Ignores fields that change no answer (user, metadata, ...).
ApiRequest parse_chat_request(std::string_view body);
ApiRequest parse_completion_request(std::string_view body);

}  // namespace lora_train::serve

#include "lora_train/serve/api_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "api_error.h"
#include "api_fields.h"
#include "lora_train/base/text.h"

namespace lora_train::serve {
namespace {

/// Fields that change no answer.
constexpr std::array kIgnored = {"user",
                                 "metadata",
                                 "store",
                                 "service_tier",
                                 "parallel_tool_calls",
                                 "safety_identifier",
                                 "prompt_cache_key",
                                 "verbosity",
                                 "prompt_cache_retention"};

/// Fields that are not supported, and the value with which they change nothing.
struct Neutral {
  const char* field;
  const char* value;  ///< as JSON; null and an absent field never change anything
};
constexpr Neutral kNeutral[] = {{"frequency_penalty", "0"},
                                {"presence_penalty", "0"},
                                {"repetition_penalty", "1"},
                                {"logit_bias", "{}"},
                                {"best_of", "1"},
                                {"echo", "false"},
                                {"suffix", "\"\""},
                                {"response_format", R"({"type":"text"})"},
                                {"modalities", R"(["text"])"},
                                {"tool_choice", "\"auto\""},
                                {"functions", "[]"},
                                {"function_call", "\"none\""},
                                {"add_generation_prompt", "true"},
                                {"skip_special_tokens", "true"},
                                {"ignore_eos", "false"}};

bool is_ignored(const std::string& field) {
  return std::find(kIgnored.begin(), kIgnored.end(), field) != kIgnored.end();
}

/// False: it is not in the list. Throws where it is, with another value.
bool check_neutral(const std::string& field, const Json& value) {
  const auto* const neutral = std::find_if(std::begin(kNeutral), std::end(kNeutral),
                                           [&](const Neutral& known) { return field == known.field; });
  if (neutral == std::end(kNeutral)) return false;
  if (value != Json::parse(neutral->value)) {
    throw ApiError(400, field + " is not supported; leave it out, or give " + neutral->value, field,
                   "unsupported_value");
  }
  return true;
}

/// Reads the fields that both endpoints have. False: `field` is none of them.
bool read_common(const std::string& field, const Json& value, ApiRequest& request) {
  SamplingOptions& sampling = request.sampling;
  if (field == "model") {
    request.model = text_field(value, field);
  } else if (field == "temperature") {
    sampling.temperature = number_field(value, field, kTemperatureRange);
  } else if (field == "top_p") {
    sampling.top_p = number_field(value, field, kTopPRange);
  } else if (field == "min_p") {
    sampling.min_p = number_field(value, field, kMinPRange);
  } else if (field == "top_k") {
    sampling.top_k = std::max<std::int64_t>(integer_field(value, field, -1, kLargestInteger), 0);  // vLLM: -1 is all
  } else if (field == "seed") {
    sampling.seed = static_cast<std::uint64_t>(integer_field(value, field, -kLargestInteger, kLargestInteger));
    request.has_seed = true;
  } else if (field == "max_tokens") {
    request.max_tokens = integer_field(value, field, 1, kLargestInteger);
  } else if (field == "n") {
    request.n = integer_field(value, field, 1, kMaxChoices);
  } else if (field == "stop") {
    request.stop = stop_field(value, field);
  } else if (field == "stream") {
    request.streams = flag_field(value, field);
  } else if (field == "stream_options") {
    request.include_usage = stream_options_field(value, field);
  } else {
    return is_ignored(field) || check_neutral(field, value);
  }
  return true;
}

[[noreturn]] void refuse_unknown(const std::string& field) {
  throw ApiError(400,
                 "unknown field \"" + field.substr(0, 80) +
                     "\": it could change the answer, and this server does not know it. Leave it out",
                 field.substr(0, 80), "unknown_parameter");
}

void check_whole(const ApiRequest& request, const char* prompt_field, bool has_prompt) {
  if (request.model.empty()) throw ApiError(400, "model is missing; GET /v1/models lists the names", "model");
  if (!has_prompt) throw ApiError(400, std::string(prompt_field) + " is missing", prompt_field);
  if (request.include_usage && !request.streams) {
    throw ApiError(400, "stream_options needs stream: true", "stream_options");
  }
  const auto choices = static_cast<std::int64_t>(request.num_prompts()) * request.n;
  if (choices > kMaxChoices) {
    throw ApiError(
        400,
        "asks for " + std::to_string(choices) + " answers; at most " + std::to_string(kMaxChoices) + " in one request",
        "n");
  }
}

}  // namespace

ApiRequest parse_chat_request(std::string_view body) {
  ApiRequest request;
  Json chat = Json::object();
  bool has_logprobs = false;
  std::optional<std::int64_t> num_top;
  std::optional<std::int64_t> max_tokens;
  const Json fields = parse_body(body);
  for (const auto& [field, value] : fields.items()) {
    if (value.is_null()) continue;
    if (field == "messages") {
      chat["messages"] = messages_field(value);
    } else if (field == "tools") {
      chat["tools"] = tools_field(value);
    } else if (field == "chat_template_kwargs") {
      chat[field] = object_field(value, field);
    } else if (field == "logprobs") {
      has_logprobs = flag_field(value, field);
    } else if (field == "top_logprobs") {
      num_top = integer_field(value, field, 0, kMaxTop);
    } else if (field == "max_completion_tokens") {
      max_tokens = integer_field(value, field, 1, kLargestInteger);
    } else if (!read_common(field, value, request)) {
      refuse_unknown(field);
    }
  }
  if (num_top && !has_logprobs) throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  if (has_logprobs) request.num_top = num_top.value_or(0);
  if (max_tokens && request.max_tokens && *max_tokens != *request.max_tokens) {
    throw ApiError(400, "max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens");
  }
  if (max_tokens) request.max_tokens = max_tokens;
  check_whole(request, "messages", chat.contains("messages"));
  request.chat = chat.dump();
  return request;
}

ApiRequest parse_completion_request(std::string_view body) {
  ApiRequest request;
  request.is_chat = false;
  const Json fields = parse_body(body);
  for (const auto& [field, value] : fields.items()) {
    if (value.is_null()) continue;
    if (field == "prompt") {
      prompt_field(value, request);
    } else if (field == "logprobs") {
      request.num_top = integer_field(value, field, 0, kMaxTop);
    } else if (!read_common(field, value, request)) {
      refuse_unknown(field);
    }
  }
  check_whole(request, "prompt", request.num_prompts() > 0);
  return request;
}

}  // namespace lora_train::serve

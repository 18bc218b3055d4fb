#include "lora_train/serve/api_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "answer_json.h"
#include "lora_train/base/text.h"
#include "lora_train/config/sampling.h"

namespace lora_train::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLargestInteger = std::int64_t{1} << 53;  ///< exact in every client's numbers
constexpr std::int64_t kMaxTop = 20;                             ///< log-probabilities per token
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxStops = 16;

[[noreturn]] void refuse(const std::string& field, const Json& value, const std::string& expected) {
  std::string shown = value.is_structured() ? std::string("a JSON ") + value.type_name()
                                            : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  throw ApiError(400, fmt::format("{} is {}; expected {}", field, shown, expected), field, "invalid_value");
}

/// Accepts 5.0 as 5.
std::int64_t integer_field(const Json& value, const std::string& field, std::int64_t least, std::int64_t most) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  const bool is_valid =
      std::floor(number) == number && number >= static_cast<double>(least) && number <= static_cast<double>(most);
  if (!is_valid) refuse(field, value, fmt::format("a whole number from {} to {}", least, most));
  return static_cast<std::int64_t>(number);
}

std::vector<std::int32_t> tokens_of(const Json& list) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> ids;
  for (const Json& value : list) ids.push_back(static_cast<std::int32_t>(integer_field(value, "prompt", 0, kMost)));
  if (ids.empty()) throw ApiError(400, "prompt is an empty list of tokens", "prompt");
  return ids;
}

/// The text of a message's content: a string, or parts of type text.
std::string content_text(const Json& content, const std::string& field) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(field, content, "a string, or a list of parts {\"type\": \"text\", \"text\": ...}");
  std::string text;
  for (const Json& part : content) {
    const Json type = part.is_object() && part.contains("type") ? part["type"] : Json();
    if (type != "text" || !part.contains("text") || !part["text"].is_string()) {
      throw ApiError(400, field + " has a part that is not text; this server takes only text", field,
                     "unsupported_value");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

/// A JSON object, nested at most 64 deep.
Json parse_body(std::string_view body) {
  const auto check_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw ApiError(400, fmt::format("the body is nested deeper than {}", kMaxDepth));
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(body, check_depth);
  } catch (const Json::exception& error) {
    const std::string text = error.what();
    const std::size_t begin = text.find("] ");
    throw ApiError(400, "the body is not JSON: " + (begin == std::string::npos ? text : text.substr(begin + 2)));
  }
  if (!parsed.is_object())
    throw ApiError(400, fmt::format("the body is a JSON {}; expected an object", parsed.type_name()));
  return parsed;
}

const std::string& text_field(const Json& value, const std::string& field) {
  if (!value.is_string()) refuse(field, value, "a string");
  return value.get_ref<const std::string&>();
}

bool flag_field(const Json& value, const std::string& field) {
  if (!value.is_boolean()) refuse(field, value, "true or false");
  return value.get<bool>();
}

const Json& object_field(const Json& value, const std::string& field) {
  if (!value.is_object()) refuse(field, value, "an object");
  return value;
}

double number_field(const Json& value, const std::string& field, const SamplingRange& range) {
  if (!value.is_number() || !range.holds(value.get<double>())) refuse(field, value, range.expected);
  return value.get<double>();
}

/// A string, or a list of up to 16; none may be empty.
std::vector<std::string> stop_field(const Json& value, const std::string& field) {
  std::vector<std::string> stops;
  if (!value.is_array()) {
    stops.push_back(text_field(value, field));
  } else {
    for (const Json& item : value) stops.push_back(text_field(item, field));
  }
  const bool has_empty = std::any_of(stops.begin(), stops.end(), [](const std::string& text) { return text.empty(); });
  if (has_empty || stops.size() > kMaxStops) {
    refuse(field, value, fmt::format("up to {} non-empty strings", kMaxStops));
  }
  return stops;
}

/// True if the client asks for usage.
bool stream_options_field(const Json& value, const std::string& field) {
  bool include_usage = false;
  for (const auto& [key, option] : object_field(value, field).items()) {
    const std::string name = fmt::format("{}.{}", field, key);
    if (key == "include_usage") {
      include_usage = flag_field(option, name);
    } else if (key != "include_obfuscation") {
      throw ApiError(
          400, "unknown field \"" + name.substr(0, 80) + "\"; known fields are include_usage and include_obfuscation",
          name.substr(0, 80), "unknown_parameter");
    }
  }
  return include_usage;
}

/// Messages with contents as plain text: joins parts {"type": "text"}, refuses others. The role developer becomes
/// system.
Json messages_field(const Json& value) {
  if (!value.is_array() || value.empty()) refuse("messages", value, "a list of at least one message");
  Json messages = value;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) refuse(name, message, "an object with role and content");
    if (!message.contains("role")) throw ApiError(400, name + ".role is missing", name + ".role");
    if (text_field(message["role"], name + ".role") == "developer") message["role"] = "system";
    if (message.contains("content") && !message["content"].is_null()) {
      message["content"] = content_text(message["content"], name + ".content");
    }
  }
  if (messages.back()["role"] == "assistant") {
    throw ApiError(400, "the last message is the assistant's; there is nothing to answer", "messages",
                   "unsupported_value");
  }
  return messages;
}

/// A list of objects, for the chat template.
const Json& tools_field(const Json& value) {
  const bool is_list =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& tool) { return tool.is_object(); });
  if (!is_list) refuse("tools", value, "a list of objects");
  return value;
}

/// The four forms of a completion's prompt: a text, a list of texts, a list of tokens, a list of such lists.
void prompt_field(const Json& value, ApiRequest& request) {
  if (value.is_string()) {
    request.texts.push_back(value.get<std::string>());
  } else if (!value.is_array() || value.empty()) {
    refuse("prompt", value, "a string, a list of strings, a list of tokens, or a list of such lists");
  } else if (value.front().is_number()) {
    request.token_lists.push_back(tokens_of(value));
  } else if (value.front().is_array()) {
    for (const Json& list : value) {
      if (!list.is_array()) refuse("prompt", list, "a list of tokens, like the first item");
      request.token_lists.push_back(tokens_of(list));
    }
  } else {
    for (const Json& text : value) request.texts.push_back(text_field(text, "prompt"));
  }
}

/// Fields that change no answer, and unsupported ones, each with the value that changes nothing.
struct Neutral {
  const char* field;
  const char* value;  ///< as JSON; nullptr if no value changes an answer. JSON's null and an absent field never do.
};
constexpr Neutral kNeutral[] = {{"user", nullptr},
                                {"metadata", nullptr},
                                {"store", nullptr},
                                {"service_tier", nullptr},
                                {"parallel_tool_calls", nullptr},
                                {"safety_identifier", nullptr},
                                {"prompt_cache_key", nullptr},
                                {"verbosity", nullptr},
                                {"prompt_cache_retention", nullptr},
                                {"frequency_penalty", "0"},
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

/// Returns false if the field is not in the list. Throws if it is, with another value.
bool check_neutral(const std::string& field, const Json& value) {
  const auto* const neutral = std::find_if(std::begin(kNeutral), std::end(kNeutral),
                                           [&](const Neutral& known) { return field == known.field; });
  if (neutral == std::end(kNeutral)) return false;
  if (neutral->value != nullptr && value != Json::parse(neutral->value)) {
    throw ApiError(400, fmt::format("{} is not supported; leave it out, or give {}", field, neutral->value), field,
                   "unsupported_value");
  }
  return true;
}

/// Reads a field that both endpoints share. Returns false for any other field.
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
    return check_neutral(field, value);
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
    throw ApiError(400, fmt::format("asks for {} answers; at most {} in one request", choices, kMaxChoices), "n");
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

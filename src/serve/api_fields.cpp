#include "api_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "api_error.h"

namespace lora_train::serve {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxStops = 16;

[[noreturn]] void refuse(const std::string& field, const Json& value, const std::string& expected) {
  std::string shown = value.is_structured() ? std::string("a JSON ") + value.type_name()
                                            : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  throw ApiError(400, field + " is " + shown + "; expected " + expected, field, "invalid_value");
}

std::int32_t token_of(const Json& value) {
  return static_cast<std::int32_t>(integer_field(value, "prompt", 0, std::numeric_limits<std::int32_t>::max()));
}

std::vector<std::int32_t> tokens_of(const Json& list) {
  std::vector<std::int32_t> ids;
  for (const Json& value : list) ids.push_back(token_of(value));
  if (ids.empty()) throw ApiError(400, "prompt is an empty list of tokens", "prompt");
  return ids;
}

/// The text of a message's content: a string, or parts of type text.
std::string content_text(const Json& content, const std::string& field) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(field, content, "a text, or a list of parts {\"type\": \"text\", \"text\": ...}");
  std::string text;
  for (const Json& part : content) {
    const Json type = part.is_object() && part.contains("type") ? part["type"] : Json();
    if (type != "text" || !part.contains("text") || !part["text"].is_string()) {
      throw ApiError(400, field + " has a part that is not text; this server takes text alone", field,
                     "unsupported_value");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

}  // namespace

Json parse_body(std::string_view body) {
  const auto check_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw ApiError(400, "the body is nested deeper than " + std::to_string(kMaxDepth));
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
    throw ApiError(400, std::string("the body is a JSON ") + parsed.type_name() + "; expected an object");
  return parsed;
}

const std::string& text_field(const Json& value, const std::string& field) {
  if (!value.is_string()) refuse(field, value, "a text");
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

std::int64_t integer_field(const Json& value, const std::string& field, std::int64_t least, std::int64_t most) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  const bool is_valid =
      std::floor(number) == number && number >= static_cast<double>(least) && number <= static_cast<double>(most);
  if (!is_valid) refuse(field, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return static_cast<std::int64_t>(number);
}

std::vector<std::string> stop_field(const Json& value, const std::string& field) {
  std::vector<std::string> stops;
  if (!value.is_array()) {
    stops.push_back(text_field(value, field));
  } else {
    for (const Json& item : value) stops.push_back(text_field(item, field));
  }
  const bool has_empty = std::any_of(stops.begin(), stops.end(), [](const std::string& text) { return text.empty(); });
  if (has_empty || stops.size() > kMaxStops) {
    refuse(field, value, "up to " + std::to_string(kMaxStops) + " texts that are not empty");
  }
  return stops;
}

bool stream_options_field(const Json& value, const std::string& field) {
  bool include_usage = false;
  for (const auto& [key, option] : object_field(value, field).items()) {
    const std::string name = field + "." + key;
    if (key == "include_usage") {
      include_usage = flag_field(option, name);
    } else if (key != "include_obfuscation") {
      throw ApiError(400,
                     "unknown field \"" + name.substr(0, 80) + "\"; known are include_usage and include_obfuscation",
                     name.substr(0, 80), "unknown_parameter");
    }
  }
  return include_usage;
}

Json messages_field(const Json& value) {
  if (!value.is_array() || value.empty()) refuse("messages", value, "a list of at least one message");
  Json messages = value;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string name = "messages[" + std::to_string(i) + "]";
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

const Json& tools_field(const Json& value) {
  const bool is_list =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& tool) { return tool.is_object(); });
  if (!is_list) refuse("tools", value, "a list of objects");
  return value;
}

void prompt_field(const Json& value, ApiRequest& request) {
  if (value.is_string()) {
    request.texts.push_back(value.get<std::string>());
  } else if (!value.is_array() || value.empty()) {
    refuse("prompt", value, "a text, a list of texts, a list of tokens, or a list of these");
  } else if (value.front().is_number()) {
    request.token_lists.push_back(tokens_of(value));
  } else if (value.front().is_array()) {
    for (const Json& list : value) {
      if (!list.is_array()) refuse("prompt", list, "a list of tokens, as the first");
      request.token_lists.push_back(tokens_of(list));
    }
  } else {
    for (const Json& text : value) request.texts.push_back(text_field(text, "prompt"));
  }
}

}  // namespace lora_train::serve

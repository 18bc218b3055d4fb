// Values of the fields of a request. Each throws ApiError (400) naming the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/sampling.h"
#include "lora_train/serve/api_request.h"

namespace lora_train::serve {

using Json = nlohmann::ordered_json;

inline constexpr std::int64_t kLargestInteger = std::int64_t{1} << 53;  ///< that every client's numbers hold
inline constexpr std::int64_t kMaxTop = 20;                             ///< log-probabilities per token

/// A JSON object, nested at most 64 deep.
Json parse_body(std::string_view body);

const std::string& text_field(const Json& value, const std::string& field);
bool flag_field(const Json& value, const std::string& field);
const Json& object_field(const Json& value, const std::string& field);
double number_field(const Json& value, const std::string& field, const SamplingRange& range);
/// 5.0 is 5.
std::int64_t integer_field(const Json& value, const std::string& field, std::int64_t least, std::int64_t most);
/// A string, or a list of up to 16; none is empty.
std::vector<std::string> stop_field(const Json& value, const std::string& field);
/// Whether usage is asked for.
bool stream_options_field(const Json& value, const std::string& field);

/// Messages with contents as plain text: parts {"type": "text"} are joined, others refused. The role developer is system.
Json messages_field(const Json& value);
/// A list of objects, for the chat template.
const Json& tools_field(const Json& value);
/// The four forms of a completion's prompt: a text, a list of texts, a list of tokens, a list of these.
void prompt_field(const Json& value, ApiRequest& request);

}  // namespace lora_train::serve

#include "read_json.h"

#include <limits>

#include "lora_train/base/error.h"

namespace lora_train::checkpoint {

using nlohmann::json;

json parse_json(const std::string& text, const std::string& where) {
  constexpr int kMaxDepth = 16;
  return json::parse(text, [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) throw FormatError(where, "holds values nested deeper than 16 levels");
    return true;
  });
}

std::int64_t whole_number(const json& object, const char* key, const std::string& where) {
  const json& value = object.at(key);
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= kLargest;
  if (!fits) throw FormatError(where, std::string(key) + " is " + value.dump() + "; expected a whole number from 0");
  return value.get<std::int64_t>();
}

}  // namespace lora_train::checkpoint

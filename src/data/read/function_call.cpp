#include "function_call.h"

#include "lora_train/base/error.h"
#include "row_fields.h"

namespace lora_train::data {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& reason) {
  throw DataError("", field + " of function_call is \"" + printable(value, 60) + "\": " + reason +
                          "; expected JSON {\"name\": ..., \"arguments\": {...}}, or a list of these");
}

// One entry of tool_calls, or what is wrong.
Json tool_call(const Json& call, const std::string& field, const std::string& value) {
  if (!call.is_object()) {
    refuse(field, value, "a call is " + std::string(call.type_name()));
  }
  if (!call.contains("name") || !call["name"].is_string()) {
    refuse(field, value, "a call has no name that is a string");
  }
  if (!call.contains("arguments") || !(call["arguments"].is_object() || call["arguments"].is_string())) {
    refuse(field, value, "a call has no arguments that are an object");
  }
  if (call.size() != 2) {
    refuse(field, value, "a call has other fields than name and arguments");
  }
  return {{"type", "function"}, {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}};
}

}  // namespace

Json function_call_message(const std::string& value, const std::string& field) {
  JsonRow parsed = parse_json_value(value);
  if (parsed.problem) {
    refuse(field, value, parsed.problem->message);
  }
  Json& calls = parsed.value;
  if (!calls.is_array()) {
    calls = Json::array({calls});
  }
  if (calls.empty()) {
    refuse(field, value, "there is no call");
  }
  Json tool_calls = Json::array();
  for (const Json& call : calls) {
    tool_calls.push_back(tool_call(call, field, value));
  }
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(tool_calls)}};
}

}  // namespace lora_train::data

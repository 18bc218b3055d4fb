#include "chat_layouts.h"

#include <array>

#include "lora_train/base/error.h"
#include "row_fields.h"

namespace lora_train::data {
namespace {

using tokenizer::Message;

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

struct RoleName {
  std::string_view theirs, ours;
};
constexpr std::array<RoleName, 8> kSharegptRoles = {{{"human", "user"},
                                                     {"user", "user"},
                                                     {"gpt", "assistant"},
                                                     {"assistant", "assistant"},
                                                     {"system", "system"},
                                                     {"tool", "tool"},
                                                     {"observation", "tool"},
                                                     {"function_response", "tool"}}};

std::string at(const char* list, std::size_t i, const char* field) {
  return std::string(list) + "[" + std::to_string(i) + "]" + (*field == 0 ? "" : ".") + field;
}

// Rethrows what `read` says with the message's place in the row before it.
template <typename Read>
auto named(const std::string& name, Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError("", name + ": " + error.message());
  }
}

void check_role(const std::string& role, const std::string& field) {
  for (const std::string_view known : kRoles) {
    if (role == known) {
      return;
    }
  }
  throw DataError(
      "", field + " is \"" + printable(role, 40) + "\", an unknown role; known are system, user, assistant and tool");
}

const Json& list_of(const Json& value, const char* field) {
  if (!value.is_array()) {
    wrong_type(field, value, "a list of messages");
  }
  if (value.empty()) {
    throw DataError("", std::string(field) + " is empty; a conversation has at least one message");
  }
  return value;
}

Message parse_message(const Json& value, const FieldMap& map, const char* list, std::size_t i) {
  if (!value.is_object()) {
    wrong_type(at(list, i, ""), value, "an object with role and content");
  }
  Message message;
  const Json& role = named(
      at(list, i, ""), [&]() -> std::reference_wrapper<const Json> { return std::cref(required(value, map, "role")); });
  message.role = string_of(role, at(list, i, "role"));
  check_role(message.role, at(list, i, "role"));
  const auto name_of = [&](const char* field) { return map.contains(field) ? map.at(field) : std::string(field); };
  Json extra = value;
  extra.erase(name_of("role"));
  extra.erase(name_of("content"));
  const Json* content = optional_field(value, map, "content");
  if (content != nullptr) {
    message.content = string_of(*content, at(list, i, "content"));
  } else if (value.contains("tool_calls")) {
    extra["content"] = nullptr;  // templates tell a null content from an empty one
  } else {
    named(at(list, i, ""), [&] { return std::cref(required(value, map, "content")); });
  }
  message.extra_json = extra.empty() ? std::string() : extra.dump();
  return message;
}

std::vector<Message> parse_list(const Json& value, const FieldMap& map, const char* field) {
  std::vector<Message> messages;
  const Json& list = list_of(value, field);
  for (std::size_t i = 0; i < list.size(); ++i) {
    messages.push_back(parse_message(list[i], map, field, i));
  }
  return messages;
}

// `field` as JSON text, from a value or from a string that holds JSON.
std::string json_text(const Json& row, const FieldMap& map, const char* field, bool is_list) {
  const Json* value = optional_field(row, map, field);
  if (value == nullptr) {
    return {};
  }
  // Printing nested JSON recurses, so its depth is bounded here as it is for the row.
  const auto bound_depth = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxJsonDepth) {
      throw DataError("", std::string(field) + " is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    return true;
  };
  const Json parsed =
      value->is_string() ? Json::parse(value->get_ref<const std::string&>(), bound_depth, false) : *value;
  if (is_list ? !parsed.is_array() : !parsed.is_object()) {
    wrong_type(field, *value, is_list ? "a list, or a string that holds one as JSON" : "an object");
  }
  return parsed.empty() ? std::string() : parsed.dump();
}

ChatSample with_template_fields(std::vector<Message> messages, const Json& row, const FieldMap& map) {
  return {std::move(messages), 0, json_text(row, map, "tools", true),
          json_text(row, map, "chat_template_kwargs", false)};
}

void add_system(std::vector<Message>& messages, const Json& row, const FieldMap& map) {
  if (const Json* system = optional_field(row, map, "system")) {
    if (const std::string& content = string_of(*system, "system"); !content.empty()) {
      messages.push_back({"system", content});
    }
  }
}

std::string sharegpt_role(const std::string& theirs, const std::string& field) {
  for (const RoleName& role : kSharegptRoles) {
    if (theirs == role.theirs) {
      return std::string(role.ours);
    }
  }
  if (theirs == "function_call") {
    throw DataError("",
                    field + " is \"function_call\", which is not built yet; write the row as messages with tool_calls");
  }
  throw DataError("", field + " is \"" + printable(theirs, 40) +
                          "\", an unknown speaker; known are human, gpt, system, tool and observation");
}

}  // namespace

Sample parse_messages(const Json& row, const FieldMap& map) {
  return with_template_fields(parse_list(required(row, map, "messages"), map, "messages"), row, map);
}

Sample parse_prompt_completion_chat(const Json& row, const FieldMap& map) {
  const Json& prompt = required(row, map, "prompt");
  const Json& completion = required(row, map, "completion");
  if (prompt.is_array() != completion.is_array()) {
    throw DataError("", "prompt is " + std::string(prompt.type_name()) + ", completion " + completion.type_name() +
                            "; both are strings or both are lists of messages");
  }
  std::vector<Message> messages = parse_list(prompt, map, "prompt");
  const std::size_t num_prompt_messages = messages.size();
  for (Message& message : parse_list(completion, map, "completion")) {
    messages.push_back(std::move(message));
  }
  ChatSample sample = with_template_fields(std::move(messages), row, map);
  sample.num_prompt_messages = num_prompt_messages;
  return sample;
}

Sample parse_sharegpt(const Json& row, const FieldMap& map) {
  std::vector<Message> messages;
  add_system(messages, row, map);
  const Json& list = list_of(required(row, map, "conversations"), "conversations");
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) {
      wrong_type(at("conversations", i, ""), list[i], "an object with from and value");
    }
    const bool has_our_names = optional_field(list[i], map, "from") == nullptr && list[i].contains("role");
    const char* from = has_our_names ? "role" : "from";
    const char* value = has_our_names ? "content" : "value";
    named(at("conversations", i, ""), [&] {
      const std::string role = sharegpt_role(string_of(required(list[i], map, from), from), from);
      messages.push_back({role, string_of(required(list[i], map, value), value)});
      return 0;
    });
  }
  return with_template_fields(std::move(messages), row, map);
}

Sample parse_alpaca(const Json& row, const FieldMap& map) {
  std::vector<Message> messages;
  add_system(messages, row, map);
  if (const Json* history = optional_field(row, map, "history")) {
    if (!history->is_array()) {
      wrong_type("history", *history, "a list of [user, assistant] pairs");
    }
    for (std::size_t i = 0; i < history->size(); ++i) {
      const Json& pair = (*history)[i];
      if (!pair.is_array() || pair.size() != 2) {
        wrong_type(at("history", i, ""), pair, "a pair [user, assistant]");
      }
      messages.push_back({"user", string_of(pair[0], at("history", i, "") + "[0]")});
      messages.push_back({"assistant", string_of(pair[1], at("history", i, "") + "[1]")});
    }
  }
  std::string question = string_of(required(row, map, "instruction"), "instruction");
  if (const Json* input = optional_field(row, map, "input")) {
    const std::string& text = string_of(*input, "input");
    question += text.empty() ? "" : "\n" + text;
  }
  messages.push_back({"user", std::move(question)});
  messages.push_back({"assistant", string_of(required(row, map, "output"), "output")});
  return with_template_fields(std::move(messages), row, map);
}

}  // namespace lora_train::data

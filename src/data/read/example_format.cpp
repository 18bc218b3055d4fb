#include "example_format.h"

#include <algorithm>
#include <array>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/document_store.h"

namespace lora_train::data {
namespace {

std::vector<std::int32_t> integers_of(const Json& list, const char* field, std::int64_t min) {
  if (!list.is_array()) wrong_type(field, list, "a list of integers");
  std::vector<std::int32_t> out;
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer()) {
      wrong_type(fmt::format("{}[{}]", field, i), list[i], "an integer");
    }
    const bool is_huge = list[i].is_number_unsigned() && list[i].get<std::uint64_t>() > INT32_MAX;
    const auto value = list[i].get<std::int64_t>();
    if (is_huge || value < min || value > INT32_MAX) {
      throw DataError("", "{}[{}] is {}, which is not a token id{}", field, i, list[i].dump(),
                      min < 0 ? " or -100" : "");
    }
    out.push_back(static_cast<std::int32_t>(value));
  }
  return out;
}

void require_length(const char* field, std::size_t length, std::size_t expected) {
  if (length != expected) {
    throw DataError("", "{} has {} values, input_ids {}; they must have the same length", field, length, expected);
  }
}

// Finds padding by position, never by id: pad is often eos. Zeros are only at the start or the end.
std::pair<std::size_t, std::size_t> attended_range(const std::vector<std::int32_t>& mask) {
  const auto first = std::find(mask.begin(), mask.end(), 1);
  const auto end = std::find(mask.rbegin(), mask.rend(), 1).base();
  if (first == mask.end()) throw DataError("", "attention_mask has no 1");
  if (!std::all_of(first, end, [](std::int32_t value) { return value == 1; }) ||
      std::any_of(mask.begin(), mask.end(), [](std::int32_t value) { return value > 1; })) {
    throw DataError("",
                    "attention_mask has a 0 between ones, or a value other than 0 and 1; zeros may only be padding at "
                    "the start or the end of the example");
  }
  return {first - mask.begin(), end - mask.begin()};
}

void remove_padding(TokenSample& sample, const std::vector<std::int32_t>& mask) {
  const auto [begin, end] = attended_range(mask);
  for (std::size_t i = 0; i < sample.labels.size(); ++i) {
    if ((i < begin || i >= end) && sample.labels[i] != kIgnoredLabel) {
      throw DataError("", "labels[{}] is {} where attention_mask is 0; padding has the label -100", i,
                      sample.labels[i]);
    }
  }
  for (auto* list : {&sample.ids, &sample.labels}) {
    if (!list->empty()) {
      list->assign(list->begin() + static_cast<std::ptrdiff_t>(begin),
                   list->begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
}

Sample parse_tokens(const Json& example, const FieldMap& map) {
  TokenSample sample;
  sample.ids = integers_of(required(example, map, "input_ids"), "input_ids", 0);
  if (sample.ids.empty()) throw DataError("", "input_ids is empty");
  if (const Json* labels = optional_field(example, map, "labels")) {
    sample.labels = integers_of(*labels, "labels", kIgnoredLabel);
    require_length("labels", sample.labels.size(), sample.ids.size());
    const auto bad = std::find_if(sample.labels.begin(), sample.labels.end(),
                                  [](std::int32_t label) { return label < 0 && label != kIgnoredLabel; });
    if (bad != sample.labels.end()) {
      throw DataError("", "labels[{}] is {}, which is not a token id or -100", bad - sample.labels.begin(), *bad);
    }
  }
  if (const Json* mask = optional_field(example, map, "attention_mask")) {
    const auto values = integers_of(*mask, "attention_mask", 0);
    require_length("attention_mask", values.size(), sample.ids.size());
    remove_padding(sample, values);
  }
  return sample;
}

Sample parse_text(const Json& example, const FieldMap& map) {
  return TextSample{{}, string_of(required(example, map, "text"), "text")};
}

Sample parse_prompt_completion(const Json& example, const FieldMap& map) {
  const Json& prompt = required(example, map, "prompt");
  const Json& completion = required(example, map, "completion");
  if (prompt.is_array() || completion.is_array()) return parse_prompt_completion_chat(example, map);
  return TextSample{string_of(prompt, "prompt"), string_of(completion, "completion")};
}

struct Layout {
  DatasetType type;
  std::vector<const char*> keys;  ///< an example with all of these has the layout
  Sample (*parse)(const Json& example, const FieldMap& map);
};

// The registry: first match wins.
const std::array<Layout, 6>& layouts() {
  static const std::array<Layout, 6> table = {{
      {DatasetType::kPretokenized, {"input_ids"}, parse_tokens},
      {DatasetType::kMessages, {"messages"}, parse_messages},
      {DatasetType::kSharegpt, {"conversations"}, parse_sharegpt},
      {DatasetType::kPromptCompletion, {"prompt", "completion"}, parse_prompt_completion},
      {DatasetType::kAlpaca, {"instruction", "output"}, parse_alpaca},
      {DatasetType::kText, {"text"}, parse_text},
  }};
  return table;
}

std::string names_of(const std::vector<const char*>& keys, const FieldMap& map) {
  std::vector<std::string> names;
  for (const char* key : keys) {
    names.push_back(map.contains(key) ? fmt::format("{} (as {})", map.at(key), key) : key);
  }
  return join(names, " and ");
}

bool has_layout(const Json& example, const FieldMap& map, const Layout& layout) {
  return std::all_of(layout.keys.begin(), layout.keys.end(),
                     [&](const char* key) { return optional_field(example, map, key) != nullptr; });
}

[[noreturn]] void no_layout(const Json& example) {
  std::string known;
  for (const Layout& layout : layouts()) {
    known += fmt::format("\n  {}: {}", to_string(layout.type), names_of(layout.keys, {}));
  }
  if (example.contains("chosen") && example.contains("rejected")) {
    const bool has_prompt = example.contains("prompt");
    throw DataError("", "the examples have chosen and rejected answers (" + key_names(example) +
                            "), but preference training is not supported. To train on the chosen answers: field_map: " +
                            (has_prompt ? "{completion: chosen}" : "{messages: chosen}, where chosen is a whole chat") +
                            ".");
  }
  throw DataError("",
                  "no known layout has the keys of this example ({}). The layouts and their keys are:{}\nMap other "
                  "names with field_map, for example field_map: {{prompt: question, completion: answer}}.",
                  example.empty() ? "none" : key_names(example), known);
}

using tokenizer::Message;

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

/// What other tools call our roles. ShareGPT files may use those that are `is_sharegpt`; the others serve advice.
struct RoleName {
  std::string_view theirs, ours;
  bool is_sharegpt = true;
};
constexpr std::array<RoleName, 12> kRoleNames = {{{"human", "user"},
                                                  {"user", "user"},
                                                  {"gpt", "assistant"},
                                                  {"assistant", "assistant"},
                                                  {"system", "system"},
                                                  {"tool", "tool"},
                                                  {"observation", "tool"},
                                                  {"function_response", "tool"},
                                                  {"bot", "assistant", false},
                                                  {"model", "assistant", false},
                                                  {"ai", "assistant", false},
                                                  {"chatbot", "assistant", false}}};

std::string at(const char* list, std::size_t i, const char* field) {
  return fmt::format("{}[{}]{}{}", list, i, *field == 0 ? "" : ".", field);
}

// Rethrows errors from `read` with the message's place in the example in front.
template <typename Read>
auto named(const std::string& name, Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError("", "{}: {}", name, error.message());
  }
}

// Our role for `theirs` according to field_map: user, assistant, tool or function_call; `theirs` if it is not mapped.
std::string mapped_role(const std::string& theirs, const FieldMap& map) {
  for (const char* ours : {"user", "assistant", "tool", "function_call"}) {
    if (const auto found = map.find(ours); found != map.end() && found->second == theirs) return ours;
  }
  return theirs;
}

bool is_known_role(const std::string& role) { return std::ranges::count(kRoles, role) > 0; }

// Our role for another tool's name; empty if it is not known.
std::string our_role_of(const std::string& theirs) {
  const auto found = std::ranges::find(kRoleNames, theirs, &RoleName::theirs);
  return found == kRoleNames.end() ? "" : std::string(found->ours);
}

// `list`: all messages of the example; names all unknown roles together.
[[noreturn]] void refuse_role(const std::string& field, const Json& list, const FieldMap& map) {
  std::vector<std::string> unknown, entries;
  std::set<std::string> named_roles;
  for (const Json& message : list) {
    const Json* const role = message.is_object() ? optional_field(message, map, "role") : nullptr;
    if (role == nullptr || !role->is_string()) continue;
    const auto name = role->get<std::string>();
    const std::string shown = fmt::format("\"{}\"", printable(name, 40)), ours = our_role_of(name);
    if (is_known_role(mapped_role(name, map)) || std::ranges::count(unknown, shown) > 0) continue;
    unknown.push_back(shown);
    if (!ours.empty() && named_roles.insert(ours).second) entries.push_back(ours + ": " + printable(name, 40));
  }
  throw DataError(
      "", "{} is an unknown role: {}; known are system, user, assistant and tool. Name yours in field_map: {{{}}}",
      field, join(unknown), entries.empty() ? "assistant: NAME" : join(entries));
}

void add_turn(ChatSample& sample, Message message, std::optional<float> weight = std::nullopt) {
  sample.messages.push_back(std::move(message));
  sample.weights.push_back(weight);
}

const Json& list_of(const Json& value, const char* field) {
  if (!value.is_array()) wrong_type(field, value, "a list of messages");
  if (value.empty()) throw DataError("", std::string(field) + " is empty; a conversation has at least one message");
  return value;
}

// The example's names for role and content of its messages.
struct Keys {
  std::string role, content;
};

void append(Json& object, const std::string& key, Json value) {
  // The keys of an example are distinct: skipping ordered_json's search keeps a message with many fields linear.
  static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>()).emplace_back(key, std::move(value));
}

// Appends a field under a key that the template already gets from `taken_by`, unless that is empty. Null is what tables
// write for a missing value.
void append_beside(Json& object, const std::string& key, const Json& value, const std::string& taken_by,
                   const std::string& place) {
  if (taken_by.empty()) {
    append(object, key, value);
  } else if (!value.is_null()) {
    throw DataError("", "{} has both \"{}\" and \"{}\", which mean the same; keep one of them", place, key, taken_by);
  }
}

// The message as the template gets it: the example's own object with role and content under these names; "" for an
// object with only these two.
std::string template_json(const Json& value, const Keys& keys, const std::string& role, const std::string& place) {
  const bool is_plain = value.size() == 2 && value.begin().key() == keys.role && value.contains(keys.content);
  if (is_plain && value[keys.content].is_string()) return {};
  Json object = Json::object();
  for (const auto& [key, item] : value.items()) {
    if (key == keys.role) {
      append(object, "role", role);
    } else if (key == keys.content) {
      append(object, "content", item);
    } else {
      append_beside(object, key, item, key == "role" ? keys.role : key == "content" ? keys.content : "", place);
    }
  }
  return object.dump();
}

// A message with tool calls may have no content or null: templates distinguish these from an empty one.
bool may_lack_content(const Json& value, const std::string& role) {
  const auto calls = value.find("tool_calls");
  return role == "assistant" && calls != value.end() && calls->is_array() && !calls->empty();
}

// `keys` are the example's names for role and content, `content_field` is our name for the latter.
Message read_message(const Json& value, const FieldMap& map, const Keys& keys, const char* content_field,
                     std::string role, const std::string& place) {
  Message message;
  message.role = std::move(role);
  if (const Json* content = optional_field(value, map, content_field)) {
    message.content = string_of(*content, fmt::format("{}.{}", place, content_field));
  } else if (!may_lack_content(value, message.role)) {
    named(place, [&] { return std::cref(required(value, map, content_field)); });
  }
  message.json = template_json(value, keys, message.role, place);
  return message;
}

// One message of `list`.
Message parse_message(const Json& value, const FieldMap& map, const std::string& place, const Json& list) {
  if (!value.is_object()) wrong_type(place, value, "an object with role and content");
  const Json& role =
      named(place, [&]() -> std::reference_wrapper<const Json> { return std::cref(required(value, map, "role")); });
  const std::string ours = mapped_role(string_of(role, place + ".role"), map);
  if (!is_known_role(ours)) refuse_role(place + ".role", list, map);
  return read_message(value, map, {name_in(map, "role"), name_in(map, "content")}, "content", ours, place);
}

void parse_list(const Json& value, const FieldMap& map, const char* field, ChatSample& sample) {
  const Json& list = list_of(value, field);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = at(field, i, "");
    add_turn(sample, parse_message(list[i], map, place, list), turn_weight(list[i], map, place));
  }
}

// `field` as JSON text, from a value or from a string that holds JSON.
std::string json_text(const Json& example, const FieldMap& map, const char* field, bool is_list) {
  const Json* value = optional_field(example, map, field);
  if (value == nullptr) return {};
  // Tables write "" for "no tools".
  if (value->is_string() && is_blank(value->get_ref<const std::string&>())) return {};
  const Json parsed = value->is_string() ? inner_json(value->get_ref<const std::string&>(), field) : *value;
  if (is_list ? !parsed.is_array() : !parsed.is_object()) {
    wrong_type(field, *value, is_list ? "a list, or a string that holds one as JSON" : "an object");
  }
  return parsed.empty() ? std::string() : parsed.dump();
}

ChatSample with_template_fields(ChatSample sample, const Json& example, const FieldMap& map) {
  sample.tools_json = json_text(example, map, "tools", true);
  sample.kwargs_json = json_text(example, map, "chat_template_kwargs", false);
  return sample;
}

void add_system(ChatSample& sample, const Json& example, const FieldMap& map) {
  if (const Json* system = optional_field(example, map, "system")) {
    if (const std::string& content = string_of(*system, "system"); !content.empty()) {
      add_turn(sample, {"system", content});
    }
  }
}

std::string sharegpt_role(const std::string& theirs, const std::string& field) {
  const auto found = std::ranges::find(kRoleNames, theirs, &RoleName::theirs);
  if (found != kRoleNames.end() && found->is_sharegpt) return std::string(found->ours);
  throw DataError("", field + " is \"" + printable(theirs, 40) +
                          "\", an unknown speaker; known are human, gpt, system, function_call, tool and observation. "
                          "field_map: {user: NAME} names another");
}

[[noreturn]] void refuse_call(const std::string& field, const std::string& value, const std::string& reason) {
  throw DataError("", field + " of function_call is \"" + printable(value, 60) + "\": " + reason +
                          "; expected JSON {\"name\": ..., \"arguments\": {...}}, or a list of these");
}

// One entry of tool_calls, or an error.
Json tool_call(const Json& call, const std::string& field, const std::string& value) {
  if (!call.is_object()) {
    refuse_call(field, value, "a call is " + std::string(call.type_name()));
  }
  if (!call.contains("name") || !call["name"].is_string()) {
    refuse_call(field, value, "a call has no name, or one that is not a string");
  }
  if (!call.contains("arguments") || !(call["arguments"].is_object() || call["arguments"].is_string())) {
    refuse_call(field, value, "a call has no arguments, or they are not an object");
  }
  if (call.size() != 2) {
    refuse_call(field, value, "a call has fields other than name and arguments");
  }
  return {{"type", "function"}, {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}};
}

// The message for a function_call turn, whose value is JSON {name, arguments} or a list of these, as in LLaMA-Factory's
// ShareGPT examples: an assistant message with empty content and tool_calls.
Json function_call_message(const std::string& value, const std::string& field) {
  JsonExample parsed = parse_json_value(value);
  if (parsed.problem) {
    refuse_call(field, value, parsed.problem->message);
  }
  Json& calls = parsed.value;
  if (!calls.is_array()) {
    calls = Json::array({calls});
  }
  if (calls.empty()) {
    refuse_call(field, value, "it has no call");
  }
  Json tool_calls = Json::array();
  for (const Json& call : calls) {
    tool_calls.push_back(tool_call(call, field, value));
  }
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(tool_calls)}};
}

Message parse_function_call(const Json& value, const Keys& keys, const std::string& text, const std::string& place) {
  Json message = named(place, [&] { return function_call_message(text, keys.content); });
  for (const auto& [key, item] : value.items()) {
    if (key == keys.role || key == keys.content) continue;
    const bool is_taken = key == "role" || key == "content" || key == "tool_calls";
    append_beside(message, key, item, is_taken ? (key == "role" ? keys.role : keys.content) : "", place);
  }
  return {"assistant", "", message.dump()};
}

Message parse_sharegpt_message(const Json& value, const FieldMap& map, const std::string& place) {
  const bool has_our_names =
      optional_field(value, map, "from") == nullptr && optional_field(value, map, "role") != nullptr;
  const char* from = has_our_names ? "role" : "from";
  const char* text_field = has_our_names ? "content" : "value";
  const Keys keys = {name_in(map, from), name_in(map, text_field)};
  const std::string speaker =
      mapped_role(named(place, [&] { return string_of(required(value, map, from), from); }), map);
  if (speaker == "function_call") {
    const std::string text = named(place, [&] { return string_of(required(value, map, text_field), text_field); });
    return parse_function_call(value, keys, text, place);
  }
  std::string role = named(place, [&] { return sharegpt_role(speaker, from); });
  return read_message(value, map, keys, text_field, std::move(role), place);
}

}  // namespace

Detection detect_layout(const Json& example, const FieldMap& field_map) {
  Detection found;
  std::vector<std::string> others;
  for (const Layout& layout : layouts()) {
    if (!has_layout(example, field_map, layout)) continue;
    if (found.type == DatasetType::kAuto) {
      found = {layout.type, "the first example has " + names_of(layout.keys, field_map)};
    } else {
      others.push_back(to_string(layout.type));
    }
  }
  if (found.type == DatasetType::kAuto) {
    no_layout(example);
  }
  if (!others.empty()) {
    found.reason += fmt::format("; its keys would also fit {}: set `type` to choose", join(others, " and "));
  }
  return found;
}

void check_same_layout(const Json& example, DatasetType type, const FieldMap& field_map) {
  for (const Layout& layout : layouts()) {
    if (layout.type == type) return;
    if (!has_layout(example, field_map, layout)) continue;
    throw DataError("", "the example has " + names_of(layout.keys, field_map) + " (type: " + to_string(layout.type) +
                            "), but the first example of the dataset does not (type: " + to_string(type) +
                            "). Set `type` to the type of all examples, or make two datasets");
  }
}

void check_field_map(const FieldMap& field_map) {
  static const std::vector<std::string> known = {
      "messages",   "role",      "content",     "train",         "weight",         "prompt",
      "completion", "text",      "input_ids",   "labels",        "attention_mask", "conversations",
      "from",       "value",     "instruction", "input",         "output",         "system",
      "history",    "choices",   "answer",      "correct",       "tools",          "chat_template_kwargs",
      "user",       "assistant", "tool",        "function_call", "logprobs"};
  static const std::vector<std::string> optional = {
      "train", "weight", "system", "input", "history", "tools", "chat_template_kwargs"};
  for (const auto& [ours, theirs] : field_map) {
    if (std::find(known.begin(), known.end(), ours) == known.end()) {
      const std::string nearest = nearest_name(ours, known);
      throw ConfigError("field_map",
                        "\"{}\" is not one of our names{} field_map maps our name to the name in the file; our names "
                        "are: {}",
                        ours, nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest), join(known));
    }
    if (theirs.empty() && std::ranges::count(optional, ours) == 0) {
      throw ConfigError("field_map", "\"{}\" is null; only these can be left unread: {}", ours, join(optional));
    }
  }
}

Sample parse_example(const Json& example, DatasetType type, const FieldMap& field_map) {
  for (const Layout& layout : layouts()) {
    if (layout.type == type) return layout.parse(example, field_map);
  }
  throw ShapeError("parse_row", "type auto has no parser");
}

Sample parse_messages(const Json& example, const FieldMap& map, const char* field) {
  ChatSample sample;
  if (map.contains("system")) add_system(sample, example, map);
  parse_list(required(example, map, field), map, field, sample);
  return with_template_fields(std::move(sample), example, map);
}

Sample parse_prompt_completion_chat(const Json& example, const FieldMap& map) {
  const Json& prompt = required(example, map, "prompt");
  const Json& completion = required(example, map, "completion");
  if (prompt.is_array() != completion.is_array()) {
    throw DataError("", "prompt is {}, completion {}; both must be strings, or both lists of messages",
                    prompt.type_name(), completion.type_name());
  }
  ChatSample sample;
  parse_list(prompt, map, "prompt", sample);
  sample.num_prompt_messages = sample.messages.size();
  parse_list(completion, map, "completion", sample);
  return with_template_fields(std::move(sample), example, map);
}

Sample parse_sharegpt(const Json& example, const FieldMap& map) {
  ChatSample sample;
  add_system(sample, example, map);
  const Json& list = list_of(required(example, map, "conversations"), "conversations");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = at("conversations", i, "");
    if (!list[i].is_object()) wrong_type(place, list[i], "an object with from and value");
    add_turn(sample, parse_sharegpt_message(list[i], map, place), turn_weight(list[i], map, place));
  }
  return with_template_fields(std::move(sample), example, map);
}

Sample parse_alpaca(const Json& example, const FieldMap& map) {
  ChatSample sample;
  add_system(sample, example, map);
  if (const Json* history = optional_field(example, map, "history")) {
    if (!history->is_array()) wrong_type("history", *history, "a list of [user, assistant] pairs");
    for (std::size_t i = 0; i < history->size(); ++i) {
      const Json& pair = (*history)[i];
      if (!pair.is_array() || pair.size() != 2) wrong_type(at("history", i, ""), pair, "a pair [user, assistant]");
      add_turn(sample, {"user", string_of(pair[0], at("history", i, "") + "[0]")});
      add_turn(sample, {"assistant", string_of(pair[1], at("history", i, "") + "[1]")});
    }
  }
  Message question = {"user", string_of(required(example, map, "instruction"), "instruction")};
  if (const Json* input = optional_field(example, map, "input")) {
    const std::string& text = string_of(*input, "input");
    if (!text.empty()) {
      question.content += (question.content.empty() ? "" : "\n") + text;
      question.json = Json({{"role", "user"}, {"content", question.content}, {"input", text}}).dump();
    }
  }
  add_turn(sample, std::move(question));
  add_turn(sample, {"assistant", string_of(required(example, map, "output"), "output")});
  return with_template_fields(std::move(sample), example, map);
}

bool has_alpaca_input(const Json& message) {
  if (message.size() != 3 || !message.contains("input") || !message["input"].is_string()) return false;
  const std::string content = message.value("content", "");
  return message.value("role", "") == "user" && content.ends_with(message["input"].get<std::string>());
}

}  // namespace lora_train::data

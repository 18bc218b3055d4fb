#include "example_format.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/document_store.h"

namespace lora_train::data {
namespace {

using tokenizer::Message;

// What other tools call our roles. `conversations` may use the known names; others are only advised upon.
struct RoleName {
  std::string_view theirs, ours;
};
constexpr RoleName kKnownRoles[] = {
    {"human", "user"},          {"user", "user"},       {"gpt", "assistant"},          {"assistant", "assistant"},
    {"system", "system"},       {"tool", "tool"},       {"observation", "tool"},       {"function_response", "tool"},
    {"developer", "developer"}, {"ipython", "ipython"}, {"environment", "environment"}};
constexpr RoleName kOtherRoles[] = {
    {"bot", "assistant"}, {"model", "assistant"}, {"ai", "assistant"}, {"chatbot", "assistant"}};

// A list of messages, and how they name their fields and roles.
struct MessageList {
  const Json& messages;
  const FieldMap& map;
  bool is_sharegpt;
};

// Calls read(); to its errors, adds the message's place in the example.
template <typename Read>
decltype(auto) named(const std::string& place, Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError("", "{}: {}", place, error.message());
  }
}

std::string find_role(std::span<const RoleName> roles, const std::string& theirs) {
  const auto found = std::ranges::find(roles, theirs, &RoleName::theirs);
  return std::string(found == roles.end() ? "" : found->ours);
}

// Our role for the name in the example, or function_call; empty if the name is unknown.
std::string role_of(const std::string& name, const MessageList& list) {
  std::string theirs = name;
  for (const char* ours : {"system", "user", "assistant", "tool", "function_call"}) {
    if (const auto found = list.map.find(ours); found != list.map.end() && found->second == name) {
      theirs = ours;
      break;
    }
  }
  const std::string role = find_role(kKnownRoles, theirs);
  if (list.is_sharegpt) return theirs == "function_call" ? theirs : role;
  return role == theirs ? role : "";
}

// Names all unknown roles of the list together.
[[noreturn]] void refuse_role(const std::string& field, const MessageList& list, const char* role_field) {
  std::vector<std::string> unknown, entries;
  std::set<std::string> named_roles;
  for (const Json& message : list.messages) {
    const Json* const role = message.is_object() ? optional_field(message, list.map, role_field) : nullptr;
    if (role == nullptr || !role->is_string()) continue;
    const auto name = role->get<std::string>();
    const std::string shown = fmt::format("\"{}\"", printable(name, 40)), word = lower_case(name);
    const std::string ours = find_role(kKnownRoles, word) + find_role(kOtherRoles, word);
    if (!role_of(name, list).empty() || std::ranges::count(unknown, shown) > 0) continue;
    unknown.push_back(shown);
    if (!ours.empty() && named_roles.insert(ours).second) entries.push_back(ours + ": " + printable(name, 40));
  }
  throw DataError(
      "", "{} is an unknown role: {}; known are {}. Name yours in field_map: {{{}}}", field, join(unknown),
      list.is_sharegpt ? "human, gpt, system, function_call, tool and observation" : "system, user, assistant and tool",
      entries.empty() ? "assistant: NAME" : join(entries));
}

void add_turn(ChatSample& sample, Message message, std::optional<float> weight = std::nullopt) {
  sample.messages.push_back(std::move(message));
  sample.weights.push_back(weight);
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

// The tool_calls of a function_call turn, whose value is JSON {name, arguments} or a list of these, as in
// LLaMA-Factory's ShareGPT examples.
Json tool_calls_of(const std::string& value, const std::string& field) {
  const JsonExample parsed = parse_json_value(value);
  const Json calls = parsed.value.is_array() ? parsed.value : Json::array({parsed.value});
  Json tool_calls = Json::array();
  for (const Json& call : calls) {
    const bool is_call = call.is_object() && call.size() == 2 && call.contains("name") && call["name"].is_string() &&
                         call.contains("arguments") && (call["arguments"].is_object() || call["arguments"].is_string());
    if (!is_call) break;
    tool_calls.push_back(
        {{"type", "function"}, {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}});
  }
  if (!parsed.problem && !calls.empty() && tool_calls.size() == calls.size()) return tool_calls;
  throw DataError("",
                  "{} of function_call is \"{}\"{}; expected JSON {{\"name\": ..., \"arguments\": {{...}}}} with only "
                  "these fields, or a list of these",
                  field, printable(value, 60), parsed.problem ? ": " + parsed.problem->message : "");
}

// The message as the template gets it: the example's own object with role and content under these names; "" for an
// object with only these two. `calls` (null: none): the tool_calls that the content of a function_call turn stands for.
std::string template_json(const Json& value, const Keys& keys, const std::string& role, const Json& calls,
                          const std::string& place) {
  const bool is_plain = value.size() == 2 && value.begin().key() == keys.role && value.contains(keys.content);
  if (is_plain && calls.is_null() && value[keys.content].is_string()) return {};
  Json object = Json::object();
  for (const auto& [key, item] : value.items()) {
    if (key == keys.role) {
      append(object, "role", role);
    } else if (key == keys.content) {
      append(object, "content", calls.is_null() ? item : Json(""));
      if (!calls.is_null()) append(object, "tool_calls", calls);
    } else {
      const bool is_content = key == "content" || (key == "tool_calls" && !calls.is_null());
      append_beside(object, key, item, key == "role" ? keys.role : is_content ? keys.content : "", place);
    }
  }
  return object.dump();
}

// A message with tool calls may have no content or null: templates distinguish these from an empty one.
bool may_lack_content(const Json& value, const std::string& role) {
  const auto calls = value.find("tool_calls");
  return role == "assistant" && calls != value.end() && calls->is_array() && !calls->empty();
}

constexpr const char* kOnlyText = "only text is trained: leave the example out, or put a description in its place";

/// The text of a content: a string, or a list of parts {"type": "text", "text": ...}. Refuses other parts.
std::string content_of(const Json& content, const std::string& place) {
  if (!content.is_array()) return string_of(content, place);
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", place, i);
    if (!content[i].is_object()) wrong_type(part, content[i], "a part {\"type\": \"text\", \"text\": ...}");
    const std::string type = content[i].value("type", Json("text")).dump();
    if (type != "\"text\"") throw DataError("", "{} has the type {}; {}", part, printable(type, 40), kOnlyText);
    text += string_of(content[i].value("text", Json()), part + ".text");
  }
  return text;
}

/// True for what tables write where there is no value: null, "", and lists and objects of nothing else.
bool is_nothing(const Json& value) {
  return value.is_structured() ? std::ranges::all_of(value, is_nothing) : value.is_null() || value == "";
}

/// Refuses an example with images, audio or video in a column that nothing else reads.
void refuse_media_columns(const Json& example, const FieldMap& map) {
  for (const char* column : {"image", "images", "audio", "audios", "video", "videos"}) {
    const auto found = example.find(column);
    const bool is_read = std::ranges::any_of(map, [&](const auto& field) { return field.second == column; });
    if (found == example.end() || is_read || is_nothing(*found)) continue;
    throw DataError("", "\"{}\" is not empty; {}. If the text stands without it, remove the column", column, kOnlyText);
  }
}

Message parse_message(const Json& value, const MessageList& list, const std::string& place) {
  if (!value.is_object())
    wrong_type(place, value, list.is_sharegpt ? "an object with from and value" : "an object with role and content");
  const auto field_of = [&](const char* field) -> const Json& {
    return named(place, [&]() -> const Json& { return required(value, list.map, field); });
  };
  const bool has_our_names = !list.is_sharegpt || (optional_field(value, list.map, "from") == nullptr &&
                                                   optional_field(value, list.map, "role") != nullptr);
  const char* role_field = has_our_names ? "role" : "from";
  const char* content_field = has_our_names ? "content" : "value";
  const std::string role_place = fmt::format("{}.{}", place, role_field);
  const std::string content_place = fmt::format("{}.{}", place, content_field);
  const Keys keys = {name_in(list.map, role_field), name_in(list.map, content_field)};
  Message message;
  Json calls;
  message.role = role_of(string_of(field_of(role_field), role_place), list);
  if (message.role.empty()) refuse_role(role_place, list, role_field);
  if (message.role == "function_call") {
    message.role = "assistant";
    const std::string& text = string_of(field_of(content_field), content_place);
    calls = named(place, [&] { return tool_calls_of(text, keys.content); });
  } else if (optional_field(value, list.map, content_field) != nullptr || !may_lack_content(value, message.role)) {
    message.content = content_of(field_of(content_field), content_place);
  }
  refuse_bad_numbers(value, place);
  message.json = template_json(value, keys, message.role, calls, place);
  return message;
}

void parse_list(const Json& given, const FieldMap& map, const char* field, ChatSample& sample,
                bool is_sharegpt = false) {
  const Json inner = given.is_string() ? inner_json(given.get_ref<const std::string&>(), field) : Json();
  const Json& value = given.is_string() ? inner : given;  // tables write lists as JSON text
  if (!value.is_array()) wrong_type(field, given, "a list of messages, or a string that holds one as JSON");
  if (value.empty()) throw DataError("", std::string(field) + " is empty; a conversation has at least one message");
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", field, i);
    add_turn(sample, parse_message(value[i], {value, map, is_sharegpt}, place), turn_weight(value[i], map, place));
  }
}

// `field` as JSON text, from a value or from a string that holds JSON.
std::string json_text(const Json& example, const FieldMap& map, const char* field, bool is_list) {
  const Json* value = optional_field(example, map, field);
  if (value == nullptr) return {};
  if (value->is_string() && is_blank(value->get_ref<const std::string&>())) return {};  // a table without tools
  const Json parsed = value->is_string() ? inner_json(value->get_ref<const std::string&>(), field) : *value;
  if (is_list ? !parsed.is_array() : !parsed.is_object()) {
    wrong_type(field, *value, is_list ? "a list, or a string that holds one as JSON" : "an object");
  }
  refuse_bad_numbers(parsed, field);
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

Sample parse_prompt_completion(const Json& example, const FieldMap& map) {
  const Json& prompt = required(example, map, "prompt");
  const Json& completion = required(example, map, "completion");
  if (!prompt.is_array() && !completion.is_array())
    return TextSample{string_of(prompt, "prompt"), string_of(completion, "completion")};
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

// A `system` column comes first.
Sample parse_sharegpt(const Json& example, const FieldMap& map) {
  ChatSample sample;
  add_system(sample, example, map);
  parse_list(required(example, map, "conversations"), map, "conversations", sample, /*is_sharegpt=*/true);
  return with_template_fields(std::move(sample), example, map);
}

Sample parse_alpaca(const Json& example, const FieldMap& map) {
  ChatSample sample;
  add_system(sample, example, map);
  if (const Json* history = optional_field(example, map, "history")) {
    if (!history->is_array()) wrong_type("history", *history, "a list of [user, assistant] pairs");
    for (std::size_t i = 0; i < history->size(); ++i) {
      const Json& pair = (*history)[i];
      const std::string place = fmt::format("history[{}]", i);
      if (!pair.is_array() || pair.size() != 2) wrong_type(place, pair, "a pair [user, assistant]");
      add_turn(sample, {"user", string_of(pair[0], place + "[0]")});
      add_turn(sample, {"assistant", string_of(pair[1], place + "[1]")});
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

// Token ids, and also `min` if that is negative.
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
    if (is_huge || (value < 0 && value != min) || value > INT32_MAX) {
      throw DataError("", "{}[{}] is {}, which is not a token id{}", field, i, list[i].dump(),
                      min < 0 ? " or -100" : "");
    }
    out.push_back(static_cast<std::int32_t>(value));
  }
  return out;
}

void require_length(std::string_view field, std::size_t length, std::size_t expected) {
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

// The range of tokens that are not padding.
using Range = std::pair<std::size_t, std::size_t>;

void remove_padding(TokenSample& sample, Range range) {
  for (std::size_t i = 0; i < sample.labels.size(); ++i) {
    if ((i < range.first || i >= range.second) && sample.labels[i] != kIgnoredLabel) {
      throw DataError("", "labels[{}] is {} where attention_mask is 0; padding has the label -100", i,
                      sample.labels[i]);
    }
  }
  for (auto* list : {&sample.ids, &sample.labels}) {
    const auto begin = list->begin();
    if (!list->empty()) *list = {begin + std::ptrdiff_t(range.first), begin + std::ptrdiff_t(range.second)};
  }
}

/// The first token of each document, ascending, from one of the fields in which tools that pack say it. position_ids and
/// seq_idx also count the padding outside `range`.
std::vector<std::size_t> documents_of(std::string_view field, const std::vector<std::int32_t>& values, std::size_t size,
                                      Range range) {
  std::vector<std::size_t> firsts;
  if (field == "position_ids" || field == "seq_idx") {
    require_length(field, values.size(), size);
    const int step = field == "position_ids" ? 1 : 0;
    for (std::size_t i = range.first; i < range.second; ++i) {
      if (i > range.first && values[i] == values[i - 1] + step) continue;
      if (step == 1 && values[i] != 0)
        throw DataError("", "position_ids[{}] is {}; the positions of a document count from 0", i, values[i]);
      firsts.push_back(i - range.first);
    }
    return firsts;
  }
  std::size_t end = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<std::size_t>(values[i]);
    const std::size_t next = field == "seq_lengths" ? end + value : value;
    if (next < end || (i == 0 && field == "cu_seq_lens_q" && next != 0))
      throw DataError("", "{}[{}] is {}; expected 0, then the end of each document, ascending", field, i, value);
    if (next > end) firsts.push_back(end);
    end = next;
  }
  const std::size_t num_tokens = range.second - range.first;
  if (end != num_tokens) throw DataError("", "{} describes {} tokens, and input_ids has {}", field, end, num_tokens);
  return firsts;
}

Sample parse_tokens(const Json& example, const FieldMap& map) {
  TokenSample sample;
  sample.ids = integers_of(required(example, map, "input_ids"), "input_ids", 0);
  const std::size_t size = sample.ids.size();
  if (size == 0) throw DataError("", "input_ids is empty");
  if (const Json* labels = optional_field(example, map, "labels")) {
    sample.labels = integers_of(*labels, "labels", kIgnoredLabel);
    require_length("labels", sample.labels.size(), size);
  }
  Range range{0, size};
  if (const Json* mask = optional_field(example, map, "attention_mask")) {
    const auto values = integers_of(*mask, "attention_mask", 0);
    require_length("attention_mask", values.size(), size);
    range = attended_range(values);
    remove_padding(sample, range);
  }
  for (const char* field : {"position_ids", "seq_idx", "seq_lengths", "cu_seq_lens_q"}) {
    const Json* const given = optional_field(example, map, field);
    if (given == nullptr) continue;
    auto documents = documents_of(field, integers_of(*given, field, 0), size, range);
    if (!sample.documents.empty() && documents != sample.documents)
      throw DataError("", "{} describes other documents than the field before it; keep one of them", field);
    sample.documents = std::move(documents);
  }
  return sample;
}

Sample parse_text(const Json& example, const FieldMap& map) {
  return TextSample{{}, string_of(required(example, map, "text"), "text")};
}

struct Layout {
  DatasetType type;
  std::vector<const char*> keys;  ///< an example with all of these has the layout
  std::vector<const char*> also;  ///< what else is read of it
  Sample (*parse)(const Json& example, const FieldMap& map);
};

// The registry: first match wins.
const std::array<Layout, 6>& layouts() {
  static const std::array<Layout, 6> table = {{
      {DatasetType::kPretokenized,
       {"input_ids"},
       {"labels", "attention_mask", "position_ids", "seq_idx", "seq_lengths", "cu_seq_lens_q"},
       parse_tokens},
      {DatasetType::kMessages,
       {"messages"},
       {"tools", "chat_template_kwargs"},
       [](const Json& example, const FieldMap& map) -> Sample { return parse_messages(example, map); }},
      {DatasetType::kSharegpt, {"conversations"}, {"system", "tools", "chat_template_kwargs"}, parse_sharegpt},
      {DatasetType::kPromptCompletion,
       {"prompt", "completion"},
       {"tools", "chat_template_kwargs"},
       parse_prompt_completion},
      {DatasetType::kAlpaca,
       {"instruction", "output"},
       {"input", "system", "history", "tools", "chat_template_kwargs"},
       parse_alpaca},
      {DatasetType::kText, {"text"}, {}, parse_text},
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

[[noreturn]] void refuse_preferences(const std::string& what, const std::string& advice) {
  throw DataError("", "{}, but preference training is not supported. To train on the {}", what, advice);
}

/// Advice for examples with chosen and rejected answers: a field_map under which the chosen ones are read.
std::string map_of_chosen(const Json& example) {
  const bool is_list = example["chosen"].is_array(), has_prompt = example.contains("prompt");
  if (has_prompt && example["prompt"].is_array() == is_list) return "{completion: chosen}";
  return is_list ? "{messages: chosen}, where chosen is a whole chat" : "{text: chosen}";
}

[[noreturn]] void no_layout(const Json& example) {
  if (example.contains("chosen") && example.contains("rejected")) {
    refuse_preferences(fmt::format("the examples have chosen and rejected answers ({})", key_names(example)),
                       "chosen answers: field_map: " + map_of_chosen(example) + ".");
  }
  std::string known;
  for (const Layout& layout : layouts()) {
    known += fmt::format("\n  {}: {}", to_string(layout.type), names_of(layout.keys, {}));
  }
  throw DataError("",
                  "no known layout has the keys of this example ({}). The layouts and their keys are:{}\nMap other "
                  "names with field_map, for example field_map: {{instruction: question, output: answer}} for a chat.",
                  example.empty() ? "none" : key_names(example), known);
}

/// Refuses an example of KTO: an answer with a boolean (in CSV, as text) that says if it is a good one.
void refuse_labelled(const Json& example) {
  for (const std::string name : {"label", "kto_tag"}) {
    const auto label = example.find(name);
    if (label == example.end() || (name == "label" && !example.contains("completion"))) continue;
    const std::string text = lower_case(label->is_string() ? label->get<std::string>() : label->dump());
    if (text != "true" && text != "false") continue;
    refuse_preferences(fmt::format("the example has a boolean \"{}\", as for KTO", name),
                       "good answers, leave out the other examples and remove the column.");
  }
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
  if (found.type == DatasetType::kAuto) no_layout(example);
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
  const auto with_marks = [](std::vector<std::string> names) {
    names.insert(names.end(), std::begin(kTurnMarks) + 1, std::end(kTurnMarks));  // train is among them
    return names;
  };
  static const std::vector<std::string> known =
      with_marks({"messages",   "role",      "content",     "train",         "weight",         "prompt",
                  "completion", "text",      "input_ids",   "labels",        "attention_mask", "conversations",
                  "from",       "value",     "instruction", "input",         "output",         "system",
                  "history",    "choices",   "answer",      "correct",       "tools",          "chat_template_kwargs",
                  "user",       "assistant", "tool",        "function_call", "logprobs"});
  static const std::vector<std::string> optional =
      with_marks({"train", "weight", "system", "input", "history", "tools", "chat_template_kwargs"});
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
  refuse_media_columns(example, field_map);
  refuse_labelled(example);
  for (const Layout& layout : layouts()) {
    if (layout.type == type) return layout.parse(example, field_map);
  }
  throw ShapeError("parse_row", "type auto has no parser");
}

ChatSample parse_messages(const Json& example, const FieldMap& map, const char* field) {
  ChatSample sample;
  if (map.contains("system")) add_system(sample, example, map);
  parse_list(required(example, map, field), map, field, sample);
  return with_template_fields(std::move(sample), example, map);
}

std::vector<std::string> unread_columns(const Json& example, DatasetType type, const FieldMap& field_map) {
  const auto* const layout = std::ranges::find(layouts(), type, &Layout::type);
  const bool is_text = type == DatasetType::kPromptCompletion && example.contains(name_in(field_map, "prompt")) &&
                       example[name_in(field_map, "prompt")].is_string();
  std::vector<std::string> unread;
  for (const auto& column : example.items()) {
    const auto is_key = [&](const char* field) { return name_in(field_map, field) == column.key(); };
    const bool is_read = std::ranges::any_of(layout->keys, is_key) ||
                         (!is_text && std::ranges::any_of(layout->also, is_key)) ||
                         (field_map.contains("system") && is_key("system"));
    if (!is_read) unread.push_back(column.key());
  }
  return unread;
}

bool has_alpaca_input(const Json& message) {
  if (message.size() != 3 || !message.contains("input") || !message["input"].is_string()) return false;
  const std::string content = message.value("content", "");
  return message.value("role", "") == "user" && content.ends_with(message["input"].get<std::string>());
}

}  // namespace lora_train::data

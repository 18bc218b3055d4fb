#include "row_format.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "chat_layouts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/document_store.h"

namespace lora_train::data {
namespace {

std::vector<std::int32_t> integers_of(const Json& list, const char* field, std::int64_t min) {
  if (!list.is_array()) {
    wrong_type(field, list, "a list of integers");
  }
  std::vector<std::int32_t> out;
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer()) {
      wrong_type(std::string(field) + "[" + std::to_string(i) + "]", list[i], "an integer");
    }
    const bool is_huge = list[i].is_number_unsigned() && list[i].get<std::uint64_t>() > INT32_MAX;
    const auto value = list[i].get<std::int64_t>();
    if (is_huge || value < min || value > INT32_MAX) {
      throw DataError("", std::string(field) + "[" + std::to_string(i) + "] is " + list[i].dump() +
                              ", which is not a token id" + (min < 0 ? " or -100" : ""));
    }
    out.push_back(static_cast<std::int32_t>(value));
  }
  return out;
}

void require_length(const char* field, std::size_t length, std::size_t expected) {
  if (length != expected) {
    throw DataError("", std::string(field) + " has " + std::to_string(length) + " values, input_ids " +
                            std::to_string(expected) + "; they must have the same length");
  }
}

// Padding is found by position, never by id: pad is often eos. Zeros stand at one end.
std::pair<std::size_t, std::size_t> attended_range(const std::vector<std::int32_t>& mask) {
  const auto first = std::find(mask.begin(), mask.end(), 1);
  const auto end = std::find(mask.rbegin(), mask.rend(), 1).base();
  if (first == mask.end()) {
    throw DataError("", "attention_mask has no 1");
  }
  if (!std::all_of(first, end, [](std::int32_t value) { return value == 1; }) ||
      std::any_of(mask.begin(), mask.end(), [](std::int32_t value) { return value > 1; })) {
    throw DataError("",
                    "attention_mask has a 0 between ones, or another value than 0 and 1; zeros may only be padding "
                    "at the start or the end of the row");
  }
  return {first - mask.begin(), end - mask.begin()};
}

void remove_padding(TokenSample& sample, const std::vector<std::int32_t>& mask) {
  const auto [begin, end] = attended_range(mask);
  for (std::size_t i = 0; i < sample.labels.size(); ++i) {
    if ((i < begin || i >= end) && sample.labels[i] != kIgnoredLabel) {
      throw DataError("", "labels[" + std::to_string(i) + "] is " + std::to_string(sample.labels[i]) +
                              " where attention_mask is 0; padding has the label -100");
    }
  }
  for (auto* list : {&sample.ids, &sample.labels}) {
    if (!list->empty()) {
      list->assign(list->begin() + static_cast<std::ptrdiff_t>(begin),
                   list->begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
}

Sample parse_tokens(const Json& row, const FieldMap& map) {
  TokenSample sample;
  sample.ids = integers_of(required(row, map, "input_ids"), "input_ids", 0);
  if (sample.ids.empty()) {
    throw DataError("", "input_ids is empty");
  }
  if (const Json* labels = optional_field(row, map, "labels")) {
    sample.labels = integers_of(*labels, "labels", kIgnoredLabel);
    require_length("labels", sample.labels.size(), sample.ids.size());
    const auto bad = std::find_if(sample.labels.begin(), sample.labels.end(),
                                  [](std::int32_t label) { return label < 0 && label != kIgnoredLabel; });
    if (bad != sample.labels.end()) {
      throw DataError("", "labels[" + std::to_string(bad - sample.labels.begin()) + "] is " + std::to_string(*bad) +
                              ", which is not a token id or -100");
    }
  }
  if (const Json* mask = optional_field(row, map, "attention_mask")) {
    const auto values = integers_of(*mask, "attention_mask", 0);
    require_length("attention_mask", values.size(), sample.ids.size());
    remove_padding(sample, values);
  }
  return sample;
}

Sample parse_text(const Json& row, const FieldMap& map) {
  return TextSample{{}, string_of(required(row, map, "text"), "text")};
}

Sample parse_prompt_completion(const Json& row, const FieldMap& map) {
  const Json& prompt = required(row, map, "prompt");
  const Json& completion = required(row, map, "completion");
  if (prompt.is_array() || completion.is_array()) {
    return parse_prompt_completion_chat(row, map);
  }
  return TextSample{string_of(prompt, "prompt"), string_of(completion, "completion")};
}

struct Layout {
  DatasetType type;
  std::vector<const char*> keys;  ///< a row with all of these has the layout
  Sample (*parse)(const Json& row, const FieldMap& map);
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
    names.push_back(map.contains(key) ? map.at(key) + " (as " + key + ")" : key);
  }
  return join(names, " and ");
}

bool has_layout(const Json& row, const FieldMap& map, const Layout& layout) {
  return std::all_of(layout.keys.begin(), layout.keys.end(),
                     [&](const char* key) { return optional_field(row, map, key) != nullptr; });
}

[[noreturn]] void no_layout(const Json& row) {
  std::string known;
  for (const Layout& layout : layouts()) {
    known += "\n  " + to_string(layout.type) + ": " + names_of(layout.keys, {});
  }
  if (row.contains("chosen") && row.contains("rejected")) {
    const bool has_prompt = row.contains("prompt");
    throw DataError("", "the rows have chosen and rejected answers (" + key_names(row) +
                            "), and preference training is not built. To train on the chosen answers: field_map: " +
                            (has_prompt ? "{completion: chosen}" : "{messages: chosen}, where chosen is a whole chat") +
                            ".");
  }
  throw DataError("", "no known layout has the keys of this row (" + (row.empty() ? "none" : key_names(row)) +
                          "). The layouts and their keys are:" + known +
                          "\nMap other names with field_map, for example field_map: {prompt: question, completion: "
                          "answer}.");
}

float weight_number(const Json& weight, const std::string& field) {
  constexpr auto kExpected = "0 (not trained) or a positive number";
  if (!weight.is_number()) {
    wrong_type(field, weight, kExpected);
  }
  const auto value = static_cast<float>(weight.get<double>());
  if (weight.get<double>() != 0.0 && !(std::isnormal(value) && value > 0)) {
    throw DataError("", field + " is " + weight.dump() + "; the weight of a turn is " + kExpected +
                            " from 1.2e-38 to 3.4e38. To weight whole datasets, set `weight` in the profile");
  }
  return std::abs(value);  // 0 for -0
}

}  // namespace

Detection detect_layout(const Json& row, const FieldMap& field_map) {
  Detection found;
  std::vector<std::string> others;
  for (const Layout& layout : layouts()) {
    if (!has_layout(row, field_map, layout)) {
      continue;
    }
    if (found.type == DatasetType::kAuto) {
      found = {layout.type, "the first row has " + names_of(layout.keys, field_map)};
    } else {
      others.push_back(to_string(layout.type));
    }
  }
  if (found.type == DatasetType::kAuto) {
    no_layout(row);
  }
  if (!others.empty()) {
    found.reason += "; its keys would also fit " + join(others, " and ") + ": set `type` to choose";
  }
  return found;
}

void check_same_layout(const Json& row, DatasetType type, const FieldMap& field_map) {
  for (const Layout& layout : layouts()) {
    if (layout.type == type) return;
    if (!has_layout(row, field_map, layout)) continue;
    throw DataError("", "the row has " + names_of(layout.keys, field_map) + " (type: " + to_string(layout.type) +
                            "), and the first row of the dataset has not (type: " + to_string(type) +
                            "). Set `type` to say which of them all rows have, or make two datasets");
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
                        "\"" + ours + "\" is not one of our names" +
                            (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") +
                            " field_map maps our name to the name in the file; our names are: " + join(known));
    }
    if (theirs.empty() && std::ranges::count(optional, ours) == 0) {
      throw ConfigError("field_map", "\"" + ours + "\" is null; only these can stay unread: " + join(optional));
    }
  }
}

Sample parse_row(const Json& row, DatasetType type, const FieldMap& field_map) {
  for (const Layout& layout : layouts()) {
    if (layout.type == type) {
      return layout.parse(row, field_map);
    }
  }
  throw ShapeError("parse_row", "type auto has no parser");
}

std::string name_in(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped == map.end() ? field : mapped->second;
}

bool is_unread(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped != map.end() && mapped->second.empty();
}

const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field) {
  if (is_unread(map, field)) return nullptr;
  const auto found = object.find(name_in(map, field));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& required(const Json& object, const FieldMap& map, const std::string& field) {
  if (const Json* value = optional_field(object, map, field)) {
    return *value;
  }
  const std::string name = name_in(map, field);
  throw DataError("", "\"" + name + "\" is " + (object.contains(name) ? "null" : "missing"));
}

const std::string& string_of(const Json& value, const std::string& field) {
  if (!value.is_string()) {
    wrong_type(field, value, "a string");
  }
  return value.get_ref<const std::string&>();
}

void wrong_type(const std::string& field, const Json& value, const std::string& expected) {
  throw DataError("", field + " is " + value.type_name() + ", expected " + expected);
}

Json inner_json(const std::string& text, const std::string& field) {
  JsonRow parsed = parse_json_value(text);
  if (parsed.problem) {
    throw DataError("", field + " is string, and its text is refused: " + parsed.problem->message);
  }
  return std::move(parsed.value);
}

std::string printable(const std::string& text, std::size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += byte == '\n' ? "\\n" : string_printf("\\x%02x", byte);
    } else {
      out += c;
    }
  }
  // A cut must not leave a part of a character.
  if (text.size() > max_bytes) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) {
      out.pop_back();
    }
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0x80) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

std::string key_names(const Json& row) {
  std::vector<std::string> names;
  for (const auto& item : row.items()) {
    if (names.size() < 20) names.push_back(printable(item.key(), 40));
  }
  return join(names);
}

std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place) {
  const Json* train = optional_field(message, map, "train");
  const Json* weight = optional_field(message, map, "weight");
  if (!is_unread(map, "train") && optional_field(message, map, "train_detail") != nullptr) {
    throw DataError("",
                    place + ".train_detail is not supported: a turn is trained whole or not at all (train, weight)");
  }
  if (train != nullptr && !train->is_boolean()) {
    wrong_type(place + ".train", *train, "true or false");
  }
  std::optional<float> value;
  if (weight != nullptr) value = weight_number(*weight, place + ".weight");
  if (train == nullptr) return value;
  if (value && train->get<bool>() != (*value > 0)) {
    throw DataError("",
                    place + ": train is " + train->dump() + " and weight is " + weight->dump() + "; keep one of them");
  }
  return value.value_or(train->get<bool>() ? 1.0F : 0.0F);
}

}  // namespace lora_train::data

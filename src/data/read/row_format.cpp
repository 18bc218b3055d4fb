#include "row_format.h"

#include <algorithm>
#include <array>

#include "chat_layouts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/document_store.h"
#include "row_fields.h"

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

}  // namespace lora_train::data

// Dataset layouts: the fields of a row, the list of layouts, detecting a row's layout, and parsing a row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "json_rows.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::data {

/// A conversation for the chat template.
struct ChatSample {
  std::vector<tokenizer::Message> messages;
  std::size_t num_prompt_messages = 0;  ///< of prompt/completion rows: the messages of the prompt; else 0
  std::string tools_json, kwargs_json;  ///< as RenderOptions takes them
  /// What each message counts for in the loss: 0 = not trained, nullopt = as loss_on has it; those beyond its end are nullopt.
  std::vector<std::optional<float>> weights = {};
};

/// Plain text, to which EOS is added. `prompt` is empty for layout text.
struct TextSample {
  std::string prompt, completion;
};

/// Ids made elsewhere. labels is empty when the row has none. Padding (attention_mask 0) is already removed.
struct TokenSample {
  std::vector<std::int32_t> ids, labels;
};

using Sample = std::variant<ChatSample, TextSample, TokenSample>;

/// Our field name -> the name in the file; a field that is not in it has our name.
using FieldMap = std::map<std::string, std::string>;

struct Detection {
  DatasetType type = DatasetType::kAuto;
  std::string reason;  ///< for the log: "the rows have messages"
};

/// The layout of a row by its keys. Throws DataError (where empty) naming the keys found and the layouts there are.
Detection detect_layout(const Json& row, const FieldMap& field_map);

/// Refuses a row of a dataset whose first row has layout `type`, if its keys make it one of a layout that comes before that: it would
/// have decided, had it been the first. Throws DataError (where empty).
void check_same_layout(const Json& row, DatasetType type, const FieldMap& field_map);

/// Refuses names in a field_map that no layout has, and null for a field that a layout needs: ConfigError (where = "field_map").
void check_field_map(const FieldMap& field_map);

/// Reads a row of a given layout (not kAuto). Throws DataError (where empty): the field, what is wrong, what is
/// expected.
Sample parse_row(const Json& row, DatasetType type, const FieldMap& field_map);

/// What a row calls the field.
std::string name_in(const FieldMap& map, const std::string& field);

/// Whether the field map says that nobody reads the field: {train: null}.
bool is_unread(const FieldMap& map, const std::string& field);

/// The field (by our name), or null when the row does not have it, has null there, or nobody reads it.
const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field);

/// The field; throws DataError if it is missing.
const Json& required(const Json& object, const FieldMap& map, const std::string& field);

/// A string; throws DataError naming `field` when it is something else.
const std::string& string_of(const Json& value, const std::string& field);

/// Throws DataError: "field is a number, expected ...".
[[noreturn]] void wrong_type(const std::string& field, const Json& value, const std::string& expected);

/// Any JSON value inside a string, parsed as strictly as a row; throws DataError naming `field`.
Json inner_json(const std::string& text, const std::string& field);

/// `text` for a message: at most `max_bytes` of it, control characters escaped.
std::string printable(const std::string& text, std::size_t max_bytes);

/// The first keys of a row for a message: "a, b, c".
std::string key_names(const Json& row);

/// How much a row wants a message to count, from the fields train (true, false: 1, 0) and weight (0 or a positive number) of a message; absent or null is nullopt.
/// Throws DataError for other values, for both when they disagree, and for train_detail, which is not supported.
/// `place` names the message: "messages[2]".
std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place);

}  // namespace lora_train::data

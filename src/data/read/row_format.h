// Dataset layouts: the list of layouts, detecting a row's layout, and parsing a row.
#pragma once

#include <cstdint>
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

/// messages: [{role, content, ...}]; tools; chat_template_kwargs. Roles: system, user, assistant, tool. The template gets
/// each message as the row has it; train and weight also say what its tokens count for (turn_weight). `field` may
/// be another one that holds such a list.
Sample parse_messages(const Json& row, const FieldMap& map, const char* field);
inline Sample parse_messages(const Json& row, const FieldMap& map) { return parse_messages(row, map, "messages"); }

/// prompt and completion as lists of messages.
Sample parse_prompt_completion_chat(const Json& row, const FieldMap& map);

/// conversations: [{from, value}] with human, gpt, function_call, observation and system (or our roles), train and weight
/// as above; a `system` column comes first.
Sample parse_sharegpt(const Json& row, const FieldMap& map);

/// instruction, input, output, system, history [[user, assistant], ...] as chat turns: user = instruction LF input, which a template
/// gets as `input` too, so that it can put its own text between them.
Sample parse_alpaca(const Json& row, const FieldMap& map);
/// Whether `message`, as a template gets it, has that `input`, which is no part of the message itself.
bool has_alpaca_input(const Json& message);

}  // namespace lora_train::data

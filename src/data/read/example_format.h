// Dataset layouts: lists them, detects an example's layout, and parses an example.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "json_examples.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::data {

/// A conversation for the chat template.
struct ChatSample {
  std::vector<tokenizer::Message> messages;
  std::size_t num_prompt_messages = 0;  ///< prompt/completion examples: the number of prompt messages; else 0
  std::string tools_json, kwargs_json;  ///< as in RenderOptions
  /// Loss weight per message: 0 = not trained, nullopt = as loss_on says; missing entries are nullopt.
  std::vector<std::optional<float>> weights = {};
};

/// Plain text, to which EOS is added. `prompt` is empty for layout text.
struct TextSample {
  std::string prompt, completion;
};

/// Ids made elsewhere. labels is empty if the example has none. Padding (attention_mask 0) is already removed.
struct TokenSample {
  std::vector<std::int32_t> ids, labels;
  std::vector<std::size_t> documents = {};  ///< of an example packed elsewhere: each one's first token; else empty
};

using Sample = std::variant<ChatSample, TextSample, TokenSample>;

struct Detection {
  DatasetType type = DatasetType::kAuto;
  std::string reason;  ///< for the log: "the examples have messages"
};

/// The layout of an example, from its keys. Throws DataError (where empty) naming the keys found and the known layouts.
Detection detect_layout(const Json& example, const FieldMap& field_map);

/// In a dataset whose first example has layout `type`, refuses an example whose keys match a layout with precedence
/// over it, which would have won if that example had been first. Throws DataError (where empty).
void check_same_layout(const Json& example, DatasetType type, const FieldMap& field_map);

/// Refuses names in a field_map that no layout has, and null for a required field: ConfigError (where = "field_map").
void check_field_map(const FieldMap& field_map);

/// Reads an example of a given layout (not kAuto). Throws DataError (where empty) with the field, the problem and what
/// is expected.
Sample parse_example(const Json& example, DatasetType type, const FieldMap& field_map);

/// The columns of an example that nothing reads in this layout, in its order.
std::vector<std::string> unread_columns(const Json& example, DatasetType type, const FieldMap& field_map);

/// messages: [{role, content, ...}]; tools; chat_template_kwargs. Roles: system, user, assistant, tool, and developer,
/// ipython and environment. The template gets each message as in the example; train and weight also set the weight of
/// its tokens (turn_weight). `field` may be another one that holds such a list.
ChatSample parse_messages(const Json& example, const FieldMap& map, const char* field = "messages");

/// True if `message`, as passed to a template, has the field `input` of an alpaca example, which is not part of the
/// message itself.
bool has_alpaca_input(const Json& message);

}  // namespace lora_train::data

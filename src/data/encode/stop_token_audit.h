// Whether the trained model will learn to stop, and be stopped.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/cache/document_store.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

struct StopTokenAudit {
  std::optional<std::int32_t> id;     ///< the token that ends an assistant turn; nothing when the template has none
  std::vector<std::string> warnings;  ///< what is wrong and what to do
};

/// Looks at what the template writes after an answer, at the end tokens of generation_config.json (else the
/// tokenizer's), and at how often the token is trained in `train`.
StopTokenAudit audit_stop_token(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template,
                                const DocumentStore& train);

/// A warning if the tokenizer has no token to put behind rows of text and of prompt and completion.
std::optional<std::string> audit_end_of_text(const tokenizer::Tokenizer& tokenizer);

}  // namespace lora_train::data

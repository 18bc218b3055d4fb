// Checks that the trained model will learn to stop, and that servers will stop it.
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
  std::optional<std::int32_t> id;     ///< the token that ends an assistant turn; empty if the template has none
  std::vector<std::string> warnings;  ///< problems and how to fix them
};

/// Checks what the template writes after an answer, the end tokens of generation_config.json (else the tokenizer's),
/// and how often the token is trained in `train`.
StopTokenAudit audit_stop_token(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template,
                                const DocumentStore& train);

/// A warning if the tokenizer has no token to append to examples of text and of prompt and completion.
std::optional<std::string> audit_end_of_text(const tokenizer::Tokenizer& tokenizer);

}  // namespace lora_train::data

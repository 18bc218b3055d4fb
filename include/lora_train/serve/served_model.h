// A model that clients can name: the base, or an adapter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::serve {

struct ServedModel {
  std::string name;
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< never null
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: no chats
  std::vector<std::int32_t> stop_ids;
  std::int32_t vocab_size = 0;        ///< rows of the embedding: larger ids are refused
  std::optional<std::int64_t> owner;  ///< ServedRequest::owner
};

}  // namespace lora_train::serve

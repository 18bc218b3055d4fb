// The files of a Hugging Face folder that make up its tokenizer, to copy along with a model or adapter.
#pragma once

namespace lora_train::storage {

inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model", "tekken.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json",      "merges.txt",  "chat_template.jinja"};

}  // namespace lora_train::storage

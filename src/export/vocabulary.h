// The tokenizer, chat template and stop tokens of a GGUF model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lora_train/export/gguf_file.h"

namespace lora_train::gguf {

/// The keys "tokenizer.*" of the tokenizer in `folder`; the end tokens of generation_config.json may be in `generation_folder`
/// instead. The list of tokens is filled up to vocab_size, the rows of the embedding.
/// eos_token_id is the token that ends an answer of the chat template, where there is one; other stop tokens
/// (tokenizer::stop_token_ids) follow as eot_token_id and eom_token_id, and a fourth one is warned of.
/// Throws FormatError for a tokenizer that llama.cpp would cut differently, and for more tokens than rows.
std::vector<KeyValue> vocabulary_metadata(const std::filesystem::path& folder,
                                          const std::filesystem::path& generation_folder, std::int64_t vocab_size);

}  // namespace lora_train::gguf

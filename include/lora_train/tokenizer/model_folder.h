// The tokenizer and chat template of a model folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

/// Null when the folder has no tokenizer file (pre-tokenised data need none). Throws what Tokenizer::load throws.
std::unique_ptr<Tokenizer> load_tokenizer_if_present(const std::filesystem::path& folder,
                                                     const TokenizerOptions& options = {});

/// The profile's `chat_template`: "tokenizer" = the folder's own, null when it has none; a built-in name ("chatml"); or a .jinja
/// file. Logs where one takes the place of the folder's own, unless `is_quiet`: who only checks one that is loaded again.
/// Throws FormatError for one that does not parse, IoError for a file that cannot be read.
std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const std::filesystem::path& folder,
                                                 bool is_quiet = false);

}  // namespace lora_train::tokenizer

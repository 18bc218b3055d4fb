// The tokenizer of a run: a folder's tokenizer plus the profile's new tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {

/// Null if the folder has no tokenizer file. `trained_ids`: the token rows of the folder's adapter; add_tokens may also
/// list existing tokens with these ids. Throws what Tokenizer::load throws, and ConfigError (add_tokens) for new tokens
/// without a tokenizer.
std::unique_ptr<tokenizer::Tokenizer> load_tokenizer(const ModelSection& section, const std::filesystem::path& folder,
                                                     const std::vector<std::int64_t>& trained_ids = {});

/// A new token, and the tokens that initialise its row.
struct NewRow {
  std::int32_t id = 0;
  std::vector<std::int32_t> from;  ///< with token_init: description, the tokens of init_text; else empty
};

/// The tokens of add_tokens that are not in `trained_ids`, in order, with ascending ids. `tokenizer` comes from
/// load_tokenizer(). Throws ConfigError (add_tokens) for an init_text that has no tokens or contains a new one.
std::vector<NewRow> new_rows(const ModelSection& section, const tokenizer::Tokenizer& tokenizer,
                             const std::vector<std::int64_t>& trained_ids = {});

}  // namespace lora_train::data

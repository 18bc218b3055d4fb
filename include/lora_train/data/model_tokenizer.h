// The tokenizer of a run: that of a folder, with the new tokens of the profile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {

/// Null if the folder has no tokenizer file. `trained_ids`: the token rows of the adapter that goes with the folder; one of its
/// tokenizer's tokens with such an id may stand in add_tokens too. Throws what Tokenizer::load throws, and ConfigError (add_tokens)
/// for new tokens without a tokenizer.
std::unique_ptr<tokenizer::Tokenizer> load_tokenizer(const ModelSection& section, const std::filesystem::path& folder,
                                                     const std::vector<std::int64_t>& trained_ids = {});

/// A new token, and the tokens whose rows its own row starts from.
struct NewRow {
  std::int32_t id = 0;
  std::vector<std::int32_t> from;  ///< with token_init: description the tokens of init_text; else empty
};

/// Those of add_tokens that are not among `trained_ids`, in its order, with ascending ids. `tokenizer` is what load_tokenizer
/// returns. Throws ConfigError
/// (add_tokens) for an init_text that has no tokens, or that holds a new one.
std::vector<NewRow> new_rows(const ModelSection& section, const tokenizer::Tokenizer& tokenizer,
                             const std::vector<std::int64_t>& trained_ids = {});

}  // namespace lora_train::data

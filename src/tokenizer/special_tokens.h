// Special tokens from the files beside a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "json/added_tokens.h"

namespace lora_train::tokenizer {

struct SpecialTokens {
  /// bos_token, eos_token, pad_token, unk_token, ... by key; an empty optional is an explicit null.
  std::map<std::string, std::optional<std::string>> named;
  std::optional<bool> add_bos_token;
  /// SentencePiece-style tokenizers of Hugging Face: false puts the dummy space before the first stretch only.
  bool legacy = true;
  /// added_tokens_decoder, else added_tokens.json beside a tokenizer.model; by ascending id.
  std::vector<AddedToken> added;
  /// additional_special_tokens and extra_special_tokens.
  std::vector<std::string> additional;
  std::vector<std::int32_t> generation_eos_ids;
  /// model_type of config.json; empty without one.
  std::string model_type;
  /// The bytes of what was read, for fingerprints.
  std::string bytes;

  std::optional<std::string> name(const std::string& key) const;
  /// The special tokens that Hugging Face finds in text although no list of added tokens may have them: bos_token and
  /// its like, and `additional`.
  std::vector<std::string> in_text() const;
};

/// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json
/// where they exist.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

}  // namespace lora_train::tokenizer

// A tokenizer as plain data, for writing it in another format: tokens, merges, and how text is split before BPE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

/// In the order of GGUF, which counts from 1.
enum class TokenKind {
  kNormal,
  kUnknown,
  kControl,      ///< special
  kUserDefined,  ///< added, found in the text before anything else, but not special
  kUnused,       ///< an id without a token
  kByte          ///< <0x0A>
};

struct TokenData {
  std::string text;
  TokenKind kind = TokenKind::kUnused;
  float score = 0;  ///< kSentencePieceBpe: of two merges, the one with the higher-scoring token comes first
};

enum class TokenizerModel { kByteLevelBpe, kSentencePieceBpe };

struct TokenizerData {
  TokenizerModel model = TokenizerModel::kByteLevelBpe;
  std::vector<TokenData> tokens;  ///< by id
  std::optional<std::int32_t> unk_id;
  // kByteLevelBpe
  std::vector<std::string> merges;  ///< "a b", in order of priority
  std::vector<std::string>
      split;                   ///< steps in order: the pattern of a split, "digits", or "byte-level" (GPT-2's pattern)
  bool ignore_merges = false;  ///< a piece that is a token is not split further
  // kSentencePieceBpe
  bool adds_space_prefix = false;
};

/// Reads the same file as Tokenizer::load in this folder; `tokenizer` is its result. A tekken.json
/// becomes a tokenizer.json with the same ids first. Throws FormatError for Unigram models, and for a normalizer or
/// pre_tokenizer that these fields cannot hold; IoError.
TokenizerData read_tokenizer_data(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace lora_train::tokenizer

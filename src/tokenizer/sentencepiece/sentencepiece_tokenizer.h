// tokenizer.model as a Tokenizer, read and encoded by SentencePiece's library: BPE and Unigram, words and characters.
//
// Added tokens of tokenizer_config.json (added_tokens_decoder) are found in the text first, as Hugging Face does; the
// model's own control pieces are not recognised in text otherwise, as in SentencePiece. Each stretch between added
// tokens gets the dummy space in front ("legacy": false in tokenizer_config.json: only the one the text begins with).
// A piece that covers no character of the text (the dummy space alone, all bytes of a character but its last) has the
// range of the character it stands at.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {

/// `bytes` are the file's, `file` its name for messages.
std::unique_ptr<Tokenizer> make_sentencepiece(std::string_view bytes, const std::string& file,
                                              const SpecialTokens& special_tokens, const TokenizerOptions& options);

}  // namespace lora_train::tokenizer

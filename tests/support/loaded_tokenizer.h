// Tokenizers of the test data, each loaded once: with sanitizers, one takes seconds.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::testing_support {

inline const tokenizer::Tokenizer& loaded_tokenizer(const std::filesystem::path& folder,
                                                    tokenizer::TokenizerFile file = tokenizer::TokenizerFile::kAuto) {
  static std::map<std::pair<std::filesystem::path, tokenizer::TokenizerFile>, std::unique_ptr<tokenizer::Tokenizer>>
      known;
  auto& one = known[{folder, file}];
  if (!one) one = tokenizer::Tokenizer::load(folder, {.file = file});
  return *one;
}

}  // namespace lora_train::testing_support

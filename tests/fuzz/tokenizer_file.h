// Loads the fuzzer's input as a tokenizer file and, where it loads, encodes and decodes with it.
#pragma once

#include "input_file.h"
#include "lora_train/base/error.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::fuzz {

inline int run_tokenizer_file(const InputFile& file, const std::uint8_t* data, std::size_t size) {
  static const std::string texts[] = {"", " a", "Hello world! 123\n",
                                      "\xE4\xBD\xA0\xE5\xA5\xBD <s> </s> \xF0\x9F\x98\x80", std::string(300, 'a')};
  file.write(data, size);
  try {
    const auto tokenizer = tokenizer::Tokenizer::load(file.folder());
    for (const std::string& text : texts) {
      const tokenizer::Encoding encoding = tokenizer->encode(text, /*with_offsets=*/true);
      if (encoding.offsets.size() != encoding.ids.size()) fail("offsets are not as many as ids");
      std::uint32_t begin = 0;
      for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
        const auto [first, second] = encoding.offsets[i];
        if (first < begin || first > second || second > text.size()) fail("a range outside the text or out of order");
        begin = first;
        if (encoding.ids[i] < 0 || encoding.ids[i] >= tokenizer->vocab_size()) fail("an id outside the vocabulary");
      }
      tokenizer->decode(encoding.ids);
    }
  } catch (const FormatError& error) {
    if (error.where().empty()) fail("an error without a place: " + error.message());
  }
  return 0;
}

}  // namespace lora_train::fuzz

// tokenizer.json of strangers.
#include "fuzz/tokenizer_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lora_train::fuzz::InputFile file("tokenizer.json");
  return lora_train::fuzz::run_tokenizer_file(file, data, size);
}

#include "word_table.h"

#include "lora_train/base/text.h"

namespace lora_train {

std::string translated(const WordTable& words, const std::string& theirs) {
  for (const auto& [from, to] : words) {
    if (lower_case(theirs) == from) return to;
  }
  return {};
}

}  // namespace lora_train

#include "lora_train/tokenizer/chat_template.h"

namespace lora_train::tokenizer {

std::vector<std::uint8_t> trained_tokens(std::span<const ByteRange> offsets, std::span<const ByteRange> spans) {
  std::vector<std::uint8_t> trained(offsets.size(), 0);
  std::size_t first = 0;  // spans before it end before every token still to come
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto [begin, end] = offsets[i];
    while (first < spans.size() && spans[first].second <= begin) ++first;
    trained[i] = first < spans.size() && spans[first].first < end && begin < end ? 1 : 0;
  }
  return trained;
}

}  // namespace lora_train::tokenizer

#include "text.h"

#include <algorithm>

#include "budget.h"

namespace lora_train::tokenizer::jinja {

void check_text_size(std::size_t bytes) {
  if (bytes > kMaxTextBytes) throw RenderError{"a text grew beyond 16 MiB", true, true};
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  spend_bytes(bytes.size() + sizeof(Run));
  check_text_size(bytes_.size() + bytes.size());
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  const auto first = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                                      [](std::size_t at, const Run& run) { return at < run.end; });
  for (auto run = first; run != other.runs_.end() && begin < end; ++run) {
    const std::size_t stop = std::min(run->end, end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
  }
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

}  // namespace lora_train::tokenizer::jinja

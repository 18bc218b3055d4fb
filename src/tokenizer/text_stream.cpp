#include "lora_train/tokenizer/text_stream.h"

#include <algorithm>
#include <span>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {

namespace {

constexpr std::size_t kContext = 16;  // tokens; one that is not an added token is among so many

// What `all` has more than `shown`, which it begins with, save that bytes which turn out to be no character may have changed
// some characters of it: then as many are left out.
std::string rest_of(const std::string& all, const std::string& shown) {
  if (all.starts_with(shown)) return all.substr(shown.size());
  std::size_t at = 0;
  for (std::size_t i = count_chars(shown); i > 0 && at < all.size(); --i) at += utf8_char(all, at).length;
  return all.substr(at);
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options)
    : tokenizer_(tokenizer), options_(options) {}

// A decoder may treat the first tokens differently (a space is dropped) and may need several for a character: what is new
// is the difference of two texts that begin with the same tokens.
std::string TextStream::push(std::int32_t id) {
  if (options_.skip_special && tokenizer_.is_special(id)) return {};
  ids_.push_back(id);
  const std::string all = tokenizer_.decode(ids_);
  const bool has_room = options_.max_held == 0 || ids_.size() - num_shown_ < options_.max_held;
  if (all.ends_with(kReplacementChar) && has_room) return {};
  return take(all);
}

std::string TextStream::finish() { return take(tokenizer_.decode(ids_)); }

std::string TextStream::take(const std::string& all) {
  std::string piece = rest_of(all, tokenizer_.decode(std::span(ids_).first(num_shown_)));
  if (ids_.size() > kContext) ids_.erase(ids_.begin(), ids_.end() - kContext);
  num_shown_ = ids_.size();
  return piece;
}

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

std::string StopStrings::push(std::string_view text) {
  if (is_found_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : strings_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    is_found_ = true;
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  std::size_t num_kept = 0;  // the longest end of the text that begins a string
  for (const std::string& stop : strings_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > num_kept; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) num_kept = length;
    }
  }
  std::string shown = held_.substr(0, held_.size() - num_kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

}  // namespace lora_train::tokenizer

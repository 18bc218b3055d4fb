// The normalizer of tokenizer.json: NFC, NFD, NFKC, NFKD, Prepend, Replace, with offsets back to the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "json_place.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

/// A stretch of the input, possibly changed. While unchanged, it is a view into the input without offsets.
class NormalizedText {
 public:
  /// `input` is the whole text; the stretch is [begin, end) of it. `input` must outlive this.
  NormalizedText(std::string_view input, std::size_t begin, std::size_t end)
      : view_(input.substr(begin, end - begin)), begin_(static_cast<std::uint32_t>(begin)) {}

  /// A part of it, with its own copy of any changes. While unchanged, it must not outlive this.
  NormalizedText slice(std::size_t begin, std::size_t end) const;

  std::string_view text() const { return changed_ ? std::string_view(owned_) : view_; }
  /// The input bytes behind text()[begin, end); begin < end.
  ByteRange input_range(std::size_t begin, std::size_t end) const;

  /// One step of a change: `length` bytes of text() become `replacement`. Their characters share the range.
  struct Edit {
    std::size_t begin, length;
    std::string replacement;
  };
  /// Edits ascend and do not overlap.
  void apply(const std::vector<Edit>& edits);
  /// Puts `prefix` before the text; it takes the range of the first character.
  void prepend(std::string_view prefix);

 private:
  NormalizedText() = default;

  std::string_view view_;
  std::uint32_t begin_ = 0;
  bool changed_ = false;
  std::string owned_;
  std::vector<ByteRange> ranges_;  // per byte of owned_
};

/// Changes a text as the file's normalizer requires. Thread-safe.
using Normalizer = std::function<void(NormalizedText& text)>;

/// Empty for a null or absent normalizer. FormatError names unsupported features.
Normalizer load_normalizer(const JsonPlace& place);

/// Replaces every `pattern` with `replacement`.
void replace_all(NormalizedText& text, std::string_view pattern, std::string_view replacement);

}  // namespace lora_train::tokenizer

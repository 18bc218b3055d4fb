// Streams text token by token: holds back incomplete characters, and stops at stop strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

struct TextStreamOptions {
  bool skip_special = true;  ///< special tokens give no text
  std::size_t max_held = 0;  ///< at most this many tokens wait for the rest of a character; 0 = any number
};

/// Turns tokens into pieces of text, never a part of a character. All pieces joined are Tokenizer::decode of all ids (without
/// a limit on what is held), except that a decoder with byte fallback makes a character which bytes of no character follow
/// unreadable too: here it stays as it was shown. Takes constant time a token, except where bytes that are not text follow each
/// other. Not thread-safe.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options = {});

  /// The new text; empty while it has to wait.
  std::string push(std::int32_t id);
  /// The rest that still waits, after the last token.
  std::string finish();

 private:
  std::string take(const std::string& all);

  const Tokenizer& tokenizer_;
  TextStreamOptions options_;
  std::vector<std::int32_t> ids_;  ///< [0, num_shown_) are shown already and stand before the others as their context
  std::size_t num_shown_ = 0;
};

/// Cuts a streamed text at the first stop string, which may arrive in parts.
class StopStrings {
 public:
  /// Empty strings are not allowed; no strings: everything passes.
  explicit StopStrings(std::vector<std::string> strings);

  /// The part of the text so far that may be shown: what could start a stop string waits. Empty once one was found.
  std::string push(std::string_view text);
  /// The rest that still waits, if no stop string was found.
  std::string finish();
  bool is_found() const { return is_found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool is_found_ = false;
};

}  // namespace lora_train::tokenizer

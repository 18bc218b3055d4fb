// Text that comes token by token: what may be shown of it already, and where it is to stop.
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
  std::size_t max_held = 0;  ///< tokens that wait for the rest of a character at most; 0 = any number
};

/// Turns tokens into pieces of text, never a part of a character. All pieces joined are Tokenizer::decode of all ids (without
/// a limit on what is held), save that a decoder with byte fallback makes a character which bytes of no character follow
/// unreadable too: here it stays as it was shown. Takes constant time a token, save where bytes that are no text follow each
/// other. Not thread-safe.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options = {});

  /// The text that is new; empty where it is to wait.
  std::string push(std::int32_t id);
  /// What still waits, after the last token.
  std::string finish();

 private:
  std::string take(const std::string& all);

  const Tokenizer& tokenizer_;
  TextStreamOptions options_;
  std::vector<std::int32_t> ids_;  ///< [0, num_shown_) are shown already and stand before the others as their context
  std::size_t num_shown_ = 0;
};

/// Cuts a text at the first of some strings, which may come in parts.
class StopStrings {
 public:
  /// Empty strings are not allowed; no strings: everything passes.
  explicit StopStrings(std::vector<std::string> strings);

  /// The part of the text so far that may be shown: what could begin one of the strings waits. Nothing once one was found.
  std::string push(std::string_view text);
  /// What still waits, where none was found.
  std::string finish();
  bool is_found() const { return is_found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool is_found_ = false;
};

}  // namespace lora_train::tokenizer

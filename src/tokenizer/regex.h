// The split patterns of tokenizer.json through PCRE2 (UTF-8, Unicode properties, JIT).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lora_train::tokenizer {

/// Thread-safe for concurrent const calls.
class Regex {
 public:
  /// `where` stands in messages. FormatError for a pattern that PCRE2 refuses.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// One pass over a text. Not thread-safe; cheap to make.
  class Scan {
   public:
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    /// The next match that is not empty, at or behind `from`: fills [begin, end). False at the end.
    /// DataError when PCRE2 gives up (its limits).
    bool next(std::size_t from, std::size_t& begin, std::size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace lora_train::tokenizer

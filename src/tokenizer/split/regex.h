// The split patterns of tokenizer.json through PCRE2 (UTF-8, Unicode properties, JIT). As in Oniguruma, which Hugging
// Face uses, ^ and $ match at every line; other differences between the two are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer {

/// PCRE2's message for an error code.
std::string pcre2_message(int code);

/// Thread-safe for concurrent const calls.
class Regex {
 public:
  /// `where` appears in messages. FormatError if PCRE2 refuses the pattern.
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
    /// The next non-empty match at or after `from`: fills [begin, end). False at the end. DataError if PCRE2 fails (its
    /// limits).
    bool next(std::size_t from, std::size_t& begin, std::size_t& end);
    /// As next(), but the match may be empty; `from` may be the end of the text.
    bool find(std::size_t from, std::size_t& begin, std::size_t& end);

   private:
    bool match(std::uint32_t options, std::size_t from, std::size_t& begin, std::size_t& end);
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// A stretch of a text: a match, or the text between matches.
struct Stretch {
  std::size_t begin, end;
  bool is_match;
};
/// Splits all of `text` into stretches like Hugging Face's tokenizers (Oniguruma's iterator): matches may be empty, but
/// not right after another one. Overwrites `out`.
void find_stretches(const Regex& regex, std::string_view text, std::vector<Stretch>& out);

}  // namespace lora_train::tokenizer

// The split patterns of tokenizer.json through PCRE2 (UTF-8, Unicode properties, JIT). As in Oniguruma, which Hugging
// Face uses, ^ and $ stand at every line; what else the two read differently is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer {

/// What PCRE2 says of an error code.
std::string pcre2_message(int code);

/// Thread-safe for concurrent const calls.
class Regex {
 public:
  /// `where` appears in messages. FormatError for a pattern that PCRE2 refuses.
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
    /// The next match that is not empty, at or after `from`: fills [begin, end). False at the end.
    /// DataError if PCRE2 fails (its limits).
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

/// A stretch of a text, and whether it is a match or stands between matches.
struct Stretch {
  std::size_t begin, end;
  bool is_match;
};
/// The whole of `text` as stretches, as Hugging Face's tokenizers finds them (Oniguruma's iterator): matches may be
/// empty, but not right after another one. `out` is overwritten.
void find_stretches(const Regex& regex, std::string_view text, std::vector<Stretch>& out);

}  // namespace lora_train::tokenizer

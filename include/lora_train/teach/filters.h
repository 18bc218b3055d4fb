// Decides which answers of a teacher become training examples. Without an option, all do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::teach {

struct FilterOptions {
  bool drop_cut = false;                       ///< drop answers that reached the token limit
  std::optional<std::int64_t> min_chars = {};  ///< characters, not bytes
  std::optional<std::int64_t> max_chars = {};
  std::string keep_matching = {};  ///< regular expressions that an answer must match, or must not
  std::string drop_matching = {};
  std::filesystem::path json_schema = {};         ///< the whole answer is JSON that fits this schema (drafts 4 to 7)
  std::vector<std::string> refusal_phrases = {};  ///< an answer that begins with one, in any case, is a refusal
  std::int64_t agree = 0;        ///< keep the largest group of agreeing answers to a prompt, if it has this many
  std::string agree_on = {};     ///< the part they must agree on; empty: the whole text, trimmed
  bool drop_duplicates = false;  ///< drop a repeated answer to the same prompt
};

/// An answer to filter.
struct Candidate {
  std::size_t prompt = 0;  ///< index of its prompt
  std::string source;      ///< the prompt's place
  std::string text;
  bool is_cut = false;
};

/// The number of answers that a filter dropped.
struct FilterCount {
  std::string reason;  ///< "cut at the token limit"
  std::int64_t count = 0;
  std::string first_source;
};

struct FilterResult {
  std::vector<bool> is_kept;        ///< for each candidate
  std::vector<FilterCount> counts;  ///< filters that dropped something, in order of use
};

class Filters {
 public:
  /// Throws ConfigError for an unusable expression or schema, IoError for an unreadable schema.
  explicit Filters(FilterOptions options);
  ~Filters();
  Filters(const Filters&) = delete;
  Filters& operator=(const Filters&) = delete;

  /// An answer that several filters would drop counts for the first one. Answers to one prompt must be adjacent.
  FilterResult apply(const std::vector<Candidate>& candidates) const;

 private:
  struct Parts;
  FilterOptions options_;
  std::unique_ptr<Parts> parts_;
};

/// Common English openings of an assistant's refusal ("I'm sorry, but", "I cannot", "As an AI", ...).
const std::vector<std::string>& usual_refusals();

}  // namespace lora_train::teach

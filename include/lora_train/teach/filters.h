// Which answers of a teacher become training rows. Without an option, all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::teach {

struct FilterOptions {
  bool drop_cut = false;                       ///< answers that reached the limit of tokens
  std::optional<std::int64_t> min_chars = {};  ///< characters, not bytes
  std::optional<std::int64_t> max_chars = {};
  std::string keep_matching = {};  ///< regular expressions that an answer has to match, or must not
  std::string drop_matching = {};
  std::filesystem::path json_schema = {};         ///< the whole answer is JSON that fits this schema (drafts 4 to 7)
  std::vector<std::string> refusal_phrases = {};  ///< an answer that begins with one, in any case, is a refusal
  std::int64_t agree = 0;  ///< of the answers to a prompt, those of the largest group that agree, if there are so many
  std::string agree_on =
      {};  ///< they agree on what this expression finds; empty: on the whole text, blanks around it aside
  bool drop_duplicates = false;  ///< the same answer to the same prompt once more
};

/// An answer on trial.
struct Candidate {
  std::size_t prompt = 0;  ///< which one it answers
  std::string source;      ///< the prompt's place
  std::string text;
  bool is_cut = false;
};

/// How many answers a filter dropped.
struct FilterCount {
  std::string reason;  ///< "cut at the limit of tokens"
  std::int64_t count = 0;
  std::string first_source;
};

struct FilterResult {
  std::vector<bool> is_kept;        ///< of each candidate
  std::vector<FilterCount> counts;  ///< of filters that dropped something, in the order in which they were tried
};

class Filters {
 public:
  /// Throws ConfigError for an expression or a schema that cannot be used, IoError for a schema that cannot be read.
  explicit Filters(FilterOptions options);
  ~Filters();
  Filters(const Filters&) = delete;
  Filters& operator=(const Filters&) = delete;

  /// An answer that several filters would drop counts for the first one. Those of a prompt stand side by side.
  FilterResult apply(const std::vector<Candidate>& candidates) const;

 private:
  struct Parts;
  FilterOptions options_;
  std::unique_ptr<Parts> parts_;
};

/// What assistants begin a refusal with in English ("I'm sorry, but", "I cannot", "As an AI", ...).
const std::vector<std::string>& usual_refusals();

}  // namespace lora_train::teach

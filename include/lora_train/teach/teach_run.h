// From prompts to examples: the questions of `teach`, the answers so far with their progress, and the examples made
// from them. The teacher is a server or a model on this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/sampling.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/report/progress_bar.h"
#include "lora_train/teach/filters.h"
#include "lora_train/teach/generation_file.h"

namespace lora_train::teach {

struct Question {
  std::string source;      ///< for messages: "prompts.jsonl:3"
  std::string prompt;      ///< JSON: the messages, or the text if raw
  std::string tools = {};  ///< JSON array; empty = none
  std::uint64_t seed = 0;
};

struct Answer {
  std::string message;        ///< JSON: the assistant's message {"role", "content", ...}, or the text if raw
  std::string finish_reason;  ///< "stop", "length", ...; "" if the server gives none
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::string logprobs = {};  ///< JSON as the server gave it; empty unless requested
};

struct TeachOptions {
  std::string output;                      ///< FILE.jsonl, the examples; the answers are in FILE.answers.jsonl
  std::string system;                      ///< only the teacher sees it; comes before the prompt's own system message
  std::string student_system;              ///< replaces it in the examples
  std::int64_t samples = 1;                ///< answers to each prompt
  std::int64_t shard = 0, num_shards = 1;  ///< asks prompts with number % num_shards == shard
  bool is_raw = false;                     ///< texts and /completions instead of chats
  std::uint64_t seed = 0;
};

/// The server model that gave the answers belonging to `output`; empty if there are none.
std::string model_of_answers(const std::string& output);

/// Answers are numbered: prompt * samples + sample.
class TeachJob {
 public:
  /// Throws what GenerationFile throws, and ConfigError if `output` exists and teach did not write it.
  TeachJob(TeachOptions options, std::vector<data::ChatQuestion> prompts, const GenerationSettings& settings);

  const TeachOptions& options() const { return options_; }
  std::size_t num_wanted() const { return wanted_.size(); }
  /// The unanswered questions of this shard.
  std::vector<std::size_t> open() const;
  /// The question for the teacher.
  Question question(std::size_t answer) const;
  const std::string& source(std::size_t answer) const { return prompts_[prompt_of(answer)].source; }

  /// Thread-safe. An added answer survives a crash. Throws IoError.
  void add(std::size_t answer, const Answer& given);
  /// Takes the answers that another call, for another shard, has written for its `output`. Throws as the constructor,
  /// and ConfigError if there are none.
  void join(const std::string& output);

  struct Examples {
    std::int64_t num_answers = 0, num_written = 0, num_cut = 0;
    std::int64_t prompt_tokens = 0, completion_tokens = 0;  ///< for the answers
    std::vector<FilterCount> dropped;
  };
  /// Writes `output` from all answers so far, in the order of the prompts.
  Examples write_examples(const Filters& filters);

 private:
  std::size_t prompt_of(std::size_t answer) const { return answer / static_cast<std::size_t>(options_.samples); }
  /// `line`: JSON, of the file of answers.
  std::string example(std::size_t answer, const std::string& line) const;

  TeachOptions options_;
  std::vector<data::ChatQuestion> prompts_;
  std::vector<std::string> given_;   ///< for each answer, the prompt's JSON
  std::vector<std::size_t> wanted_;  ///< answers of this shard
  GenerationSettings settings_;
  std::mutex mutex_;
  std::optional<GenerationFile> answers_;
};

struct TeachTotals {
  std::int64_t answers = 0, prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;
  std::optional<double> cost_usd = {};
};

/// USD per million tokens.
struct TokenPrices {
  std::optional<double> prompt = {}, completion = {};
  /// Of the tokens; empty without prices.
  std::optional<double> cost(const TeachTotals& totals) const;
};

/// Thread-safe.
class TeachProgress {
 public:
  TeachProgress(std::size_t num_answers, TokenPrices prices, bool is_quiet);
  void add(const Answer& answer);
  TeachTotals totals() const;

 private:
  using Clock = std::chrono::steady_clock;
  TeachTotals totals_locked() const;

  TokenPrices prices_;
  Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  TeachTotals totals_;
  report::ProgressState state_;
  report::ProgressBar bar_;
};

struct AskOptions {
  std::int64_t concurrency = 8;
  double requests_per_minute = 0;  ///< 0 = no limit
};

/// The questions for a teacher, and the filters for its answers.
struct TeachRequest {
  std::string teacher_model;
  std::vector<std::string> stop;
  TeachOptions job;
  FilterOptions filters;
  AskOptions ask;
  TokenPrices prices;
  std::int64_t max_tokens = 1024, top_logprobs = 0, max_failures = 0;
  double timeout_s = 600;
};

/// Unanswered questions: the same command asks them again.
struct OpenQuestions {
  std::int64_t refused = 0, failed = 0;
  std::string first_refused, first_failed;  ///< "prompts.jsonl:3: why"
  std::int64_t count() const { return refused + failed; }
};

struct TeachResult {
  int exit_code = 0;  ///< 75 after a stop: then `examples` and `open` are not set
  TeachTotals totals;
  TeachJob::Examples examples;
  OpenQuestions open;
};

struct TeachInput {
  std::vector<data::ChatQuestion> prompts;
  std::vector<std::string> join = {};  ///< outputs of shards
  /// Called once before the first question or contact with the server; not called if every answer is there.
  std::function<void()> before_asking = {};
};

/// Asks a server. The default model is the one that gave the existing answers, otherwise the server's first. The key is
/// in $OPENAI_API_KEY. Ends early if three rounds of questions in a row fail. Throws what the teacher and the job
/// throw, and IoError for an error that no question will get past, or if more than request.max_failures questions stay
/// open; the examples are written then.
TeachResult teach_by_server(const std::string& url, const TeachRequest& request, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet);

/// A model on this machine. Implemented by the engine, which is above this module.
class LocalTeacher {
 public:
  virtual ~LocalTeacher() = default;
  /// The model's settings that affect the answers; "model" comes first.
  virtual GenerationSettings settings(bool is_raw) const = 0;
  /// Answers the job's open questions. Throws StopError, and what the engine throws.
  virtual void ask(const TeachRequest& request, const SamplingOptions& sampling, TeachJob& job,
                   TeachProgress& progress) = 0;
};

TeachResult teach_by_model(LocalTeacher& teacher, const TeachRequest& request, const SamplingOptions& sampling,
                           TeachInput input, bool is_quiet);

}  // namespace lora_train::teach

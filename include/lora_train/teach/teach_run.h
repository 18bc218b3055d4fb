// From prompts to examples: asks a teacher, and reports the result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lora_train/config/sampling.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/teach/filters.h"
#include "lora_train/teach/generation_file.h"
#include "lora_train/teach/teach_job.h"

namespace lora_train::teach {

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

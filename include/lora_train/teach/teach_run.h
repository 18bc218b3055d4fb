// From prompts to rows: asks a teacher, and says what came of it.
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

/// What a teacher is asked, and which answers become rows.
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

/// Questions that stay open: the same command asks them again.
struct OpenQuestions {
  std::int64_t refused = 0, failed = 0;
  std::string first_refused, first_failed;  ///< "prompts.jsonl:3: why"
  std::int64_t count() const { return refused + failed; }
};

struct TeachResult {
  int exit_code = 0;  ///< 75 after a stop: then `rows` and `open` are not set
  TeachTotals totals;
  TeachJob::Rows rows;
  OpenQuestions open;
};

struct TeachInput {
  std::vector<data::ChatQuestion> prompts;
  std::vector<std::string> join = {};  ///< outputs of shards
  /// Called once before the first question or look at the server, and not at all where every answer is there.
  std::function<void()> before_asking = {};
};

/// Asks a server; by default the model that gave the answers there are, else its first. Its key is in $OPENAI_API_KEY. Ends early where
/// it has failed for three rounds of questions in a row. Throws what the teacher and the job throw, IoError for what no question will
/// get past, and where more questions stay open than request.max_failures; the rows are written then.
TeachResult teach_by_server(const std::string& url, const TeachRequest& request, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet);

/// A model of this machine. The engine answers, which is above this module.
class LocalTeacher {
 public:
  virtual ~LocalTeacher() = default;
  /// What the model decides of the answers; "model" comes first.
  virtual GenerationSettings settings(bool is_raw) const = 0;
  /// Answers what the job has open. Throws StopError, and what the engine throws.
  virtual void ask(const TeachRequest& request, const SamplingOptions& sampling, TeachJob& job,
                   TeachProgress& progress) = 0;
};

TeachResult teach_by_model(LocalTeacher& teacher, const TeachRequest& request, const SamplingOptions& sampling,
                           TeachInput input, bool is_quiet);

}  // namespace lora_train::teach

// Asks a teacher behind a server, several questions at a time.
#pragma once

#include <cstdint>
#include <string>

#include "lora_train/teach/teacher.h"
#include "teach_job.h"

namespace lora_train::cli {

struct AskOptions {
  std::int64_t concurrency = 8;
  double requests_per_minute = 0;  ///< 0 = no limit
};

/// Questions that stay open: the same command asks them again.
struct OpenQuestions {
  std::int64_t refused = 0, failed = 0;
  std::string first_refused, first_failed;  ///< "prompts.jsonl:3: why"
  std::int64_t count() const { return refused + failed; }
};

/// Asks what the job has open. Ends early where the server has failed for three rounds of questions in a row. Throws StopError, and
/// IoError for what no question will get past.
OpenQuestions ask_server(teach::Teacher& teacher, TeachJob& job, TeachProgress& progress, const AskOptions& options);

}  // namespace lora_train::cli

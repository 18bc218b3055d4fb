// From prompts to rows: asks a teacher, and says what came of it.
#pragma once

#include <functional>

#include "lora_train/config/keys/profile.h"
#include "teach_flags.h"

namespace lora_train::cli {

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

/// Asks a server; by default the model that gave the answers there are, else its first. Its key is in $OPENAI_API_KEY. Throws what the teacher and the job throw, and IoError where more questions stay open
/// than flags.max_failures; the rows are written then.
TeachResult teach_by_server(const std::string& url, const TeachFlags& flags, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet);

/// Asks the model of a profile, which may have an adapter.
TeachResult teach_by_model(const Profile& profile, const std::string& adapter, const ModelFolders& folders,
                           const TeachFlags& flags, const SamplingOptions& sampling, TeachInput input, bool is_quiet);

}  // namespace lora_train::cli

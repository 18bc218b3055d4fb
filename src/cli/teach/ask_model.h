// Asks a model of this machine.
#pragma once

#include <string>
#include <vector>

#include "commands/model_folders.h"
#include "lora_train/config/profile.h"
#include "lora_train/config/sampling.h"
#include "teach_job.h"
#include "teach_progress.h"

namespace lora_train::cli {

struct ModelTeacher {
  const Profile& profile;
  const ModelFolders& folders;
  SamplingOptions sampling;
  std::int64_t max_tokens;
  std::vector<std::string> stop;
};

/// Answers what the job has open. Throws StopError, and what the engine throws.
void ask_model(const ModelTeacher& teacher, TeachJob& job, TeachProgress& progress);

}  // namespace lora_train::cli

// The phases of `distill`: the teacher's answers, then training and the comparison with the teacher. Each resumes by itself.
#pragma once

#include <string>
#include <vector>

#include "commands/profile_flags.h"
#include "distill_record.h"
#include "lora_train/config/load.h"
#include "lora_train/config/sampling.h"
#include "teach/teach_flags.h"
#include "teacher_server.h"

namespace lora_train::cli {

struct DistillRequest {
  LoadedProfile loaded;
  ProfileSources sources;                ///< of `loaded`
  std::vector<std::string> arguments;    ///< of the command
  std::vector<std::string> train_flags;  ///< more for `train`: --overwrite, --quiet
  int num_ranks = 1;
  TeachFlags teach;  ///< with both system messages; output is set here
  SamplingOptions sampling;
  ServerOptions server;  ///< url and log are set here
  std::string row_template;
  std::string match;  ///< regex that picks what is compared of an answer; empty = all of it
  bool quiet = false;
};

/// Asks the teacher what is not answered yet, in this process: writes teacher.jsonl, teacher_heldout.jsonl and the record. Returns 0,
/// or 75 after a stop. Throws what teach throws.
int run_teacher_phase(const DistillRequest& request);

/// The same in a process of its own, whose memory, and that of its GPU, is free for training afterwards. Throws Killed.
int start_teacher_phase(const DistillRequest& request);

/// Trains on teacher.jsonl, in processes of their own. Returns their exit code. Throws Killed.
int start_training(const DistillRequest& request);

/// Adds to a profile what training gets beside it, so that it can be checked before there are answers: the task that compares.
/// Refuses a profile that has one of its name.
void add_agreement_task(LoadedProfile& loaded, Mistakes& mistakes);

}  // namespace lora_train::cli

// The phases of `distill`: the teacher's answers, then training and the comparison with the teacher. Each resumes by itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "commands/profile_flags.h"
#include "lora_train/config/load.h"
#include "lora_train/config/sampling.h"
#include "lora_train/report/run_log.h"
#include "teach/teach_flags.h"
#include "teacher_server.h"

namespace lora_train::cli {

/// The task whose answers are those of the teacher, and the data set of its rows.
inline constexpr const char* kAgreement = "agreement";
inline constexpr const char* kHeldOut = "heldout";

struct TeacherPhase {
  std::string teacher;  ///< URL or folder, as it may be shown
  std::int64_t answers = 0, rows = 0, held_out_rows = 0, prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;  ///< of all calls that were not killed
  std::optional<double> cost_usd = {};
};

struct DistillRecord {
  std::string output_dir;
  TeacherPhase teacher;
  std::optional<double> training_s = {}, training_cost_usd = {}, steps = {}, eval_loss = {};
  /// Share of the held-out answers that are the teacher's, of the model that training starts from and of the result.
  std::optional<double> agreement_before = {}, agreement_after = {};
  std::string adapter;  ///< empty: training has written none yet
};

std::filesystem::path record_file(const std::filesystem::path& output_dir);

/// The teacher's phase of an earlier call; empty where there is none. Throws ConfigError where the file is somebody else's.
TeacherPhase read_teacher_phase(const std::filesystem::path& output_dir);

/// Writes record_file() atomically.
void write_record(const DistillRecord& record);

/// Adds what the run in output_dir says of training and of the agreement.
void add_training(DistillRecord& record);

/// One line.
std::string to_json(const DistillRecord& record);

/// Phases with time and cost, agreement before and after, and what to run next.
std::string to_table(const DistillRecord& record);

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
void add_agreement_task(LoadedProfile& loaded, Findings& findings);

}  // namespace lora_train::cli

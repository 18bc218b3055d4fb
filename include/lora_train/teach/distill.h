// `distill`: the teacher's answers to the prompts of a profile, then what training on them has to be given, and what came of it.
// Each phase resumes by itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lora_train/config/load.h"
#include "lora_train/config/sampling.h"
#include "lora_train/teach/teach_run.h"
#include "lora_train/teach/teacher_server.h"

namespace lora_train::teach {

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

/// The teacher's phase of an earlier call; empty where there is none. Throws ConfigError where the file is somebody else's.
TeacherPhase read_teacher_phase(const std::filesystem::path& output_dir);

/// Writes distill.json of the output_dir atomically.
void write_record(const DistillRecord& record);

/// Adds what the run in output_dir says of training and of the agreement.
void add_training(DistillRecord& record);

/// One line.
std::string to_json(const DistillRecord& record);

/// Phases with time and cost, agreement before and after, and what to run next.
std::string to_table(const DistillRecord& record);

struct DistillRequest {
  LoadedProfile loaded;
  ProfileSources sources;  ///< of `loaded`
  TeachRequest teach;      ///< with both system messages; output is set here
  SamplingOptions sampling;
  ServerOptions server;  ///< url and log are set here
  std::string row_template;
  std::string match;  ///< regex that picks what is compared of an answer; empty = all of it
  bool quiet = false;
  /// Opens a teacher that is no server.
  std::function<std::unique_ptr<LocalTeacher>(const Profile&)> open_teacher;
};

/// Asks the teacher what is not answered yet: writes teacher.jsonl, teacher_heldout.jsonl and the record. Returns 0, or 75 after a
/// stop. Throws what teach throws.
int run_teacher_phase(const DistillRequest& request);

/// The profile that trains on teacher.jsonl.
ProfileSources sources_of_training(const DistillRequest& request);

/// Adds what datasets and eval_datasets say that only rows with answers have: type, field_map, weight.
void check_prompt_specs(const LoadedProfile& loaded, Findings& findings);

/// Adds to a profile what training gets beside it, so that it can be checked before there are answers: the task that compares.
/// Refuses a profile that has one of its name.
void add_agreement_task(LoadedProfile& loaded, Findings& findings);

}  // namespace lora_train::teach

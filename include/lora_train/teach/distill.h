// `distill`: collects a teacher's answers to the prompts of a profile, sets up training on them, and reports the
// result. Each phase resumes by itself.
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

/// The totals are those of all calls that were not killed.
struct TeacherPhase : TeachTotals {
  std::string teacher;  ///< URL or folder, safe to show
  std::int64_t examples = 0, held_out_examples = 0;
};

struct DistillRecord {
  std::string output_dir;
  TeacherPhase teacher;
  std::optional<double> training_s = {}, training_cost_usd = {}, steps = {}, eval_loss = {};
  /// Share of held-out answers that match the teacher's, for the model that training starts from and for the result.
  std::optional<double> agreement_before = {}, agreement_after = {};
  std::string adapter;  ///< empty: training has not written one yet
};

/// The teacher's phase of an earlier call; empty if there is none. Throws ConfigError if distill did not write the
/// file.
TeacherPhase read_teacher_phase(const std::filesystem::path& output_dir);

/// Writes distill.json in output_dir atomically.
void write_record(const DistillRecord& record);

/// Adds training and agreement from the run in output_dir.
void add_training(DistillRecord& record);

/// One line.
std::string to_json(const DistillRecord& record);

/// Phases with time and cost, agreement before and after, and what to run next.
std::string to_table(const DistillRecord& record);

struct DistillRequest {
  LoadedProfile loaded;
  ProfileSources sources;  ///< for `loaded`
  TeachRequest teach;      ///< with both system messages; output is set here
  SamplingOptions sampling;
  ServerOptions server;  ///< url and log are set here
  std::string prompt_template;
  std::string match;  ///< regex for the part of an answer to compare; empty = all of it
  bool quiet = false;
  /// Opens a teacher that is not a server.
  std::function<std::unique_ptr<LocalTeacher>(const Profile&)> open_teacher;
};

/// Asks the teacher for the missing answers; writes teacher.jsonl, teacher_heldout.jsonl and the record. Returns 0, or
/// 75 after a stop. Throws what teach throws.
int run_teacher_phase(const DistillRequest& request);

/// The profile that trains on teacher.jsonl.
ProfileSources sources_of_training(const DistillRequest& request);

/// Adds mistakes for keys of datasets and eval_datasets that only suit examples with answers: type, field_map, weight.
void check_prompt_specs(const LoadedProfile& loaded, Findings& findings);

/// Adds the agreement task, so that a profile can be checked before there are answers. Refuses a profile that has a
/// task of that name.
void add_agreement_task(LoadedProfile& loaded, Findings& findings);

}  // namespace lora_train::teach

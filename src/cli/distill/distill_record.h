// What `distill` knows of its phases: OUTPUT_DIR/distill.json, and the table on stdout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lora_train/report/run_log.h"

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

}  // namespace lora_train::cli

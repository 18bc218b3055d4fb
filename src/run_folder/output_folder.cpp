#include "lora_train/run_folder/output_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/config/load.h"
#include "lora_train/metrics/metrics_writer.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

/// The files that a run writes to its folder, besides checkpoint-<step> and its result.
constexpr const char* kReports[] = {"profile.yaml", "run.log",     "metrics.jsonl",
                                    "tensorboard",  "report.html", "summary.json"};
constexpr const char* kResults[] = {"adapter", "model"};

bool is_one_of(const std::string& name, std::span<const char* const> names) {
  return std::count(names.begin(), names.end(), name) > 0;
}

bool is_run_file(const std::string& name) {
  return checkpoint::step_of(name) || is_one_of(name, kReports) || is_one_of(name, kResults);
}

Profile read_profile(const fs::path& file) {
  ProfileSources sources;
  sources.profiles = {file.string()};
  return load_profile(sources).profile;
}

bool holds_a_run(const fs::path& folder) {
  return fs::exists(folder / "metrics.jsonl") || !checkpoint::list(folder).empty();
}

/// Every run creates run.log first.
bool was_made_by_us(const fs::path& folder) { return fs::exists(folder / "run.log") || holds_a_run(folder); }

bool has_saved(const fs::path& folder) {
  return metrics::has_event(folder / "metrics.jsonl", "checkpoint") || !checkpoint::list(folder).empty();
}

/// Logs that the run there never saved a checkpoint.
void log_new_run(const fs::path& folder) {
  if (metrics::has_event(folder / "metrics.jsonl", "train")) {
    log_warning(folder.string() +
                ": the run there ended before it saved a checkpoint; starting again from step 0. "
                "A smaller save_steps or save_interval loses less");
  } else if (holds_a_run(folder)) {
    log_info(folder.string() + ": the run there finished no step; starting again");
  }
}

/// Whether `name` ("adapter" or "model") in `folder` is the result that the run there wrote or would write.
bool is_result_of_run(const fs::path& folder, const std::string& name) {
  if (!was_made_by_us(folder) || !fs::exists(folder / "profile.yaml")) return false;
  try {
    return name == result_name(read_profile(folder / "profile.yaml").adapter.kind);
  } catch (const Error&) {
    return false;
  }
}

/// A run replaces and deletes files under its own names, so none of its inputs may be there.
void refuse_input_in_the_way(const std::string& key, const fs::path& input, const fs::path& folder) {
  if (input.empty() || !fs::exists(input)) return;
  const fs::path inside = fs::weakly_canonical(input).lexically_relative(fs::weakly_canonical(folder));
  if (inside.empty() || !is_run_file(inside.begin()->string())) return;
  throw ConfigError(key, input.string() + " is in " + (folder / *inside.begin()).string() + ", which a run in " +
                             folder.string() + " writes and deletes. Choose another output_dir, or move the input");
}

void refuse_inputs_in_the_way(const OutputRequest& request) {
  const Profile& profile = request.profile;
  const fs::path folder = profile.run.output_dir;
  refuse_input_in_the_way("model", profile.model.path, folder);
  refuse_input_in_the_way("init_adapter", profile.adapter.init_adapter, folder);
  refuse_input_in_the_way("chat_template", profile.model.chat_template, folder);
  for (const auto& spec : profile.data.datasets) refuse_input_in_the_way("datasets", spec.path, folder);
  for (const auto& spec : profile.data.eval_datasets) refuse_input_in_the_way("eval_datasets", spec.path, folder);
  if (request.overwrite) refuse_input_in_the_way("resume_from_checkpoint", profile.run.resume_from_checkpoint, folder);
}

void refuse_files_of_others(const fs::path& folder, const std::string& result) {
  const auto refuse = [&](const std::string& name) {
    if (!fs::exists(folder / name)) return;
    throw ConfigError(folder.string(), "holds " + name +
                                           ", which no run has written and which this run would replace. "
                                           "Choose another output_dir, or move it");
  };
  if (!was_made_by_us(folder)) {
    for (const char* name : kReports) refuse(name);
  }
  if (!is_result_of_run(folder, result)) refuse(result);
}

std::string ways_on(const fs::path& folder) {
  return "\nUse another --output-dir; or --overwrite to delete the run in " + folder.string() +
         "; or --allow-changed KEY for each key that may differ";
}

/// Replaces each `auto` by the number that the old run chose.
Profile with_numbers_of(const Profile& old, Profile profile) {
  if (!profile.data.max_seq_len) profile.data.max_seq_len = old.data.max_seq_len;
  if (!profile.schedule.micro_batch_size) profile.schedule.micro_batch_size = old.schedule.micro_batch_size;
  return profile;
}

/// The profile that a checkpoint was trained with: its own, else that of the run folder around it.
Profile profile_of_checkpoint(const fs::path& checkpoint) {
  const fs::path real = fs::weakly_canonical(checkpoint);
  for (const fs::path& file : {real / "profile.yaml", real.parent_path() / "profile.yaml"}) {
    if (fs::exists(file)) return read_profile(file);
  }
  throw FormatError(checkpoint.string(),
                    "neither it nor its parent folder holds a profile.yaml, so it is unknown what it was "
                    "trained with. Copy the profile.yaml of its run there");
}

void refuse_differences(const OutputRequest& request, const Profile& old, const fs::path& where) {
  std::string refused;
  for (const auto& difference : diff_profiles(old, with_numbers_of(old, request.profile))) {
    const std::string line = difference.key + ": " + difference.old_value + " -> " + difference.new_value;
    const bool is_named = std::count(request.allow_changed.begin(), request.allow_changed.end(), difference.key) > 0;
    if (!difference.allowed_on_resume && !is_named) {
      refused += "\n  " + line;
    } else if (difference.key == "num_epochs" || difference.key == "max_steps") {
      log_info(line +
               ": the schedule is recomputed for the new number of steps; finished steps keep their learning rates");
    }
  }
  if (refused.empty()) return;
  throw ConfigError(where.string(),
                    "holds a run with a different profile:" + refused + ways_on(request.profile.run.output_dir));
}

void go_on_from(const fs::path& checkpoint, const OutputRequest& request, OutputDecision& decision) {
  const Profile old = profile_of_checkpoint(checkpoint);
  refuse_differences(request, old, checkpoint);
  decision.checkpoint = checkpoint;
  request.profile = with_numbers_of(old, request.profile);
}

bool is_finished(const fs::path& folder, const OutputRequest& request, std::string& summary_json) {
  if (!holds_done_summary(folder) || !fs::exists(folder / "profile.yaml")) return false;
  summary_json = read_file(folder / "summary.json");
  while (!summary_json.empty() && summary_json.back() == '\n') summary_json.pop_back();
  const Profile old = read_profile(folder / "profile.yaml");
  return diff_profiles(old, with_numbers_of(old, request.profile)).empty();
}

/// True when the same command is repeated: the run here began with that checkpoint and has saved its own since.
bool began_with(const fs::path& folder, const std::string& checkpoint) {
  if (!fs::exists(folder / "profile.yaml") ||
      read_profile(folder / "profile.yaml").run.resume_from_checkpoint != checkpoint) {
    return false;
  }
  log_info(folder.string() + ": the run here began with " + checkpoint + " and resumes from what it has saved since");
  return true;
}

fs::path newest_good_checkpoint(const fs::path& folder) {
  if (const auto checkpoint = checkpoint::newest_good(folder)) return *checkpoint;
  throw FormatError(folder.string(),
                    "holds a run without a good checkpoint to resume from (" +
                        std::to_string(checkpoint::list(folder).size()) +
                        " checked); use --overwrite to start again from step 0, or another --output-dir");
}

}  // namespace

std::string run_name(const RunSection& section) {
  if (!section.run_name.empty()) return section.run_name;
  const fs::path folder = fs::path(section.output_dir).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

bool holds_done_summary(const fs::path& folder) {
  const fs::path path = folder / "summary.json";
  if (!fs::is_regular_file(path)) return false;
  try {
    return nlohmann::json::parse(read_file(path)).at("status") == "done";
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

const char* result_name(AdapterKind adapter) { return adapter == AdapterKind::kNone ? "model" : "adapter"; }

OutputDecision look_at_output_folder(const OutputRequest& request) {
  const fs::path folder = request.profile.run.output_dir;
  const std::string& resume = request.profile.run.resume_from_checkpoint;
  refuse_inputs_in_the_way(request);
  refuse_files_of_others(folder, result_name(request.profile.adapter.kind));
  OutputDecision decision;
  const bool goes_on_there = !request.overwrite && has_saved(folder);
  const bool names_one = resume != "auto" && resume != "none";
  if (names_one && !(goes_on_there && began_with(folder, resume))) {
    const std::string problem = checkpoint::verify(resume, throw_if_stop_requested);
    if (!problem.empty()) throw FormatError(resume, "is not a good checkpoint: " + problem);
    if (goes_on_there && fs::exists(folder / "profile.yaml")) {
      refuse_differences(request, read_profile(folder / "profile.yaml"), folder);
    }
    go_on_from(resume, request, decision);
    decision.goes_back = true;
    return decision;
  }
  if (!goes_on_there) {
    if (!request.overwrite) log_new_run(folder);
    return decision;
  }
  if (resume == "none") {
    throw ConfigError(folder.string(),
                      "holds a run; --resume none would overwrite it. Add --overwrite, or choose another --output-dir");
  }
  decision.is_complete = is_finished(folder, request, decision.summary_json);
  if (!decision.is_complete) go_on_from(newest_good_checkpoint(folder), request, decision);
  return decision;
}

OutputDecision prepare_output_folder(const OutputRequest& request) {
  const fs::path folder = request.profile.run.output_dir;
  OutputDecision decision = look_at_output_folder(request);
  make_folders(folder);
  storage::delete_temporaries(folder,
                              is_run_file);  // of a finished run too: it may have been killed in its last report
  return decision;
}

void delete_run(const fs::path& folder) {
  if (!was_made_by_us(folder)) return;
  for (const char* name : kResults) {
    if (is_result_of_run(folder, name)) fs::remove_all(folder / name);
  }
  for (const char* name : kReports) fs::remove_all(folder / name);
  for (const auto& checkpoint : checkpoint::list(folder)) fs::remove_all(checkpoint);
}

}  // namespace lora_train::run_folder

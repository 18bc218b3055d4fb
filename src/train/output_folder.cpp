#include "output_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/config/load.h"
#include "lora_train/metrics/metrics_writer.h"

namespace lora_train::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointPrefix = "checkpoint-";
/// What a run writes into its folder, beside checkpoint-<step>.
constexpr const char* kRunFiles[] = {"profile.yaml", "run.log",     "metrics.jsonl", "tensorboard",
                                     "adapter",      "model",       "report.html",   "summary.json"};

bool is_run_file(const std::string& name) {
  return name.starts_with(kCheckpointPrefix) || std::count(std::begin(kRunFiles), std::end(kRunFiles), name) > 0;
}

bool holds_a_run(const fs::path& folder) {
  return fs::exists(folder / "metrics.jsonl") || !list_checkpoints(folder).empty();
}

/// Every run opens its log first.
bool was_made_by_us(const fs::path& folder) { return fs::exists(folder / "run.log") || holds_a_run(folder); }

/// A run that was stopped or failed before the end of step 1 owes no checkpoint, and nothing of it is lost.
bool has_trained(const fs::path& folder) {
  return metrics::has_train_events(folder / "metrics.jsonl") || !list_checkpoints(folder).empty();
}

bool is_temporary(const std::string& name) {
  constexpr std::string_view kTemporary = ".tmp-";
  if (!name.starts_with(kTemporary)) return false;
  const std::string rest = name.substr(kTemporary.size());
  return rest.starts_with(kCheckpointPrefix) ||
         std::any_of(std::begin(kRunFiles), std::end(kRunFiles), [&](const char* file) { return rest.starts_with(file); });
}

/// What a process that died left half-written; nobody else writes here while this run holds the lock.
void delete_temporaries(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_temporary(entry.path().filename().string())) found.push_back(entry.path());
  }
  for (const auto& path : found) fs::remove_all(path);
}

void delete_run(const fs::path& folder) {
  if (!was_made_by_us(folder)) return;
  for (const char* name : kRunFiles) fs::remove_all(folder / name);
  for (const auto& checkpoint : list_checkpoints(folder)) fs::remove_all(checkpoint);
}

/// A run replaces and deletes under its own names, so that nothing it reads may lie there.
void refuse_input_in_the_way(const std::string& key, const fs::path& input, const fs::path& folder) {
  if (input.empty() || !fs::exists(input)) return;
  const fs::path inside = fs::weakly_canonical(input).lexically_relative(fs::weakly_canonical(folder));
  if (inside.empty() || !is_run_file(inside.begin()->string())) return;
  throw ConfigError(key, input.string() + " lies in " + (folder / *inside.begin()).string() +
                             ", which a run in " + folder.string() +
                             " writes and deletes. Choose another output_dir, or move what is there");
}

void refuse_inputs_in_the_way(const TrainRequest& request) {
  const Profile& profile = request.profile;
  const fs::path folder = profile.output_dir;
  refuse_input_in_the_way("model", profile.model, folder);
  refuse_input_in_the_way("init_adapter", profile.init_adapter, folder);
  refuse_input_in_the_way("chat_template", profile.chat_template, folder);
  if (request.overwrite) refuse_input_in_the_way("resume_from_checkpoint", profile.resume_from_checkpoint, folder);
}

void refuse_files_of_others(const fs::path& folder) {
  if (was_made_by_us(folder)) return;
  for (const char* name : kRunFiles) {
    if (!fs::exists(folder / name)) continue;
    throw ConfigError(folder.string(), "holds " + std::string(name) +
                                           ", which a run writes too, but no run (no run.log, no checkpoint): it would "
                                           "be lost. Choose another output_dir, or move it");
  }
}

std::string ways_on(const fs::path& folder) {
  return "\nThree ways on: --output-dir with another folder; --overwrite to delete the run in " + folder.string() +
         "; --allow-changed KEY for each key that may differ";
}

Profile read_profile(const fs::path& file) {
  ProfileSources sources;
  sources.profiles = {file.string()};
  return load_profile(sources).profile;
}

/// `auto` becomes the number that the old run found for it.
Profile with_numbers_of(const Profile& old, Profile profile) {
  if (!profile.max_seq_len) profile.max_seq_len = old.max_seq_len;
  if (!profile.micro_batch_size) profile.micro_batch_size = old.micro_batch_size;
  return profile;
}

/// The profile with which a checkpoint was trained: its own, else that of the run it lies in.
Profile profile_of_checkpoint(const fs::path& checkpoint) {
  const fs::path real = fs::weakly_canonical(checkpoint);
  for (const fs::path& file : {real / "profile.yaml", real.parent_path() / "profile.yaml"}) {
    if (fs::exists(file)) return read_profile(file);
  }
  throw FormatError(checkpoint.string(), "holds no profile.yaml, nor does the folder it lies in, so that nothing says what it "
                                         "was trained with. Put the profile.yaml of its run there");
}

/// What goes on from `checkpoint`: the new profile, with the old numbers for `auto`.
Profile profile_to_go_on_with(const TrainRequest& request, const fs::path& checkpoint) {
  const Profile old = profile_of_checkpoint(checkpoint);
  Profile profile = with_numbers_of(old, request.profile);
  std::string refused;
  for (const auto& difference : diff_profiles(old, profile)) {
    const std::string line = difference.key + ": " + difference.old_value + " -> " + difference.new_value;
    const bool is_named = std::count(request.allow_changed.begin(), request.allow_changed.end(), difference.key) > 0;
    if (!difference.allowed_on_resume && !is_named) {
      refused += "\n  " + line;
    } else if (difference.key == "num_epochs" || difference.key == "max_steps") {
      log_info(line + ": the schedule is computed anew for the new number of steps; steps already done keep their rates");
    }
  }
  if (refused.empty()) return profile;
  throw ConfigError(checkpoint.string(), "was trained with another profile:" + refused + ways_on(profile.output_dir));
}

bool is_finished(const fs::path& folder, const TrainRequest& request, std::string& summary_json) {
  const fs::path path = folder / "summary.json";
  if (!fs::exists(path) || !fs::exists(folder / "profile.yaml")) return false;
  try {
    summary_json = read_file(path);
    if (nlohmann::json::parse(summary_json).at("status") != "done") return false;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  const Profile old = read_profile(folder / "profile.yaml");
  return diff_profiles(old, with_numbers_of(old, request.profile)).empty();
}

fs::path newest_good_checkpoint(const fs::path& folder) {
  const auto checkpoints = list_checkpoints(folder);
  for (const auto& checkpoint : checkpoints) {
    const std::string problem = verify_checkpoint(checkpoint);
    if (problem.empty()) return checkpoint;
    log_warning(checkpoint.string() + " is passed over: " + problem);
  }
  throw FormatError(folder.string(), "holds a run without a good checkpoint to go on from (" +
                                         std::to_string(checkpoints.size()) +
                                         " looked at); use --overwrite to start again from zero, or another --output-dir");
}

}  // namespace

OutputDecision look_at_output_folder(const TrainRequest& request) {
  const fs::path folder = request.profile.output_dir;
  const std::string& resume = request.profile.resume_from_checkpoint;
  refuse_inputs_in_the_way(request);
  refuse_files_of_others(folder);
  OutputDecision decision;
  decision.profile = request.profile;
  if (resume != "auto" && resume != "none") {
    const std::string problem = verify_checkpoint(resume);
    if (!problem.empty()) throw FormatError(resume, "is not a good checkpoint: " + problem);
    decision.checkpoint = resume;
    decision.profile = profile_to_go_on_with(request, resume);
    return decision;
  }
  if (request.overwrite || !holds_a_run(folder)) return decision;
  if (!has_trained(folder)) {
    log_info(folder.string() + ": the run there finished no step; it is begun anew");
    return decision;
  }
  if (resume == "none") {
    throw ConfigError(folder.string(), "holds a run; --resume none would overwrite it. Add --overwrite, or choose another --output-dir");
  }
  if (is_finished(folder, request, decision.summary_json)) {
    decision.is_complete = true;
    return decision;
  }
  decision.checkpoint = newest_good_checkpoint(folder);
  decision.profile = profile_to_go_on_with(request, *decision.checkpoint);
  return decision;
}

OutputDecision prepare_output_folder(const TrainRequest& request) {
  const fs::path folder = request.profile.output_dir;
  OutputDecision decision = look_at_output_folder(request);
  try {
    fs::create_directories(folder);
    if (request.overwrite) delete_run(folder);
    if (!decision.is_complete) delete_temporaries(folder);
  } catch (const fs::filesystem_error& error) {
    throw IoError(folder.string(), std::string("cannot prepare the output folder: ") + error.code().message());
  }
  return decision;
}

}  // namespace lora_train::train

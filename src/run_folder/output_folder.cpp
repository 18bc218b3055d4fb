#include "lora_train/run_folder/output_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/config/load.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

/// A run replaces and deletes files under its own names, so none of its inputs may be there.
void refuse_inputs_in_the_way(const OutputRequest& request) {
  const Profile& profile = request.profile;
  std::vector<std::pair<const char*, fs::path>> inputs = {{"model", profile.model.path},
                                                          {"init_adapter", profile.adapter.init_adapter},
                                                          {"chat_template", profile.model.chat_template}};
  for (const auto& spec : profile.data.datasets) inputs.emplace_back("datasets", spec.path);
  for (const auto& spec : profile.data.eval_datasets) inputs.emplace_back("eval_datasets", spec.path);
  if (request.overwrite) inputs.emplace_back("resume_from_checkpoint", profile.run.resume_from_checkpoint);
  const fs::path folder = profile.run.output_dir;
  for (const auto& [key, input] : inputs) {
    if (input.empty() || !fs::exists(input)) continue;
    const fs::path inside = fs::weakly_canonical(input).lexically_relative(fs::weakly_canonical(folder));
    if (inside.empty() || !storage::is_run_name(inside.begin()->string())) continue;
    throw ConfigError(key,
                      "{} is in {}, which a run in {} writes and deletes. Choose another output_dir, or move the input",
                      input.string(), (folder / *inside.begin()).string(), folder.string());
  }
}

/// True if `name` ("adapter" or "model") is the result that the run in `folder` wrote or would write.
bool is_result_of_run(const fs::path& folder, const std::string& name) {
  if (!storage::read_marker(folder) || path_kind(folder / storage::kProfileFile) != PathKind::kFile) return false;
  try {
    return name == result_name(load_written_profile(folder / storage::kProfileFile).adapter.kind);
  } catch (const Error&) {
    return false;
  }
}

/// A run writes its files under fixed names, so nothing else may have them: without run.json, anything with such a name
/// belongs to someone else. Always refuses links and devices: what they lead to is not the run's.
void refuse_files_of_others(const fs::path& folder, const std::string& result) {
  if (path_kind(folder) == PathKind::kNone) return;
  const bool is_run = storage::read_marker(folder).has_value();
  const auto refuse = [&](const std::string& name, PathKind expected, bool is_ours) {
    const PathKind kind = path_kind(folder / name);
    if (kind == PathKind::kNone || (kind == expected && is_ours)) return;
    throw ConfigError(folder.string(), "holds " + name + ", which lora-train did not write" +
                                           (is_run ? "" : std::string(" (there is no ") + storage::kMarkerFile + ")") +
                                           " and which this run would replace. Choose another output_dir, or move it");
  };
  refuse(storage::kMarkerFile, PathKind::kFile, is_run);
  for (const char* name : storage::kReportFiles) refuse(name, PathKind::kFile, is_run);
  refuse(storage::kTensorBoardFolder, PathKind::kFolder, is_run);
  refuse(storage::kReplacedFolder, PathKind::kFolder, is_run);
  refuse(result, PathKind::kFolder, is_result_of_run(folder, result));
}

void name_checkpoints_of_others(const fs::path& folder) {
  for (const auto& path : list_others(folder)) {
    log_warning("{}{}: ignored. To start from a lora-train checkpoint elsewhere, pass it with --resume", path.string(),
                fs::is_symlink(path) ? " is a link" : " was not written by lora-train");
  }
}

/// Replaces each `auto` with the value that the old run chose.
Profile with_numbers_of(const Profile& old, Profile profile) {
  if (profile.model.template_date.empty()) profile.model.template_date = old.model.template_date;
  if (!profile.data.max_seq_len) profile.data.max_seq_len = old.data.max_seq_len;
  if (!profile.schedule.micro_batch_size) profile.schedule.micro_batch_size = old.schedule.micro_batch_size;
  if (!profile.run.mlp_tile_tokens) profile.run.mlp_tile_tokens = old.run.mlp_tile_tokens;
  return profile;
}

/// The profile that a checkpoint was trained with: its own, else that of its run folder.
Profile profile_of_checkpoint(const fs::path& checkpoint) {
  const fs::path real = fs::weakly_canonical(checkpoint);
  for (const fs::path& file : {real / storage::kProfileFile, real.parent_path() / storage::kProfileFile}) {
    if (fs::exists(file)) return load_written_profile(file);
  }
  throw FormatError(checkpoint.string(),
                    "has no profile.yaml, and neither does its parent folder, so it is unknown how it was trained. "
                    "Copy the profile.yaml of its run there");
}

/// True if the key decides which tensors are trained, or their shapes: with another value, no checkpoint fits.
bool shapes_tensors(const std::string& key) { return key == "adapter" || key == "lora_r" || key == "add_tokens"; }

/// True if the key decides where the schedule ends.
bool is_limit(const std::string& key) { return key == "num_epochs" || key == "max_steps"; }

bool may_differ(const ProfileDifference& difference, const OutputRequest& request) {
  if (shapes_tensors(difference.key)) return difference.allowed_on_resume;
  return difference.allowed_on_resume || std::ranges::count(request.allow_changed, difference.key) > 0;
}

std::string line_of(const ProfileDifference& difference) {
  return fmt::format("{}: {} -> {}", difference.key, difference.old_value, difference.new_value);
}

/// Why a refused key must not differ.
const char* remark(const ProfileDifference& difference) {
  if (shapes_tensors(difference.key)) return "  (no checkpoint fits this: --allow-changed does not help)";
  return is_limit(difference.key) ? "  (may be raised, not lowered)" : "";
}

/// The advice below refused keys. `where` is the run in output_dir, or a checkpoint elsewhere, which this run cannot
/// delete.
std::string ways_on(const OutputRequest& request, const fs::path& where, const std::vector<std::string>& refused) {
  const fs::path folder = request.profile.run.output_dir, real = fs::weakly_canonical(where);
  const bool is_there = real == fs::weakly_canonical(folder) || real.parent_path() == fs::weakly_canonical(folder);
  std::string ways = "\nChoose one:\n  keep the old values";
  ways += is_there ? "\n  --output-dir OTHER  starts a new run elsewhere\n  --overwrite  deletes the run in " +
                         folder.string()
                   : "\n  init_adapter=" + where.string() + "  starts from its adapter, without --resume";
  if (std::ranges::any_of(refused, shapes_tensors) || std::ranges::all_of(refused, is_limit)) return ways;
  ways += "\n ";
  for (const std::string& key : refused) {
    if (!is_limit(key)) ways += " --allow-changed " + key;
  }
  return ways + "  continues with the changes";
}

void refuse_differences(const OutputRequest& request, const Profile& old, const fs::path& where) {
  std::string lines;
  std::vector<std::string> refused;
  for (const auto& difference : diff_profiles(old, with_numbers_of(old, request.profile))) {
    if (may_differ(difference, request)) continue;
    lines += fmt::format("\n  {}{}", line_of(difference), remark(difference));
    refused.push_back(difference.key);
  }
  if (refused.empty()) return;
  throw ConfigError(where.string(), "holds a run with a different profile:" + lines + ways_on(request, where, refused));
}

/// Accepts the remaining differences: logs a new end of the schedule, and returns what --allow-changed lets differ.
std::vector<std::string> accept_differences(const OutputRequest& request, const Profile& old) {
  std::vector<std::string> changes;
  for (const auto& difference : diff_profiles(old, request.profile)) {
    if (is_limit(difference.key)) {
      log_info(line_of(difference) +
               ": the schedule is recomputed for the new number of steps; finished steps keep their learning rates");
    } else if (!difference.allowed_on_resume) {
      changes.push_back(line_of(difference));
    }
  }
  return changes;
}

void go_on_from(const fs::path& checkpoint, const OutputRequest& request, OutputDecision& decision) {
  const Profile old = profile_of_checkpoint(checkpoint);
  refuse_differences(request, old, checkpoint);
  decision.checkpoint = checkpoint;
  request.profile = with_numbers_of(old, request.profile);
  decision.changes = accept_differences(request, old);
}

/// True if the run in the folder has saved a checkpoint.
bool has_saved(const fs::path& folder) {
  return report::has_event(folder / storage::kMetricsFile, "checkpoint") || !list(folder).empty();
}

/// The profile of the run in the folder; nothing if there is no profile.yaml. Throws ConfigError if it is not a
/// profile.
std::optional<Profile> profile_there(const fs::path& folder) {
  const fs::path file = folder / storage::kProfileFile;
  return fs::exists(file) ? std::optional(load_written_profile(file)) : std::nullopt;
}

/// The summary.json of a finished run with the request's profile, if there is one.
std::optional<std::string> result_there(const fs::path& folder, const OutputRequest& request) {
  const std::string result = result_name(request.profile.adapter.kind);
  if (!holds_done_summary(folder) || !is_result_of_run(folder, result)) return std::nullopt;
  if (path_kind(folder / result) != PathKind::kFolder) return std::nullopt;
  const Profile old = load_written_profile(folder / storage::kProfileFile);
  if (!diff_profiles(old, with_numbers_of(old, request.profile)).empty()) return std::nullopt;
  std::string summary = read_file(folder / storage::kSummaryFile);
  while (summary.ends_with('\n')) summary.pop_back();
  return summary;
}

/// Resumes from the checkpoint that --resume names. Later ones in the folder would be deleted, which must not happen as
/// a side effect. `old`: the profile of the run there.
void go_back_to(const fs::path& checkpoint, const OutputRequest& request, const std::optional<Profile>& old,
                bool goes_on_there, OutputDecision& decision) {
  const char* const key = "resume_from_checkpoint";
  const fs::path folder = request.profile.run.output_dir;
  if (const std::string problem = verify(checkpoint, throw_if_stop_requested); !problem.empty()) {
    throw FormatError(checkpoint.string(),
                      "is not a good checkpoint: {}. To start from the weights of a PEFT folder, use init_adapter",
                      problem);
  }
  if (old) refuse_differences(request, *old, folder);
  if (goes_on_there && std::ranges::count(request.allow_changed, key) == 0) {
    const std::int64_t step = describe(checkpoint).state.step;
    const auto newest = newest_good(folder);
    if (newest && storage::checkpoint_step(*newest) > step) {
      throw ConfigError(folder.string(),
                        "resuming from step {} would delete the later checkpoints, up to {}. To keep them, use another "
                        "--output-dir, or leave out --resume to continue from the newest; to delete them, pass "
                        "--allow-changed {}",
                        step, newest->string(), key);
    }
  }
  go_on_from(checkpoint, request, decision);
  decision.goes_back = true;
}

/// What the run in output_dir has left.
enum class Left { kNothing, kSteps, kReplacedRun, kSomething, kResult, kCheckpoint, kBadCheckpoints };

/// What a new run does about it.
enum class Action { kBegin, kWarnAndBegin, kEnd, kResume, kRefuse, kRefuseFiles };

struct Rule {
  Left left;
  Action action;
  const char* message = "";
};

constexpr Rule kRules[] = {
    {Left::kNothing, Action::kBegin},
    {Left::kSteps, Action::kWarnAndBegin,
     "the run there ended before saving a checkpoint; starting over from step 0. A smaller save_steps or save_interval "
     "loses less"},
    // Began with --overwrite; the run that it was replacing is then better.
    {Left::kReplacedRun, Action::kRefuse,
     "the run there began with --overwrite and has saved nothing yet; the run it was replacing is in {replaced}. Add "
     "--overwrite to start over, choose another --output-dir, or move that folder elsewhere to keep the older run"},
    // Not looked into: --resume none.
    {Left::kSomething, Action::kRefuse,
     "holds a run; --resume none would overwrite it. Add --overwrite, or choose another --output-dir"},
    {Left::kResult, Action::kEnd},
    {Left::kCheckpoint, Action::kResume},
    {Left::kBadCheckpoints, Action::kRefuseFiles,
     "holds a run without a good checkpoint to resume from ({checked} checked); use --overwrite to start over from "
     "step 0, or another --output-dir"}};

struct Found {
  Left left = Left::kNothing;
  std::string summary_json = {};            ///< kResult
  std::optional<fs::path> checkpoint = {};  ///< kCheckpoint
};

Found look_into(const fs::path& folder, const OutputRequest& request) {
  if (!has_saved(folder)) {
    if (storage::read_marker(folder / storage::kReplacedFolder)) return {Left::kReplacedRun};
    return {report::has_event(folder / storage::kMetricsFile, "train") ? Left::kSteps : Left::kNothing};
  }
  if (request.profile.run.resume_from_checkpoint == "none") return {Left::kSomething};
  if (const auto summary = result_there(folder, request)) return {Left::kResult, *summary};
  const std::optional<fs::path> checkpoint = newest_good(folder);
  return {checkpoint ? Left::kCheckpoint : Left::kBadCheckpoints, "", checkpoint};
}

/// Begins anew, resumes, ends or refuses, as the rule for what is left says.
void decide_by_what_is_left(const OutputRequest& request, OutputDecision& decision) {
  const fs::path folder = request.profile.run.output_dir;
  const Found found = look_into(folder, request);
  const Rule& rule = *std::ranges::find(kRules, found.left, &Rule::left);
  const auto message = [&] {
    return fmt::format(fmt::runtime(rule.message), fmt::arg("checked", list(folder).size()),
                       fmt::arg("replaced", (folder / storage::kReplacedFolder).string()));
  };
  switch (rule.action) {
    case Action::kBegin: return;
    case Action::kWarnAndBegin: return log_warning("{}: {}", folder.string(), message());
    case Action::kEnd:
      decision.is_complete = true;
      decision.summary_json = found.summary_json;
      return;
    case Action::kResume: return go_on_from(*found.checkpoint, request, decision);
    case Action::kRefuse: throw ConfigError(folder.string(), message());
    case Action::kRefuseFiles: throw FormatError(folder.string(), message());
  }
}

/// True if a command with --overwrite began the existing run and is now repeated, for example by a batch system that
/// restarts a stopped job: then it resumes. A finished run, another profile and --resume none begin a new run.
bool repeats_overwriting(const fs::path& folder, const OutputRequest& request) {
  const auto marker = storage::read_marker(folder);
  if (!marker || !marker->began_with_overwrite || request.profile.run.resume_from_checkpoint == "none") return false;
  const std::optional<Profile> old = has_saved(folder) ? profile_there(folder) : std::nullopt;
  if (!old || result_there(folder, request)) return false;
  const bool is_same =
      std::ranges::all_of(diff_profiles(*old, with_numbers_of(*old, request.profile)),
                          [&](const ProfileDifference& difference) { return may_differ(difference, request); });
  if (is_same) {
    log_info(folder.string() +
             ": a command with --overwrite began the run here, so this one resumes it; --resume none with --overwrite "
             "starts over");
  }
  return is_same;
}

/// Deletes what a run wrote under `name`; files that others put there move to the folder of that name in `home`.
void discard(const fs::path& folder, const std::string& name, const fs::path& home) {
  if (path_kind(folder / name) == PathKind::kFolder) {
    storage::discard_folder(folder / name, home / name, own_entries);
  } else {
    remove_tree(folder / name);
  }
}

void discard_replaced(const fs::path& folder) {
  const fs::path replaced = folder / storage::kReplacedFolder;
  if (path_kind(replaced) != PathKind::kFolder) return;
  for (const auto& name : list_folder(replaced)) {
    if (storage::is_run_name(name)) discard(replaced, name, folder);
  }
  if (list_folder(replaced).empty()) remove_folder(replaced);
}

/// The names of everything the run in `folder` has written, the marker last. Empty if there is no run.
std::vector<std::string> files_of_run(const fs::path& folder) {
  if (!storage::read_marker(folder)) return {};
  std::vector<std::string> names;
  const auto add_if_there = [&](const std::string& name) {
    if (path_kind(folder / name) != PathKind::kNone) names.push_back(name);
  };
  for (const auto& checkpoint : list(folder)) names.push_back(checkpoint.filename().string());
  for (const char* name : {storage::kAdapterFolder, storage::kModelFolder}) {
    if (is_result_of_run(folder, name)) add_if_there(name);
  }
  for (const char* name : storage::kReportFiles) add_if_there(name);
  add_if_there(storage::kTensorBoardFolder);
  names.emplace_back(storage::kMarkerFile);
  return names;
}

void move_all(const fs::path& folder, const std::vector<std::string>& names, const fs::path& to) {
  if (path_kind(to) == PathKind::kNone) make_folder(to);
  for (const auto& name : names) {
    discard(to, name, folder);
    rename_path(folder / name, to / name);
  }
  sync_folder(to);
}

}  // namespace

std::string run_name(const RunSection& section) {
  if (!section.run_name.empty()) return section.run_name;
  const fs::path folder = fs::path(section.output_dir).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

bool holds_done_summary(const fs::path& folder) {
  const fs::path path = folder / storage::kSummaryFile;
  if (!fs::is_regular_file(path)) return false;
  try {
    return nlohmann::json::parse(read_file(path)).at("status") == "done";
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

const char* result_name(AdapterKind adapter) {
  return adapter == AdapterKind::kNone ? storage::kModelFolder : storage::kAdapterFolder;
}

OutputDecision look_at_output_folder(const OutputRequest& request) {
  const fs::path folder = request.profile.run.output_dir;
  const std::string& resume = request.profile.run.resume_from_checkpoint;
  refuse_inputs_in_the_way(request);
  refuse_files_of_others(folder, result_name(request.profile.adapter.kind));
  name_checkpoints_of_others(folder);
  OutputDecision decision;
  decision.overwrites = request.overwrite && !repeats_overwriting(folder, request);
  if (resume != "auto" && resume != "none") {
    const bool goes_on_there = !decision.overwrites && has_saved(folder);
    const std::optional<Profile> old = goes_on_there ? profile_there(folder) : std::nullopt;
    if (!old || old->run.resume_from_checkpoint != resume) {
      go_back_to(resume, request, old, goes_on_there, decision);
      return decision;
    }
    // The same command is repeated: the run here has saved checkpoints of its own since.
    log_info("{}: the run here began with {}, so it resumes from its own checkpoints", folder.string(), resume);
  }
  if (!decision.overwrites) decide_by_what_is_left(request, decision);
  return decision;
}

OutputDecision prepare_output_folder(const OutputRequest& request) {
  const fs::path folder = request.profile.run.output_dir;
  OutputDecision decision = look_at_output_folder(request);
  make_folders(folder);
  if (storage::read_marker(folder)) {
    // A finished run too may have been killed in its last report.
    storage::delete_temporaries(folder, storage::is_run_name, own_entries);
  } else {
    storage::write_new_marker(folder, request.overwrite);
    // An earlier run may have been killed while it wrote the marker: nothing else of it is there.
    storage::delete_temporaries(folder, [](const std::string& name) { return name == storage::kMarkerFile; });
  }
  return decision;
}

void set_run_aside(const fs::path& folder) {
  const std::vector<std::string> names = files_of_run(folder);
  if (names.size() <= 1) return;  // nothing, or only this run's marker
  const fs::path replaced = folder / storage::kReplacedFolder;
  const bool keeps_one = storage::read_marker(replaced).has_value();  // the marker moves last
  if (keeps_one && list(folder).empty()) {
    for (const auto& name : names) discard(folder, name, folder);
  } else {
    if (keeps_one) discard_replaced(folder);
    move_all(folder, names, replaced);
    log_info("{}: the run there stays in {} until this one has saved its first checkpoint or result", folder.string(),
             storage::kReplacedFolder);
  }
  storage::write_new_marker(folder, /*began_with_overwrite=*/true);
}

void delete_replaced_run(const fs::path& folder) {
  try {
    discard_replaced(folder);
  } catch (const IoError& error) {
    log_warning(std::string(error.what()) + "; the replaced run is still there");
  }
}

std::vector<std::string> own_entries(const fs::path& folder) {
  const std::string actual = folder.filename().string();
  const std::string name = storage::name_of_temporary_folder(actual).value_or(actual);
  if (storage::checkpoint_step(name)) return checkpoint_entries(folder);
  return storage::own_files(folder, [&](const std::string& entry) {
    return name == storage::kTensorBoardFolder ? entry.starts_with(storage::kEventFilePrefix)
                                               : storage::is_result_file(entry);
  });
}

}  // namespace lora_train::run_folder

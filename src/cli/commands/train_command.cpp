// lora-train train: the run.

#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/profile_check.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/log.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/device/host.h"
#include "lora_train/launch/world.h"
#include "lora_train/report/metrics_writer.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

std::string operating_system() {
  struct utsname system {};
  return ::uname(&system) == 0 ? fmt::format("{} {}", system.sysname, system.release) : "";
}

/// True for a line of a shipped profile.
bool is_shipped(const Place& place) {
  std::error_code code;
  return place.line > 0 && fs::equivalent(fs::path(place.file).parent_path(), program_folder() / "configs", code);
}

/// The shipped profiles' values of keys that the profile overrides.
report::NamedTexts base_values(const std::vector<std::string>& base_files, const Profile& profile) {
  report::NamedTexts values;
  if (base_files.empty()) return values;
  ProfileSources sources;
  sources.profiles = base_files;
  sources.needs_model = sources.needs_datasets = false;
  Findings ignored;
  for (const auto& key : diff_profiles(load_profile(sources, ignored).profile, profile))
    values.emplace_back(key.key, key.old_value);
  return values;
}

/// `arguments`: those of the command. Call it once the engine is loaded.
report::Provenance provenance_of(const LoadedProfile& loaded, const std::vector<std::string>& arguments) {
  report::Provenance provenance;
  std::vector<std::string> words = {"lora-train", "train"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const device::Host host = device::describe_host();
  std::error_code code;
  provenance.environment = {
      {"command", shell_line(words)},
      {"working_folder", fs::current_path(code).string()},
      {"commit", commit()},
      {"libtorch", load_engine().torch_version()},
      {"host", host_name()},
      {"operating_system", operating_system()},
      {"cpu", fmt::format("{} ({}{}", host.cpu_model, host.num_cores, host.num_cores == 1 ? " core)" : " cores)")},
      {"host_memory", format_bytes(host.memory_bytes)}};
  for (const auto& [key, origin] : loaded.origin) {
    if (origin == "default") continue;
    provenance.set_by.emplace_back(key, origin);
    const Place place = parse_place(origin);
    std::vector<std::string>& bases = provenance.base_files;
    if (is_shipped(place) && std::ranges::count(bases, place.file) == 0) bases.push_back(place.file);
  }
  provenance.base_values = base_values(provenance.base_files, loaded.profile);
  return provenance;
}

constexpr const char* kAnswerToStop = "stopping after this step; again to quit now";

void refuse_unknown_key(const CommandParser& parser, const std::string& key) {
  const std::vector<std::string> keys = profile_keys();
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
  parser.refuse("--allow-changed", fmt::format("\"{}\" is not a key.{}", key, did_you_mean(key, keys)));
}

/// Fills the request. Throws if the profile cannot be trained with, whatever its files contain. Problems with the files
/// go into the request, since a complete run needs none of them. Returns what was loaded.
LoadedProfile resolve_profile(const ProfileFlags& flags, run::TrainRequest& request) {
  Findings findings, of_inputs;
  LoadedProfile loaded = load_and_log(flags.sources(), findings);
  if (!loaded.profile.teacher.teacher.empty()) {
    findings.mistake(parse_place(loaded.origin.at("teacher")), "teacher",
                     "is for lora-train distill, which asks it and then trains: run distill instead of train.");
  }
  if (findings.has_mistakes()) {
    check_inputs(loaded, {}, findings);
    findings.throw_mistakes();
  }
  check_inputs(loaded, {}, of_inputs);
  try {
    of_inputs.throw_mistakes();
  } catch (...) {
    request.bad_inputs = std::current_exception();
  }
  request.profile = loaded.profile;
  request.profile_hash = profile_hash(loaded.profile);
  request.target_gpu = target_gpu(loaded.profile);
  return loaded;
}

}  // namespace

int run_train(const std::vector<std::string>& arguments) {
  const launch::World world = launch::world_from(process_environment);
  keep_stop_requests(world.launcher != launch::Launcher::kNone, world.rank == 0 ? kAnswerToStop : nullptr);
  CommandParser parser(
      "train", "Fine-tunes a model as a profile describes. To resume a stopped run, run the same command again.");
  const ProfileFlags flags(parser,
                           {kModelFlag,
                            kTrainDataFlag,
                            kEvalDataFlag,
                            kOutputDirFlag,
                            kResumeFlag,
                            {"--max-time", "max_time", "save a checkpoint and stop after this time, such as 2h30m"}});
  run::TrainRequest request;
  parser.add_list("--allow-changed", request.allow_changed, "KEY",
                  "let this key differ from the resumed run; repeatable");
  parser.add_flag("--overwrite", request.overwrite, "delete the run in output_dir and start over");
  parser.add_flag("--dry-run", request.dry_run, "do everything up to step 1, including a pass over the largest batch");
  const RanksFlag ranks(parser, world, "start N ranks on this host, one per GPU");
  if (!parser.parse(arguments)) return 0;
  never_wait_for_stderr();  // a reader of stderr that stops reading must not stop the training
  for (const auto& key : request.allow_changed) refuse_unknown_key(parser, key);
  if (ranks.starts_ranks()) {
    run::TrainRequest checked;  // check once, before all ranks do
    resolve_profile(flags, checked);
    return ranks.start("train", arguments);
  }
  request.world = world;
  request.quiet = parser.common().quiet;
  request.gpu_table = program_folder() / "configs/gpus.json";
  std::optional<LoadedProfile> loaded;
  try {
    loaded = resolve_profile(flags, request);
  } catch (...) {
    if (world.size == 1) throw;
    request.failure = std::current_exception();
  }
  const EngineApi& engine = load_engine();
  if (loaded && world.rank == 0) request.provenance = provenance_of(*loaded, arguments);
  const run::TrainResult result = engine.train(request);
  if (parser.common().json && world.rank == 0) print_line(result.summary_json);
  return result.exit_code;
}

}  // namespace lora_train::cli

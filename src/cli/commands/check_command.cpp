// lora-train check: checks a profile, the files that it names and their first examples, without touching a GPU or
// weights.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/profile_check.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/storage/model_file.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

void print_shipped_profiles(bool json) {
  for (const auto& profile : shipped_profiles(program_folder() / "configs")) {
    std::string line = profile.name + "  ";
    if (line.size() < 19) line.resize(19, ' ');
    print_json_or_text(json,
                       {{"name", profile.name},
                        {"file", profile.file.string()},
                        {"summary", profile.summary},
                        {"not_built_yet", nlohmann::ordered_json::array()}},  // nothing, but the key stays
                       line + profile.summary);
  }
}

/// Prints the profile's set values, or all of them, and then the next command.
void print_checked(const LoadedProfile& loaded, const std::vector<std::string>& arguments, bool verbose) {
  int num_left_out = 0;
  const std::string set_keys = to_short_yaml(loaded, num_left_out);
  print_text(verbose ? to_yaml(loaded) : set_keys);
  if (!verbose) log_info(count_of(num_left_out, "other key") + " at their defaults; --verbose shows them");
  std::vector<std::string> words = {"lora-train", "train"};
  std::ranges::copy_if(arguments, std::back_inserter(words), [](const std::string& word) {
    return word != "--verbose" && word != "--no-files" && word != "--profile" && word != "--config";
  });
  const bool has_data = !loaded.profile.data.datasets.empty();
  log_info("ok: next {}{}", shell_line(words), has_data ? "" : " --train-data FILE");
}

/// True if a shipped profile names the model: only `train` needs it on this machine.
bool is_shipped_model(const ProfileFlags& flags, const LoadedProfile& loaded) {
  return flags.are_shipped() && parse_place(loaded.origin.at("model")).line > 0;
}

/// Checks whether the profile's pinned settings fit its target GPU. Only this loads the engine.
void check_target_gpu(const Profile& profile) {
  const auto gpu = target_gpu(profile);
  const bool is_pinned =
      profile.schedule.micro_batch_size || profile.run.gradient_checkpointing != GradientCheckpointing::kAuto;
  if (!gpu || !is_pinned) return;
  try {
    storage::resolve_model(profile.model.path);
  } catch (const Error&) {  // the profile is meant for another machine
    return;
  }
  const EngineApi* engine = nullptr;
  try {
    engine = &load_engine();
  } catch (const Error& error) {
    log_info("target_gpu: cannot tell without LibTorch whether the run fits {}: {}", gpu->name, error.what());
    return;
  }
  const std::string misfit = engine->check_fit(profile, *gpu);
  if (!misfit.empty()) log_warning("target_gpu: {}: {}", gpu->name, misfit);
}

}  // namespace

int run_check(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "check",
      "Validates a profile without touching a GPU, and prints the values that are set (--verbose: all) and where they "
      "came from.");
  const ProfileFlags flags(parser, {});
  bool verbose = false, ignores_files = false, lists_profiles = false, wants_schema = false;
  std::string key_filter;
  parser.add_flag("--no-files", ignores_files, "do not check that the files named in the profile exist");
  parser.add_flag("--verbose", verbose, "also print the keys at their defaults");
  parser.add_flag("--list", lists_profiles, "list the shipped profiles");
  const CLI::Option* const keys =
      parser.add("--keys", key_filter, "TEXT", "explain every key, or those that contain TEXT")->expected(0, 1);
  parser.add_flag("--schema", wants_schema, "print a JSON Schema of profiles, for editors");
  if (!parser.parse(arguments)) return 0;
  if (wants_schema) {
    print_text(profile_schema());
    return 0;
  }
  if (lists_profiles) {
    print_shipped_profiles(parser.common().json);
    return 0;
  }
  if (keys->count() > 0) {
    const std::string table = parser.common().json ? keys_json(key_filter) : keys_table(key_filter);
    const std::string others = key_filter.empty() || parser.common().json ? "" : other_names_table(key_filter);
    if ((table + others).empty())
      parser.refuse("--keys", fmt::format("no key contains {}; lora-train check --keys shows all.", key_filter));
    print_text(table + (table.empty() || others.empty() ? "" : "\n") + others);
    return 0;
  }
  if (flags.is_empty()) parser.refuse("--profile", "no profile; expected --profile FILE, or key=value.");

  ProfileSources sources = flags.sources();
  sources.needs_datasets = !flags.are_shipped();
  Findings findings;
  const LoadedProfile loaded = load_and_log(sources, findings);
  if (ignores_files) {
    check_without_files(loaded, findings);
  } else {
    check_inputs(loaded, {.reads_all = true, .is_shipped = is_shipped_model(flags, loaded), .is_usage = true},
                 findings);
  }
  findings.throw_mistakes();
  if (!ignores_files) check_target_gpu(loaded.profile);
  if (parser.common().json) {
    print_line(to_json(loaded.profile));
  } else {
    print_checked(loaded, arguments, verbose);
  }
  return 0;
}

}  // namespace lora_train::cli

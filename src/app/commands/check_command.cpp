// lora-train check: a profile and the files that it names, without a GPU, rows or weights being touched.
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "engine/engine_loader.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "output/standard_output.h"
#include "profile_check.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::app {
namespace {

/// Keys of a shipped profile for which `train` refuses it still.
std::vector<std::string> unbuilt_keys(const ShippedProfile& profile) {
  ProfileSources sources;
  sources.profiles = {profile.file.string()};
  Mistakes mistakes;  // it has no data
  std::vector<std::string> keys;
  for (const auto& feature : unbuilt_features(load_profile(sources, mistakes))) keys.push_back(feature.key);
  return keys;
}

void print_shipped_profiles(bool json) {
  for (const auto& profile : shipped_profiles(program_folder() / "configs")) {
    const std::vector<std::string> unbuilt = unbuilt_keys(profile);
    if (json) {
      print_line(nlohmann::ordered_json({{"name", profile.name},
                                         {"file", profile.file.string()},
                                         {"summary", profile.summary},
                                         {"not_built_yet", unbuilt}})
                     .dump());
      continue;
    }
    std::string line = profile.name + "  ";
    if (line.size() < 19) line.resize(19, ' ');
    print_line(line + profile.summary + (unbuilt.empty() ? "" : "  (not built yet: " + join(unbuilt) + ")"));
  }
}

/// Whether the model is the one that a shipped profile names: only `train` needs it on this machine.
bool is_shipped_model(const ProfileFlags& flags, const LoadedProfile& loaded) {
  return flags.are_shipped() && parse_place(loaded.origin.at("model")).line > 0;
}

}  // namespace

int run_check(const std::vector<std::string>& arguments) {
  CommandParser parser("check",
                       "Validates a profile without touching a GPU, and prints every value and where it came "
                       "from.");
  const ProfileFlags flags(parser, {});
  bool ignores_files = false, lists_profiles = false;
  std::string key_filter;
  parser.app().add_flag("--no-files", ignores_files, "do not check that the files named in the profile exist");
  parser.app().add_flag("--list", lists_profiles, "list the shipped profiles");
  const CLI::Option* const keys = parser.app()
                                      .add_option("--keys", key_filter, "explain every key, or those that contain TEXT")
                                      ->expected(0, 1)
                                      ->type_name("TEXT");
  if (!parser.parse(arguments)) return 0;
  if (lists_profiles) {
    print_shipped_profiles(parser.common().json);
    return 0;
  }
  if (keys->count() > 0) {
    print_text(parser.common().json ? keys_json(key_filter) : keys_table(key_filter));
    return 0;
  }
  if (flags.is_empty()) parser.refuse("--profile", "no profile; expected --profile FILE, or key=value.");

  ProfileSources sources = flags.sources();
  sources.needs_datasets = !flags.are_shipped();
  Mistakes mistakes;
  const LoadedProfile loaded = load_and_log(sources, mistakes);
  add_unbuilt_features(loaded, mistakes);
  if (!ignores_files) {
    check_inputs(loaded, {.reads_all = true, .is_model_optional = is_shipped_model(flags, loaded), .is_usage = true},
                 mistakes);
  }
  mistakes.throw_if_any();
  if (loaded.profile.data.datasets.empty()) log_info("datasets: none set; pass yours to train with --train-data FILE");
  if (parser.common().json) {
    print_line(to_json(loaded.profile));
  } else {
    print_text(to_yaml(loaded));
  }
  return 0;
}

}  // namespace lora_train::app

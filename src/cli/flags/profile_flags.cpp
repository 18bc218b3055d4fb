#include "profile_flags.h"

#include <algorithm>
#include <filesystem>

#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/convert/convert.h"
#include "lora_train/launch/local_ranks.h"
#include "lora_train/storage/run_names.h"
#include "open_model.h"
#include "output/standard_output.h"

namespace lora_train::cli {
namespace {

/// The place of words that stand alone on the command line, other than key=value.
bool is_file_name(const std::string& word) { return word.find('=') == std::string::npos; }

/// The name of a setting in messages.
std::string in_short(const std::string& setting) {
  constexpr std::size_t kLongest = 40;
  return setting.size() <= kLongest ? setting : setting.substr(0, setting.find('=')) + "=...";
}

launch::LocalRanks this_program(const std::vector<std::string>& arguments, int num_ranks) {
  launch::LocalRanks ranks{{std::filesystem::read_symlink("/proc/self/exe").string()}, num_ranks};
  ranks.command.insert(ranks.command.end(), arguments.begin(), arguments.end());
  return ranks;
}

}  // namespace

ProfileFlags::ProfileFlags(CommandParser& parser, const std::vector<KeyFlag>& key_flags)
    : parser_(parser), key_flags_(key_flags), key_values_(key_flags.size()) {
  parser.add_list("--profile,--config", profiles_, "FILE",
                  "profile file, or name of a shipped profile; repeatable, later files win");
  parser.add_list("--set", settings_, "KEY=VALUE",
                  "set a key, overriding the files: a.b[0].c=v, datasets[+].path=x; repeatable");
  for (std::size_t i = 0; i < key_flags_.size(); ++i) {
    key_options_.push_back(parser.app().add_option(key_flags_[i].flag, key_values_[i], key_flags_[i].help));
  }
  parser.add("settings", trailing_, "KEY=VALUE | FILE", "same as --set, or as --profile if it has no \"=\"");
  parser.accept_keys(overrides_);
  parser.find_more_mistakes([this](Findings& findings) {
    try {
      load_profile(sources(), findings);
    } catch (const Error&) {  // reported once the flags are right
    }
  });
  parser.app().footer("Any key of a profile is a flag too: --lora-r 8. Keys: lora-train check --keys");
}

std::vector<std::string> ProfileFlags::profiles() const {
  std::vector<std::string> names = profiles_;
  std::copy_if(trailing_.begin(), trailing_.end(), std::back_inserter(names), is_file_name);
  return names;
}

void ProfileFlags::refuse_folders() const {
  std::error_code code;
  for (const std::string& word : profiles()) {
    if (!std::filesystem::is_directory(word, code)) continue;
    const bool takes_adapter = parser_.app().get_option_no_throw("--adapter") != nullptr;
    const std::string own = (std::filesystem::path(word) / storage::kProfileFile).string();
    parser_.refuse(word, "is a folder, not a profile." +
                             (takes_adapter ? fmt::format(" To use a run or a PEFT folder: --adapter {}.", word)
                              : std::filesystem::exists(own, code) ? fmt::format(" The profile of that run: {}.", own)
                                                                   : ""));
  }
}

void ProfileFlags::refuse_split_lists(const ProfileSources& sources) const {
  const std::vector<KnownName> known = known_names();
  const auto is_list = [&](const Override& given) {
    return std::ranges::find(known, given.path, &KnownName::name)->takes_commas;
  };
  const auto list = std::ranges::find_if(overrides_, is_list);
  if (std::ranges::count_if(overrides_, is_list) != 1) return;  // else it is unknown whose the words are
  std::string items = list->value;
  for (const std::string& word : trailing_) {
    std::error_code code;
    if (!is_file_name(word) || is_configuration(word) || std::filesystem::exists(word, code) ||
        find_shipped(word, sources.shipped))
      continue;
    items += (items.ends_with(',') ? "" : ",") + word;
  }
  if (items.size() > list->value.size())
    parser_.refuse(list->where, fmt::format("is followed by several words; a list is one: {} {}.", list->where, items));
}

bool ProfileFlags::is_empty() const {
  return profiles_.empty() && settings_.empty() && trailing_.empty() && overrides_.empty() &&
         std::ranges::all_of(key_options_, [](const CLI::Option* option) { return option->count() == 0; });
}

ProfileSources ProfileFlags::sources() const {
  refuse_folders();
  ProfileSources sources;
  sources.profiles = profiles();
  sources.shipped = {program_folder() / "configs"};
  sources.tool_of_key = tool_of_key;
  refuse_split_lists(sources);
  sources.why_not_gpu = [](const std::string& name) { return device::why_not_one_gpu(shipped_gpus(), name); };
  for (const auto& setting : settings_) sources.overrides.push_back(parse_override(setting));
  for (const auto& setting : trailing_) {
    if (!is_file_name(setting)) sources.overrides.push_back(parse_override(setting, in_short(setting)));
  }
  sources.overrides.insert(sources.overrides.end(), overrides_.begin(), overrides_.end());
  for (std::size_t i = 0; i < key_flags_.size(); ++i) {
    if (key_options_[i]->count() == 0) continue;
    sources.overrides.push_back(flag_override(key_flags_[i].key, key_values_[i], key_flags_[i].flag));
  }
  // Settings that reach into a value come after the flag that sets it.
  std::ranges::stable_partition(sources.overrides, [](const Override& override) {
    return override.path.find_first_of("[.") == std::string::npos;
  });
  return sources;
}

bool ProfileFlags::are_shipped() const {
  const ProfileSources known = sources();
  return !known.profiles.empty() &&
         std::all_of(known.profiles.begin(), known.profiles.end(), [&](const std::string& name) {
           std::error_code code;
           return !std::filesystem::is_regular_file(name, code) && find_shipped(name, known.shipped);
         });
}

std::vector<std::string> as_arguments(const ProfileSources& sources) {
  std::vector<std::string> arguments;
  for (const std::string& file : sources.profiles) arguments.insert(arguments.end(), {"--profile", file});
  for (const Override& setting : sources.overrides) {
    if (setting.literal) {
      arguments.insert(arguments.end(), {setting.where, setting.value});
    } else {
      arguments.insert(arguments.end(), {"--set", fmt::format("{}={}", setting.path, setting.value)});
    }
  }
  return arguments;
}

std::vector<device::GpuFacts> shipped_gpus() { return device::read_gpu_table(program_folder() / "configs/gpus.json"); }

std::optional<device::GpuFacts> target_gpu(const Profile& profile) {
  if (profile.run.target_gpu.empty()) return std::nullopt;
  const std::vector<device::GpuFacts> found = device::find_gpus(shipped_gpus(), profile.run.target_gpu);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

LoadedProfile load_and_log(const ProfileSources& sources) {
  Findings findings;
  LoadedProfile loaded = load_and_log(sources, findings);
  findings.throw_mistakes();
  return loaded;
}

LoadedProfile load_and_log(const ProfileSources& sources, Findings& findings) {
  LoadedProfile loaded = load_profile(sources, findings);
  std::string& start = loaded.profile.adapter.init_adapter;
  start = adapter_folder(start);
  warn_of_older_result(start);
  for (const auto& note : loaded.notes) log_info(note);
  for (const auto& warning : loaded.warnings) log_warning(warning);
  return loaded;
}

RanksFlag::RanksFlag(CommandParser& parser, const launch::World& world, const std::string& help)
    : parser_(parser), world_(world) {
  parser.add_integer("--nproc", num_ranks_, 1, 1024, help);
}

bool RanksFlag::starts_ranks() const {
  if (num_ranks_ > 1 && world_.launcher == launch::Launcher::kNone) return true;
  if (num_ranks_ > 1 && world_.launcher != launch::Launcher::kNproc) {
    parser_.refuse("--nproc", std::string(to_string(world_.launcher)) +
                                  " has started this process already; let only one of them start the ranks.");
  }
  if (world_.rank == 0) return false;
  silence_standard_output();
  set_log_rank(world_.rank);
  if (parser_.common().log_level.empty()) set_log_level(LogLevel::kError);
  return false;
}

int RanksFlag::start(const std::string& command, const std::vector<std::string>& arguments) const {
  launch::LocalRanks ranks = this_program({command}, num_ranks_);
  ranks.command.insert(ranks.command.end(), arguments.begin(), arguments.end());
  return launch::run_local_ranks(ranks);
}

int start_program(const std::vector<std::string>& arguments, int num_ranks, bool* has_signal) {
  std::vector<int> signals;
  const int code = launch::run_local_ranks(this_program(arguments, num_ranks), &signals);
  if (signals.size() > 1) throw Killed{128 + signals.back()};
  if (has_signal != nullptr) *has_signal = !signals.empty();
  return code;
}

}  // namespace lora_train::cli

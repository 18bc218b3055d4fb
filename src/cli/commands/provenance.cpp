#include "provenance.h"

#include <sys/utsname.h>

#include <algorithm>

#include "engine/engine_loader.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/shell_line.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/device/host.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

std::string operating_system() {
  struct utsname system {};
  return ::uname(&system) == 0 ? std::string(system.sysname) + " " + system.release : "";
}

/// "my.yaml" of "my.yaml:3"; empty if no line of a file set the key.
std::string file_of(const std::string& origin) {
  const std::size_t colon = origin.rfind(':');
  const bool is_place = colon != std::string::npos && colon + 1 < origin.size() &&
                        origin.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return is_place ? origin.substr(0, colon) : "";
}

bool is_shipped(const std::string& file) {
  std::error_code code;
  return !file.empty() && fs::equivalent(fs::path(file).parent_path(), program_folder() / "configs", code);
}

/// What shipped profiles alone would say of the keys that the profile has another value for.
report::NamedTexts base_values(const std::vector<std::string>& base_files, const Profile& profile) {
  report::NamedTexts values;
  if (base_files.empty()) return values;
  ProfileSources sources;
  sources.profiles = base_files;
  sources.needs_model = sources.needs_datasets = false;
  Mistakes ignored;
  for (const auto& key : diff_profiles(load_profile(sources, ignored).profile, profile))
    values.emplace_back(key.key, key.old_value);
  return values;
}

}  // namespace

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
      {"cpu", host.cpu_model + " (" + std::to_string(host.num_cores) + (host.num_cores == 1 ? " core)" : " cores)")},
      {"host_memory", format_bytes(static_cast<double>(host.memory_bytes))}};
  for (const auto& [key, origin] : loaded.origin) {
    if (origin == "default") continue;
    provenance.set_by.emplace_back(key, origin);
    const std::string file = file_of(origin);
    std::vector<std::string>& bases = provenance.base_files;
    if (is_shipped(file) && std::find(bases.begin(), bases.end(), file) == bases.end()) bases.push_back(file);
  }
  provenance.base_values = base_values(provenance.base_files, loaded.profile);
  return provenance;
}

}  // namespace lora_train::cli

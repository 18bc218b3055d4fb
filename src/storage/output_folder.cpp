#include "lora_train/storage/output_folder.h"

#include <algorithm>
#include <array>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFlag = "--output-dir";
constexpr const char* kAdapterConfig = "adapter_config.json";

bool is_licence(const std::string& name) {
  constexpr std::array<const char*, 4> kStarts = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  return std::any_of(kStarts.begin(), kStarts.end(), [&](const char* start) { return name.starts_with(start); });
}

bool is_companion(const std::string& name) {
  constexpr std::array<const char*, 5> kEnds = {".json", ".txt", ".jinja", ".model", ".tiktoken"};
  if (name.starts_with(".") || name.ends_with(".index.json")) return false;
  return is_licence(name) ||
         std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return name.ends_with(end); });
}

/// The path without links, "." and a trailing slash. Its last part need not exist.
fs::path full_path(const fs::path& requested) {
  fs::path path = fs::weakly_canonical(fs::absolute(requested));
  return path.has_filename() ? path : path.parent_path();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [at, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end();
}

/// Refuses to overwrite a folder that holds anything but a model or adapter.
void check_overwritten(const fs::path& folder, OutputKind kind) {
  const bool is_model = kind == OutputKind::kModel;
  const char* const kept =
      "--overwrite replaces a whole folder, and only one with nothing else in it: choose another one";
  if (!fs::exists(folder / (is_model ? "config.json" : kAdapterConfig))) {
    throw ConfigError(folder.string(),
                      std::string(is_model ? "is not a model folder. " : "is not an adapter folder. ") + kept);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours =
        is_companion(name) || name.ends_with(".safetensors") || name.ends_with(".index.json") || name == "README.md";
    const bool is_of_the_other = is_model && name == kAdapterConfig;
    if (!is_ours || is_of_the_other || !entry.is_regular_file()) {
      throw ConfigError(folder.string(), "holds \"" + name + "\". " + kept);
    }
  }
}

}  // namespace

fs::path claim_output(const fs::path& requested, OutputKind kind, const std::vector<fs::path>& inputs, bool overwrite) {
  const fs::path folder = full_path(requested);
  for (const auto& input : inputs) {
    if (is_inside(full_path(input), folder)) {
      throw ConfigError(kFlag, folder.string() + (full_path(input) == folder ? " is" : " holds") +
                                   " what this command reads; choose another folder");
    }
  }
  if (fs::is_symlink(folder)) {  // full_path has followed every other one
    throw ConfigError(folder.string(), "is a link that leads nowhere; a folder was expected");
  }
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw ConfigError(folder.string(), "is a file; a folder was expected");
  }
  if (fs::exists(folder) && !fs::is_empty(folder)) {
    if (!overwrite) {
      throw ConfigError(folder.string(), "the output folder is not empty: choose another one, or pass --overwrite");
    }
    check_overwritten(folder, kind);
  }
  make_folders(folder.parent_path());
  delete_temporaries(folder.parent_path(), [&](const std::string& name) { return name == folder.filename().string(); });
  return folder;
}

std::vector<std::string> companion_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_companion(name) && entry.is_regular_file()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

FileToWrite copy_of(const fs::path& file) {
  require_regular_file(file);
  return {file.filename().string(), read_file(file)};
}

}  // namespace lora_train::storage

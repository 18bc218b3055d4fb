#include "lora_train/run_folder/names.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_marker.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEventFile = "events.out.tfevents.";
/// Of adapter/ and model/, besides the tokenizer.
constexpr const char* kResultFiles[] = {
    "adapter_config.json", "adapter_model.safetensors", "base_model.json",       "README.md",
    "config.json",         "model.safetensors",         "generation_config.json"};

bool is_one_of(const std::string& name, const auto& names) {
  return std::count(std::begin(names), std::end(names), name) > 0;
}

}  // namespace

bool is_run_file(const std::string& name) {
  return step_of(name) || is_one_of(name, storage::kReportFiles) || name == storage::kReportFolder ||
         is_one_of(name, storage::kResultFolders) || name == storage::kMarkerFile;
}

bool is_result_of_run(const fs::path& folder, const std::string& name) {
  if (!storage::read_marker(folder) || path_kind(folder / "profile.yaml") != PathKind::kFile) return false;
  try {
    return name == result_name(load_written_profile(folder / "profile.yaml").adapter.kind);
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> own_entries(const fs::path& folder) {
  const std::string actual = folder.filename().string();
  const std::string name = storage::name_of_temporary_folder(actual).value_or(actual);
  if (step_of(name)) return checkpoint_entries(folder);
  return storage::own_files(folder, [&](const std::string& entry) {
    if (name == storage::kReportFolder) return entry.starts_with(kEventFile);
    return is_one_of(entry, kResultFiles) || is_one_of(entry, storage::kTokenizerFiles);
  });
}

std::vector<std::string> files_of_run(const fs::path& folder) {
  if (!storage::read_marker(folder)) return {};
  std::vector<std::string> names;
  const auto add_if_there = [&](const std::string& name) {
    if (path_kind(folder / name) != PathKind::kNone) names.push_back(name);
  };
  for (const auto& checkpoint : list(folder)) names.push_back(checkpoint.filename().string());
  for (const char* name : storage::kResultFolders) {
    if (is_result_of_run(folder, name)) add_if_there(name);
  }
  for (const char* name : storage::kReportFiles) add_if_there(name);
  add_if_there(storage::kReportFolder);
  names.emplace_back(storage::kMarkerFile);
  return names;
}

}  // namespace lora_train::run_folder

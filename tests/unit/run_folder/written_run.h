// A run that wrote a checkpoint, and a command that asks for its folder.
#pragma once

#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/run_marker.h"
#include "support/small_checkpoint.h"

namespace lora_train::run_folder {

/// Each call of a function that takes an OutputRequest sees a copy of the profile.
struct Asked {
  Profile profile;
  std::vector<std::string> allow_changed = {};
  bool overwrite = false;
  Profile decided = {};  ///< that copy, as the last call left it

  operator OutputRequest() { return {decided = profile, allow_changed, overwrite}; }
};

inline Asked request_for(const std::filesystem::path& folder) {
  Asked request;
  request.profile.model.path = std::string("some-model");
  request.profile.data.datasets.emplace_back().path = std::string("rows.jsonl");
  request.profile.run.output_dir = folder.string();
  return request;
}

inline void put_run(const Asked& request, std::int64_t step) {
  const std::filesystem::path folder = request.profile.run.output_dir;
  if (!storage::read_marker(folder)) storage::write_new_marker(folder, request.overwrite);
  write_file_atomic(folder / "run.log", "");
  write_file_atomic(folder / "profile.yaml", to_yaml(request.profile));
  write_file_atomic(folder / "metrics.jsonl", "");
  if (step == 0) return;
  const testing_support::SmallCheckpoint made(step);
  Contents contents = made.contents();
  contents.profile_yaml = to_yaml(request.profile);
  save(folder, contents);
}

}  // namespace lora_train::run_folder

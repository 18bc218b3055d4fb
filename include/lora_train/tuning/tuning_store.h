// Where choices made by measuring are kept: as text in the checkpoint (and on its way to other processes), and in a file of
// the user's cache folder. Text of another machine, of other versions or that cannot be read gives an empty table and one
// line in the log: then it is measured anew.
#pragma once

#include <filesystem>
#include <string>

#include "lora_train/kernels/cuda_library.h"
#include "lora_train/kernels/tuning.h"

namespace lora_train::tuning {

/// What choices hold for.
struct TuningMachine {
  std::string gpu;       ///< "NVIDIA H200"
  std::string versions;  ///< "cublasLt 130002, cuDNN 91900, ..."

  bool operator==(const TuningMachine&) const = default;
};
TuningMachine tuning_machine(const std::string& gpu_name, const kernels::CudaVersions& versions);

/// A JSON object in one line.
std::string tuning_text(const TuningMachine& machine, const kernels::TuningTable& table);
/// `where` names the text in the log. Empty text is an empty table without a word.
kernels::TuningTable parse_tuning(const std::string& text, const TuningMachine& machine, const std::string& where);

/// tuning-<gpu>-<hash of the versions>.json in $XDG_CACHE_HOME/lora-train, else ~/.cache/lora-train; empty where there is
/// neither.
std::filesystem::path tuning_cache_file(const TuningMachine& machine);

/// What processes before this one have measured. A file that is not there is an empty table.
kernels::TuningTable read_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine);
/// Adds to what the file says by now, in one step: of two processes that do so at once, one's choices may be missing
/// afterwards, and are measured again. What the disk refuses is a line in the log.
void add_to_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine,
                         const kernels::TuningTable& table);

}  // namespace lora_train::tuning

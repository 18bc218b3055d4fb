// Stores tuning choices: as text in the checkpoint (and for other processes), and in a file in the user's cache folder. Text
// from another machine or other versions, and text that cannot be parsed, gives an empty table and one line in the log; the
// choices are then measured again.
#pragma once

#include <filesystem>
#include <string>

#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/tuning.h"

namespace lora_train::plan {

/// The machine for which choices are valid.
struct TuningMachine {
  std::string gpu;       ///< "NVIDIA H200"
  std::string versions;  ///< "cublasLt 130002, cuDNN 91900, ..."

  bool operator==(const TuningMachine&) const = default;
};
TuningMachine tuning_machine(const std::string& gpu_name, const kernels::CudaVersions& versions);

/// One line of JSON.
std::string tuning_text(const TuningMachine& machine, const kernels::TuningTable& table);
/// `where` names the text in the log. Empty text gives an empty table and no log line.
kernels::TuningTable parse_tuning(const std::string& text, const TuningMachine& machine, const std::string& where);

/// $XDG_CACHE_HOME/lora-train, else ~/.cache/lora-train; empty if neither variable is set.
std::filesystem::path cache_folder();
/// A GPU's name with "-" for all but letters and digits.
std::string name_in_file(const std::string& gpu);

/// tuning-<gpu>-<hash of the versions>.json in cache_folder(); empty if there is none.
std::filesystem::path tuning_cache_file(const TuningMachine& machine);

/// The measurements of earlier processes. A missing file gives an empty table.
kernels::TuningTable read_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine);
/// Reads the file, adds the table and replaces the file atomically. If two processes do so at once, the choices of one may be
/// lost; they are measured again. An I/O error is only logged.
void add_to_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine,
                         const kernels::TuningTable& table);

}  // namespace lora_train::plan

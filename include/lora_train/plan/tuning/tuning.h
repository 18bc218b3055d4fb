// Autotuning: before step 1, a run on a GPU measures and chooses the attention backend, the rows of a loss chunk, and
// the algorithms of its GEMMs (docs/gpu.md). Measures nothing on a CPU or with deterministic: true.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/tuning.h"
#include "lora_train/kernels/gemm/gemm.h"

namespace lora_train {
struct RunSection;
namespace plan {
struct RunDevice;
}
}  // namespace lora_train

namespace lora_train::plan {

// Choices are stored as text in the checkpoint (and for other processes), and in a file in the user's cache folder.
// Text that cannot be parsed or comes from another machine or other versions gives an empty table and one log line; the
// choices are then measured again.

/// The machine that choices are valid for.
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
/// A GPU's name with "-" for everything but letters and digits.
std::string name_in_file(const std::string& gpu);

/// tuning-<gpu>-<hash of the versions>.json in cache_folder(); empty if there is none.
std::filesystem::path tuning_cache_file(const TuningMachine& machine);

/// The measurements of earlier processes. A missing file gives an empty table.
kernels::TuningTable read_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine);
/// Reads the file, adds the table and replaces the file atomically. If two processes do so at once, the choices of one
/// may be lost and are measured again. Only logs an I/O error.
void add_to_tuning_cache(const std::filesystem::path& file, const TuningMachine& machine,
                         const kernels::TuningTable& table);

/// The choices of a run, from its checkpoint, from earlier runs and from its own measurements.
class RunTuning {
 public:
  /// `known`: text() from the checkpoint, or from the process that chose for all; may be empty. Without a stopwatch,
  /// measures nothing and ignores earlier runs on this machine.
  RunTuning(TuningMachine machine, const std::string& known, const kernels::Stopwatch& stopwatch);

  kernels::Tuner& tuner() { return tuner_; }
  /// All choices, for the checkpoint and for other processes.
  std::string text() const { return tuning_text(machine_, tuner_.table()); }
  /// Stores new measurements for later runs, and logs how many choices came from each source.
  void finish() const;

 private:
  TuningMachine machine_;
  std::filesystem::path cache_file_;
  kernels::Tuner tuner_;
};

/// True if a run tunes.
bool makes_choices(const RunSection& section, const RunDevice& device);

/// Null if there is nothing to measure.
std::unique_ptr<RunTuning> start_tuning(const RunSection& section, const RunDevice& device, const std::string& known);

/// For a process that measures nothing. `known`: text() of the process that chose.
std::unique_ptr<RunTuning> adopt_tuning(const RunDevice& device, const std::string& known);

/// While the result lives, each new GEMM is tuned at its first call (kernels/gemm/gemm.h). Null if `tuning` is null.
std::unique_ptr<kernels::GemmTuning> tune_products(RunTuning* tuning);

}  // namespace lora_train::plan

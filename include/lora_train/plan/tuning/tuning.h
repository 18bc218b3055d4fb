// Autotuning: before step 1, a run on a GPU measures and chooses the attention backend, the rows of a loss chunk, and the
// algorithms of its GEMMs (docs/gpu.md). On a CPU, and with deterministic: true, nothing is measured.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/plan/tuning/tuning_store.h"

namespace lora_train {

struct RunSection;
namespace runtime {
struct RunDevice;
}
}  // namespace lora_train

namespace lora_train::plan {

/// The choices of a run, from its checkpoint, from earlier runs and from its own measurements.
class RunTuning {
 public:
  /// `known`: text() from the checkpoint, or from the process that chose for all; empty if there is none. Without a stopwatch
  /// nothing is measured, and earlier runs on this machine decide nothing.
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

/// Whether a run tunes.
bool makes_choices(const RunSection& section, const RunDevice& device);

/// Null if nothing is to be measured.
std::unique_ptr<RunTuning> start_tuning(const RunSection& section, const RunDevice& device, const std::string& known);

/// For a process that measures nothing: the choices of another one, as its text().
std::unique_ptr<RunTuning> adopt_tuning(const RunDevice& device, const std::string& known);

/// While the result lives, each new GEMM is tuned at its first call (kernels/gemm/gemm.h). Null if `tuning` is null.
std::unique_ptr<kernels::GemmTuning> tune_products(RunTuning* tuning);

}  // namespace lora_train::plan

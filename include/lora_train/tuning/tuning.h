// What a run on a GPU chooses by measuring, before step 1: the attention backend, the rows of a chunk of the loss head, and
// the algorithms of its matrix products (docs/gpu.md). On a CPU, and with deterministic: true, nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/kernels/gemm_tuning.h"
#include "lora_train/tuning/tuning_store.h"

namespace lora_train {
struct RunSection;
namespace runtime {
struct RunDevice;
}
}  // namespace lora_train

namespace lora_train::tuning {

/// The choices of a run, with what the checkpoint, earlier runs and this one know.
class RunTuning {
 public:
  /// `known`: text() of the checkpoint, or of the process that has chosen for all; empty where there is none.
  RunTuning(TuningMachine machine, const std::string& known, kernels::Stopwatch stopwatch);

  kernels::Tuner& tuner() { return tuner_; }
  /// All choices: for the checkpoint, and for other processes.
  std::string text() const { return tuning_text(machine_, tuner_.table()); }
  /// Gives what was measured to later runs, and says in the log how many choices came from where.
  void finish() const;

 private:
  TuningMachine machine_;
  std::filesystem::path cache_file_;
  kernels::Tuner tuner_;
};

/// Null where nothing is measured.
std::unique_ptr<RunTuning> start_tuning(const RunSection& section, const runtime::RunDevice& device,
                                        const std::string& known);

/// While it lives, products are given their algorithms as they come (kernels/gemm_tuning.h). Null where nothing is measured.
std::unique_ptr<kernels::GemmTuning> tune_products(RunTuning* tuning);

}  // namespace lora_train::tuning

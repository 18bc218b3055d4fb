// What a run on a GPU chooses by measuring, before step 1: the attention backend, the rows of a chunk of the loss head, and
// the algorithms of its matrix products (docs/gpu.md). On a CPU, and with deterministic: true, nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lora_train/kernels/gemm_tuning.h"
#include "tuning_store.h"

namespace lora_train {
struct Profile;
}

namespace lora_train::train {

struct Run;
struct RunDevice;

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
std::unique_ptr<RunTuning> start_tuning(const Profile& profile, const RunDevice& device, const std::string& known);

/// Time between two events in the current stream; of what is over in no time, that of several calls divided by their number.
kernels::Stopwatch cuda_stopwatch(const RunDevice& device);

/// attn_implementation: auto: the backend of run.model.decoder, on the documents of the largest micro-batch. Before buffers
/// are planned; its own are given back.
void tune_attention(Run& run);

/// LossHeadOptions::chunk_bytes for chunks of as many rows as the run had before; nothing where that was not kept or does not
/// fit.
std::optional<std::int64_t> kept_loss_chunk(const Run& run, std::int64_t rows, std::int64_t spare_bytes);

/// LossHeadOptions::chunk_bytes of the run: as the rule has it, or of up to 8192 rows where that is faster for as many
/// supervised tokens as a micro-batch has. Before buffers are planned. spare_bytes: of the device, that no plan asks for.
std::int64_t tune_loss_chunk(Run& run, std::int64_t spare_bytes);

/// While it lives, products are given their algorithms as they come (kernels/gemm_tuning.h). Null where nothing is measured.
std::unique_ptr<kernels::GemmTuning> tune_products(Run& run);

/// All choices are made: to the checkpoints, the cache and the log.
void finish_tuning(Run& run);

}  // namespace lora_train::train

// `bench`: counts and measures a training step of a model with a known shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/plan/step_time.h"
#include "lora_train/report/summary.h"

namespace lora_train::bench {

struct BenchRequest {
  Profile profile;    ///< sizes (max_seq_len, micro_batch_size, ...), adapter, precision, device, kernels
  std::string shape;  ///< a name from model/families/model_config.h
  std::int64_t num_steps = 20, num_warm_up = 5;
  bool mix = false;  ///< packed documents of log-normal lengths, trained on their second half, instead of full rows
  bool count_only = false;  ///< runs no steps; counts one on the meta device
  bool only_steps = false;  ///< measures only steps and memory: no idle time, profile or GEMM rate
  /// Measures rates on the device after any steps, writes them to a file, and counts a step with them.
  bool measure_rates = false;
  std::filesystem::path rates = {};  ///< file of measured rates; if empty, the one in the user's cache folder
  std::optional<model::RowPitch> row_pitch = {};  ///< if empty, as in training
  std::filesystem::path trace = {};               ///< file for a Chrome trace of a step; may be empty
};

/// The calls of one kernel class or one kernel in a step. Bytes and launches as on a GPU.
struct BenchWork {
  std::string name;
  std::int64_t calls = 0, launches = 0, bytes_read = 0, bytes_written = 0, flops = 0;
  std::optional<double> planned_bytes = {};  ///< for a class: bytes that a step must move (plan/step_time.h)
  std::optional<double> ms = {};             ///< measured time per step
  std::optional<double> bound_ms = {};       ///< for a class: its part of BenchBound
};

/// All reads or all writes of one activation buffer by one kernel in a step.
struct BenchPass {
  std::string kernel, operand, buffer;
  std::int64_t times = 0, bytes_read = 0, bytes_written = 0;
};

/// Rates and their source.
struct BenchRates : plan::Rates {
  std::string source = "assumed";                               ///< or the file of the measurement
  std::string gpu = {}, shape = {}, precision = {}, date = {};  ///< of the measurement; assumed rates only have a GPU
  bool is_assumed() const { return source == "assumed"; }
};

/// The time of a step in seconds at BenchResult::rates if nothing overlaps.
struct BenchBound {
  double gemm_s = 0, attention_s = 0, memory_s = 0;
  double total_s() const { return gemm_s + attention_s + memory_s; }
};

struct BenchSpeed {
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;                 ///< median, 10th and 90th percentile
  double tokens_per_s = 0, tokens_per_s_p10 = 0, tokens_per_s_p90 = 0;  ///< tokens without padding
  double peak_memory_gib = 0;          ///< of tensors on the GPU, from rehearsal to last step; 0 on a CPU
  double startup_peak_memory_gib = 0;  ///< the same before that: creating the weights, tuning
  double peak_host_memory_gib = 0;
  std::optional<double> idle_share = {};        ///< on a GPU: share of the step that it was idle
  std::optional<double> gemm_flops_per_s = {};  ///< rate of the step's GEMMs without adapters, in this process
  std::optional<double> gemm_share = {};        ///< required FLOPs of the step at that rate / step time
  std::optional<double> linears_share =
      {};  ///< required FLOPs of the linears at that rate / time in classes gemm and lora
  double first_loss = 0, last_loss = 0;
};

struct BenchResult {
  std::string shape, device, precision, recompute;
  std::string row_pitch;  ///< "exact" or "padded"
  std::int64_t max_seq_len = 0, micro_batch_size = 0, global_batch_size = 0;
  std::int64_t tokens = 0, supervised_tokens = 0, documents = 0;  ///< of the counted step
  plan::RequiredFlops required;
  std::vector<BenchWork> classes, kernels;
  std::vector<BenchPass> passes;  ///< passes over activations
  double planned_bytes = 0;       ///< for all classes except GEMMs and attention
  double counted_bytes = 0;       ///< the same, as counted; includes residuals that GEMMs read
  double executed_flops = 0;
  BenchRates rates;
  BenchBound bound;
  std::optional<BenchSpeed> speed = {};  ///< empty with count_only
  report::StepCapture cuda_graphs = {};  ///< of the measured steps
};

/// Counts the work of a step of a shape and, unless count_only is set, measures it. Throws Error.
BenchResult run_bench(const BenchRequest& request);

}  // namespace lora_train::bench

// `plan`: memory, time and cost of a run on GPUs that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/device/gpu_table.h"

namespace lora_train::bench {

/// What a run on some GPU has reached, to compare with what would have been planned for it.
struct PastRun {
  std::string folder = {};  ///< in messages
  Profile profile = {};     ///< as the run wrote it: its model and data are read again
  std::string gpu = {};     ///< as the driver calls it; empty: this machine's CPU
  int num_gpus = 1;
  double tokens_per_s = 0;  ///< of its steps, without evaluations
};

struct ForecastRequest {
  Profile profile = {};
  std::string shape =
      {};  ///< a name from model/families/model_config.h in place of the profile's model; empty: a folder
  std::vector<device::GpuFacts> gpus = {};
  std::vector<int> counts = {};  ///< of GPUs
  /// Documents of that many tokens each in place of the profile's data; 0: read it.
  std::int64_t num_documents = 0, tokens_per_document = 0;
  std::vector<PastRun> past_runs = {};  ///< those on a GPU of the request, in the profile's precision, scale its times
};

/// Of check_fit().
struct FitRequest {
  Profile profile = {};
  device::GpuFacts gpu = {};
};

/// The training data, as an epoch sees it.
struct DataFacts {
  std::int64_t num_documents = 0, num_tokens = 0, num_supervised = 0;
  std::int64_t num_eval_tokens = 0;  ///< of one evaluation
  std::int64_t max_seq_len = 0;
  double keys_per_query = 0;  ///< keys that a token sees on average, itself included
  bool are_stated = false;
};

/// Bytes on each GPU, by use.
struct MemoryParts {
  std::int64_t weights = 0;       ///< of the base, as they are stored
  std::int64_t quantization = 0;  ///< more than that, for layers that are decoded
  std::int64_t adapter = 0;       ///< trained parameters and their gradients
  std::int64_t optimizer = 0, activations = 0;
  std::int64_t workspace = 0;  ///< loss head, micro-batches, attention and products
  std::int64_t program = 0;    ///< on a CPU: LibTorch with its tables, and the copy from which a checkpoint is written
  std::int64_t total() const {
    return weights + quantization + adapter + optimizer + activations + workspace + program;
  }
};

/// The run on so many GPUs of a kind. Where it does not fit, it is the smallest one: a row at a time, fully recomputed unless the
/// profile says otherwise.
struct Forecast {
  std::string gpu = {};
  int num_gpus = 1;
  bool fits = true;
  std::vector<std::string> ways_to_fit =
      {};  ///< where it does not: keys and values that would change that (plan/target_gpu.h)
  MemoryParts memory = {};
  std::int64_t memory_limit = 0;  ///< bytes that a run may plan on each GPU
  std::int64_t least_memory = 0;  ///< bytes that the same training needs at least (plan::with_least_memory)
  std::int64_t micro_batch_size = 0, global_batch_size = 0, num_steps = 0;
  std::string recompute = {};  ///< "off", "full", "full, then off"
  double tokens_per_s = 0, step_s = 0;
  double hours = 0, hours_low = 0, hours_high = 0;  ///< steps and evaluations; not installing, downloading and loading
  std::optional<double> cost_usd = {};              ///< empty: a CPU without gpu_price_per_hour
  std::int64_t checkpoint_bytes = 0;                ///< trained values and optimizer state
  bool is_measured = false;  ///< with rates that `bench --measure-rates` found on this kind of GPU; else assumed ones
  int num_past_runs = 0;     ///< by which the times are scaled
};

/// What a save takes: training pauses for a copy of the trained values and the optimizer's state, then goes on while they are
/// written. A save that is due before the last one is on disk waits for it.
struct SaveCost {
  double pause_s = 0, write_s = 0;
  /// Of the time of so many steps, with one save in them.
  double share_of(const Forecast& row, double steps) const {
    const double between_s = steps * row.step_s;
    return (pause_s + (write_s > between_s ? write_s - between_s : 0)) / between_s;
  }
};
inline SaveCost save_cost(const Forecast& row, double disk_gb_s) {
  constexpr double kCopyBytesPerS = 10e9;  // from a GPU, or in host memory
  const auto bytes = static_cast<double>(row.checkpoint_bytes);
  return {bytes / kCopyBytesPerS, bytes / (1e9 * disk_gb_s)};
}

/// One setting changed, on one GPU.
struct Variant {
  std::string setting = {};               ///< "base_precision: nf4"; "as the profile says"
  std::optional<Forecast> forecast = {};  ///< empty where the change is refused
};

struct ForecastResult {
  std::string model = {};  ///< "7,615,616,512 parameters, 28 layers"
  DataFacts data = {};
  std::vector<Forecast> rows = {};      ///< every GPU and count, in the order of the request
  std::vector<Variant> variants = {};   ///< on the cheapest single GPU that fits, or the largest
  std::vector<std::string> notes = {};  ///< of each past run: how near the plan was, or why it is of no use
};

/// Reads config.json, tokenizer and data, no weights; a folder without weights will do. Memory is that of the RunSpec which the run
/// itself would decide on for such a GPU (plan/run_spec.h). Time is the least that its products, attention and memory traffic
/// take at the GPU's rates (plan/step_time.h), and what a program usually loses.
///
/// Throws Error as a run does before it loads weights.
ForecastResult make_forecast(const ForecastRequest& request);

/// Why the run of a profile does not fit a GPU, and what to change, for `check`: plan::misfit() of one rank, without weights.
/// Empty if it fits, and where that cannot be known: the model's folder, or what it needs of its weights, is not there, or
/// max_seq_len is `auto` and the data are missing or more than 16 MiB.
std::string check_fit(const FitRequest& request);

}  // namespace lora_train::bench

// `plan`: memory, time and cost of a run on any GPU, present or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/plan/memory_plan.h"

namespace lora_train::bench {

/// The speed that a run reached on some GPU, to compare with its plan.
struct PastRun {
  std::string folder = {};  ///< for messages
  Profile profile = {};     ///< as the run wrote it; its model and data are read again
  std::string gpu = {};     ///< the driver's name for it; empty for this machine's CPU
  int num_gpus = 1;
  double tokens_per_s = 0;  ///< during steps, without evaluations
};

struct ForecastRequest {
  Profile profile = {};
  std::string shape =
      {};  ///< a name from model/families/model_config.h to use instead of the profile's model; may be empty
  std::vector<device::GpuFacts> gpus = {};
  std::vector<int> counts = {};  ///< numbers of GPUs
  /// Number and length of documents to assume instead of the profile's data; 0 to read the data.
  std::int64_t num_documents = 0, tokens_per_document = 0;
  std::vector<PastRun> past_runs = {};  ///< scale the times of the same GPU and precision
};

/// The training data of an epoch.
struct DataFacts {
  std::int64_t num_documents = 0, num_tokens = 0, num_supervised = 0;
  std::int64_t num_eval_tokens = 0;  ///< per evaluation
  std::int64_t max_seq_len = 0;
  double keys_per_query = 0;  ///< average number of keys that a token sees, itself included
  bool are_stated = false;
};

/// The run on one or more GPUs of a kind. If it does not fit, the smallest version: one row at a time, fully recomputed
/// unless the profile says otherwise.
struct Forecast {
  std::string gpu = {};
  int num_gpus = 1;
  bool fits = true;
  std::vector<std::string> ways_to_fit =
      {};  ///< if it does not fit: keys and values that would make it fit (plan/run_spec.h)
  plan::MemoryPlan memory = {};
  std::int64_t memory_limit = 0;  ///< bytes that a run may plan for on each GPU
  std::int64_t least_memory = 0;  ///< least bytes for the same training (plan::with_least_memory)
  std::int64_t micro_batch_size = 0, global_batch_size = 0, num_steps = 0;
  std::string recompute = {};  ///< "off", "full", "full, then off"
  double tokens_per_s = 0, step_s = 0;
  double hours = 0, hours_low = 0, hours_high = 0;  ///< steps and evaluations; no installing, downloading or loading
  std::optional<double> cost_usd = {};              ///< empty for a CPU without gpu_price_per_hour
  std::int64_t checkpoint_bytes = 0;                ///< trained values and optimizer state
  bool is_measured = false;  ///< uses rates that `bench --measure-rates` found on this kind of GPU, not assumed ones
  int num_past_runs = 0;     ///< past runs that scale the times
};

/// The cost of a save: training pauses to copy the trained values and the optimizer state, then continues while they
/// are written. A save that is due before the last one is on disk waits for it.
struct SaveCost {
  double pause_s = 0, write_s = 0;
  /// Share of the time of `steps` steps that one save among them costs.
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

/// The run on one GPU with one setting changed.
struct Variant {
  std::string setting = {};               ///< "base_precision: nf4"; "as the profile says"
  std::optional<Forecast> forecast = {};  ///< empty if the change is refused
};

struct ForecastResult {
  std::string model = {};  ///< "7,615,616,512 parameters, 28 layers"
  DataFacts data = {};
  std::vector<Forecast> rows = {};      ///< every GPU and count, in the order of the request
  std::vector<Variant> variants = {};   ///< on the cheapest single GPU that fits, or the largest
  std::vector<std::string> notes = {};  ///< per past run: how close the plan was, or why the run was not used
};

/// Reads config.json, tokenizer and data, but no weights; the folder may lack them. Memory comes from the RunSpec that
/// the run would decide on for such a GPU (plan/run_spec.h). Time is the least that its products, attention and memory
/// traffic take at the GPU's rates (plan/step_time.h), plus the usual losses.
///
/// Throws the errors that a run throws before it loads weights.
ForecastResult make_forecast(const ForecastRequest& request);

/// For `check`: says why the run of a profile does not fit a GPU, and what to change: plan::misfit() of one rank,
/// without weights. Empty if it fits or if that cannot be known: the model's folder or the necessary weight files are
/// missing, or max_seq_len is `auto` and the data are missing or larger than 16 MiB.
std::string check_fit(const Profile& profile, const device::GpuFacts& gpu);

}  // namespace lora_train::bench

// The plan of a run: which documents are in which step, known before step 1 for all epochs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lora_train/data/document_store.h"
#include "lora_train/data/packing.h"

namespace lora_train::data {

struct PlanOptions {
  std::int64_t max_seq_len = 0;  ///< capacity of a row in tokens; no document is longer
  bool packing = true;
  bool shuffle = true;  ///< false: the order of the files in every epoch
  std::uint64_t seed = 42;
  std::int64_t global_batch_size = 1;     ///< rows per step, > 0
  std::int64_t micro_batch_size = 1;      ///< rows per micro-batch, > 0; has no influence on what is in a step
  std::optional<double> num_epochs;       ///< > 0; a fraction ends the last epoch early (its steps rounded up)
  std::optional<std::int64_t> max_steps;  ///< > 0; the smaller of the two ends the run; at least one is given
};

struct MicroBatchPlan {
  std::vector<std::uint32_t> documents;         ///< indices into the DocumentStore
  std::vector<std::uint32_t> document_in_step;  ///< ordinal of each in its global step, from 0 (dropout counters)
};

struct StepPlan {
  std::int64_t step = 0;  ///< from 1
  int epoch = 0;          ///< from 0
  std::int64_t num_rows = 0, num_documents = 0, num_tokens = 0;
  std::int64_t num_supervised = 0;  ///< denominator of the loss, > 0
  double epoch_after = 0;           ///< epochs done when this step is done: 1.0 after the last step of the first
  std::vector<MicroBatchPlan> micro_batches;
};

/// The order of all documents in an epoch: 0..n-1 shuffled by Fisher-Yates with Philox numbers of (seed, epoch).
std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle);

/// Deals rows in order into micro-batches of micro_batch_size rows (the last may be smaller). Evaluation uses it on
/// rows in the order of the files.
std::vector<MicroBatchPlan> deal_rows(const std::vector<Row>& rows, std::int64_t micro_batch_size);

/// All documents once, in the order of the files, packed or not: what an evaluation runs through.
std::vector<MicroBatchPlan> plan_evaluation(const DocumentStore& store, std::int64_t max_seq_len, bool packing,
                                            std::int64_t micro_batch_size);

/// Per epoch: order of documents f(seed, epoch) -> packing -> rows -> steps of global_batch_size rows. The last,
/// smaller step of an epoch is kept. Which documents are in step k depends on seed, epoch, data, max_seq_len, packing
/// and global_batch_size only. Nothing to save: a resumed run asks for step k again.
/// The store must outlive the plan and not change. step() may be called from several threads.
class RunPlan {
 public:
  /// Counts the steps of all epochs. Throws DataError when the store is empty, ConfigError when the options are not
  /// as documented above.
  RunPlan(const DocumentStore& store, const PlanOptions& options);
  ~RunPlan();
  RunPlan(RunPlan&&) noexcept;

  std::int64_t total_steps() const;
  /// Steps of each epoch that the run enters, the last one cut by num_epochs or max_steps.
  const std::vector<std::int64_t>& steps_per_epoch() const;
  /// Rows of the first epoch.
  std::int64_t rows_per_epoch() const;
  /// Averages over the first epoch.
  double documents_per_step() const;
  double tokens_per_step() const;
  /// Tokens / (rows x max_seq_len) of the first epoch.
  double packing_efficiency() const;
  /// The plan of step k, 1 <= k <= total_steps(). Epochs are planned on demand; the last one used is kept.
  StepPlan step(std::int64_t k) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lora_train::data

// The plan of a run: which documents are in which step and on which rank, fixed for all epochs before step 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/epoch_rows.h"

namespace lora_train::data {

/// Numbers are those of the whole step, over all ranks; micro_batches are those of this rank.
struct StepPlan {
  std::int64_t step = 0;  ///< from 1
  int epoch = 0;          ///< from 0
  std::int64_t num_rows = 0, num_documents = 0, num_tokens = 0;
  std::int64_t num_supervised = 0;  ///< > 0
  double weight_sum = 0;   ///< of the supervised tokens: denominator of the loss. num_supervised without weights
  double epoch_after = 0;  ///< epochs done when this step is done: 1.0 after the last step of the first
  /// At least one, and the same number on every rank. A micro-batch may be empty if there are too few rows.
  std::vector<MicroBatchPlan> micro_batches;
};

/// All rows of an epoch (from 0): documents chosen by weight, their order, and packing. A pure function of (seed,
/// epoch), the lengths, max_seq_len, packing, shuffle and the ranges; the other options are ignored.
Rows plan_rows(const DocumentStore& store, const PlanOptions& options, int epoch);

/// All documents once, in the order of the files, packed or not: the rows of an evaluation.
std::vector<MicroBatchPlan> plan_evaluation(const DocumentStore& store, std::int64_t max_seq_len, bool packing,
                                            std::int64_t micro_batch_size);

/// Per epoch: order of documents f(seed, epoch) -> packing -> rows -> steps of global_batch_size rows -> ranks. With
/// packing and BatchUnit::kDocuments: order -> steps of global_batch_size documents -> ranks -> packing, each its own. The
/// last, smaller step of an epoch is kept. Which documents are in step k depends on seed, epoch, data, max_seq_len,
/// packing, ranges, global_batch_size and batch_unit only. Nothing to save: a resumed run asks for step k again.
///
/// With one rank, rows stay in order: micro_batch_size to a micro-batch, the last one smaller. With more, each rank
/// gets the same number of rows, give or take one, and of micro-batches; which rows is chosen so that the ranks, and
/// the micro-batches of a rank, cost about the same (most expensive first, each to the cheapest so far).
///
/// Memory: 4 bytes for each document, 4 for each time an epoch sees one and 4 for each row, 8 for each epoch so far; nothing for
/// each step. While an epoch is planned, up to 12 more for each. The store must outlive the plan and not change. step() may be called from several threads.
class RunPlan {
 public:
  /// Counts the steps of num_epochs: with packing and shuffle that packs each of them. With max_steps alone, epochs are
  /// counted as they are reached. Throws StopError on a stop request, DataError if the store
  /// is empty, or so small that the weights choose nothing; ConfigError if the options are not as documented above.
  RunPlan(const DocumentStore& store, const PlanOptions& options);
  ~RunPlan();
  RunPlan(RunPlan&&) noexcept;

  std::int64_t total_steps() const;
  /// 0 if the weights choose nothing in it.
  std::int64_t steps_of_first_epoch() const;
  /// Whether step k, 1 <= k <= total_steps(), is the last of its epoch or of the run.
  bool ends_epoch(std::int64_t k) const;
  /// Rows of the first epoch.
  std::int64_t rows_per_epoch() const;
  /// The most that a rank has in a step of the first epoch.
  std::int64_t most_rows_of_rank() const;
  /// Averages over the first epoch.
  double documents_per_step() const;
  double rows_per_step() const;
  double tokens_per_step() const;
  /// Tokens / (rows x max_seq_len) of the first epoch.
  double packing_efficiency() const;
  /// The plan of step k, 1 <= k <= total_steps(). Epochs are planned on demand; the last one used is kept. Throws StopError on
  /// a stop request.
  StepPlan step(std::int64_t k) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lora_train::data

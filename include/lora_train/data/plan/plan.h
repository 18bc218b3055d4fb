// The plan of a run: which documents are in which step and on which rank, for all epochs, fixed before step 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/epoch_rows.h"

namespace lora_train::data {

struct MicroBatchPlan {
  std::vector<std::uint32_t> documents;         ///< indices into the DocumentStore
  std::vector<std::uint32_t> document_in_step;  ///< each document's ordinal in the global step, from 0 (dropout
                                                ///< counters)
};

/// Numbers are for the whole step, across all ranks; micro_batches are this rank's.
struct StepPlan {
  std::int64_t step = 0;  ///< from 1
  int epoch = 0;          ///< from 0
  std::int64_t num_rows = 0, num_documents = 0, num_tokens = 0;
  std::int64_t num_supervised = 0;  ///< > 0
  double weight_sum = 0;            ///< of the supervised tokens: the loss denominator. num_supervised without weights
  double epoch_after = 0;           ///< epochs done after this step: 1.0 after the last step of the first epoch
  /// At least one, and equally many on every rank. A micro-batch may be empty if there are too few rows.
  std::vector<MicroBatchPlan> micro_batches;
};

/// All rows of an epoch (from 0): documents chosen by weight, their order, and packing. A pure function of (seed,
/// epoch), the lengths, max_seq_len, packing, shuffle and the ranges; ignores the other options.
Rows plan_rows(const DocumentStore& store, const PlanOptions& options, int epoch);

/// The rows of an evaluation: all documents once, in file order, packed or not.
std::vector<MicroBatchPlan> plan_evaluation(const DocumentStore& store, std::int64_t max_seq_len, bool packing,
                                            std::int64_t micro_batch_size);

/// Per epoch: order of documents f(seed, epoch) -> packing -> rows -> steps of global_batch_size rows -> ranks. With
/// packing and BatchUnit::kDocuments: order -> steps of global_batch_size documents -> ranks -> packing on each rank.
/// Keeps the last, smaller step of an epoch. The documents of step k depend only on seed, epoch, data, max_seq_len,
/// packing, ranges, global_batch_size and batch_unit. There is nothing to save: a resumed run asks for step k again.
///
/// With one rank, rows stay in order: micro_batch_size per micro-batch, the last one smaller. With several, each rank
/// gets the same number of rows, give or take one, and of micro-batches; rows are dealt so that the ranks, and the
/// micro-batches of a rank, cost about the same (most expensive first, each to the cheapest so far).
///
/// Memory: 4 bytes per document, 4 per document use in an epoch, 4 per row, 8 per epoch so far; none per step. Planning
/// an epoch takes up to 12 more for each. The store must outlive the plan and not change. Several threads may call
/// step().
class RunPlan {
 public:
  /// Counts the steps of num_epochs; with packing and shuffle, this packs each epoch. With max_steps alone, epochs are
  /// counted when reached. Throws StopError on a stop request, DataError if the store is empty or so small that the
  /// weights choose nothing, ConfigError for a batch, length or weight out of range.
  RunPlan(const DocumentStore& store, const PlanOptions& options);
  ~RunPlan();
  RunPlan(RunPlan&&) noexcept;

  std::int64_t total_steps() const { return total_steps_; }
  /// 0 if the weights choose nothing in the first epoch.
  std::int64_t steps_of_first_epoch() const;
  /// True if step k, 1 <= k <= total_steps(), is the last of its epoch or of the run.
  bool ends_epoch(std::int64_t k) const;
  /// Number of rows in the first epoch (here and below: that is not empty).
  std::int64_t rows_per_epoch() const { return first_.rows; }
  /// The most rows that a rank has in any step of the first epoch.
  std::int64_t most_rows_of_rank() const { return first_.most_rows_of_rank; }
  /// Averages over the first epoch.
  double documents_per_step() const { return ratio(first_.documents, first_.steps); }
  double rows_per_step() const { return ratio(first_.rows, first_.steps); }
  double tokens_per_step() const { return ratio(first_.tokens, first_.steps); }
  /// Tokens / (rows x max_seq_len) in the first epoch.
  double packing_efficiency() const { return ratio(first_.tokens, first_.rows * first_.max_seq_len); }
  /// The plan of step k, 1 <= k <= total_steps(). Plans epochs on demand and keeps the last one used. Throws StopError
  /// on a stop request.
  StepPlan step(std::int64_t k) const;

 private:
  struct State;
  struct Epoch {
    std::int64_t rows = 0, documents = 0, tokens = 0, steps = 0, most_rows_of_rank = 0, max_seq_len = 0;
  };
  static double ratio(std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

  std::unique_ptr<State> state_;
  std::int64_t total_steps_ = 0;
  Epoch first_;
};

}  // namespace lora_train::data

// The plan of a run: which documents are in which step and on which rank, fixed for all epochs before step 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/packing.h"

namespace lora_train::data {

/// Documents begin..end-1 (one dataset) and how often each is seen in an epoch, on average.
struct WeightedRange {
  std::size_t begin = 0, end = 0;
  double weight = 1.0;  ///< > 0
};

struct PlanOptions {
  std::int64_t max_seq_len = 0;  ///< capacity of a row in tokens; no document is longer
  bool packing = DataSection{}.packing;
  bool shuffle =
      DataSection{}.shuffle;  ///< false: the order of the files in every epoch, rows filled one after another
  std::uint64_t seed = static_cast<std::uint64_t>(RunSection{}.seed);
  std::int64_t global_batch_size = 1;       ///< rows or documents per step over all ranks, > 0
  BatchUnit batch_unit = BatchUnit::kRows;  ///< what global_batch_size counts
  std::int64_t micro_batch_size = 1;        ///< rows per micro-batch, > 0; has no influence on what is in a step
  std::optional<double> num_epochs;         ///< > 0; a fraction ends the last epoch early (its steps rounded up)
  std::optional<std::int64_t> max_steps;    ///< > 0; the smaller of the two ends the run; at least one is given
  /// Ranges one after another that cover the store; empty = every document once an epoch. A range of n documents and
  /// weight w goes through its documents again and again, in a new seeded order each time (in the order of the files
  /// without shuffle); epoch e takes documents floor(w n e) .. floor(w n (e + 1)) - 1 of that sequence, so that the
  /// documents of a range are used equally often, give or take one, at every time.
  std::vector<WeightedRange> ranges;
  std::int64_t world_size = 1, rank = 0;  ///< no influence on what documents are in a step
  /// Cost of a token^2 of a document (attention) relative to a token (everything else), for dealing rows to
  /// ranks. About 1 / (12 hidden_size); the default is that of hidden_size 1,365.
  double attention_cost = 1.0 / 16384;
};

struct MicroBatchPlan {
  std::vector<std::uint32_t> documents;         ///< indices into the DocumentStore
  std::vector<std::uint32_t> document_in_step;  ///< ordinal of each in its global step, from 0 (dropout counters)
};

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

/// The order of all documents in an epoch: 0..n-1 shuffled by Fisher-Yates with Philox numbers of (seed, epoch).
std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle);

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

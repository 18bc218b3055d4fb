// The rows of an epoch: documents chosen by weight, shuffled and packed; and how to deal them evenly. Documents in a
// row stay isolated from each other (attention and positions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"
#include "lora_train/config/keys/profile.h"

namespace lora_train::data {

/// A sequence of rows, each with its documents (indices into the DocumentStore). Takes 4 bytes per document and 4 per
/// row.
class Rows {
 public:
  std::size_t size() const { return begins_.size() - 1; }
  /// Documents of row r, 0 <= r < size(), in order. Valid until the next add.
  std::span<const std::uint32_t> operator[](std::size_t r) const {
    return std::span(documents_).subspan(begins_[r], begins_[r + 1] - begins_[r]);
  }
  /// Documents of all rows; each row is a part of it.
  std::span<const std::uint32_t> documents() const { return documents_; }

  void reserve(std::size_t num_documents) { documents_.reserve(num_documents); }
  void add(std::span<const std::uint32_t> documents);

 private:
  std::vector<std::uint32_t> documents_, begins_{0};
};

/// Documents per first-fit-decreasing window. Documents of 50, 200 and 1,500 tokens on average fill rows of 4,096 to
/// 99.5, 99.9 and 99.9%; windows of 2,048 to 98.1, 99.5 and 99.8%. Larger windows gain little and cost more per
/// document (bench/data_bench, packing_efficiency).
inline constexpr std::size_t kPackingWindow = 8192;

/// One row per document, in order.
Rows one_document_a_row(std::span<const std::uint32_t> order);

/// Packs in order: a document that does not fit in the open row opens the next. For data whose order must be kept. Here
/// and below, lengths[d] = tokens of document d, in [1, max_seq_len].
Rows pack_next_fit(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                   std::int64_t max_seq_len);

/// First-fit-decreasing within windows: cuts the order into windows of at most `window` documents, as equal as
/// possible; in each window, takes documents longest first (ties in order) and puts each in the first row with room;
/// then shuffles the rows of the window by `key`, so that a row's content does not affect when it is trained. Each
/// occurrence of a document in the order goes into exactly one row, unsplit; no row exceeds max_seq_len tokens. O(log
/// window) per document.
Rows pack_first_fit_decreasing(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                               std::int64_t max_seq_len, PhiloxKey key, std::size_t window = kPackingWindow);

/// 0..n-1 shuffled by Fisher-Yates; swap i uses the numbers of counter i in the given stream of the key. n below 2^32.
std::vector<std::uint32_t> shuffled(std::size_t n, PhiloxKey key, std::uint32_t stream = 0);

/// Documents begin..end-1 (one dataset) and how often an epoch sees each, on average.
struct WeightedRange {
  std::size_t begin = 0, end = 0;
  double weight = 1.0;  ///< > 0
};

struct PlanOptions {
  std::int64_t max_seq_len = 0;  ///< tokens per row; no document is longer
  bool packing = DataSection{}.packing;
  bool shuffle = DataSection{}.shuffle;  ///< false: file order in every epoch, rows filled sequentially
  std::uint64_t seed = static_cast<std::uint64_t>(RunSection{}.seed);
  std::int64_t global_batch_size = 1;       ///< rows or documents per step across all ranks, > 0
  BatchUnit batch_unit = BatchUnit::kRows;  ///< unit of global_batch_size
  std::int64_t micro_batch_size = 1;        ///< rows per micro-batch, > 0; does not affect which documents are in a
                                            ///< step
  std::optional<double> num_epochs;         ///< > 0; a fraction ends the last epoch early (its steps rounded up)
  std::optional<std::int64_t> max_steps;    ///< > 0; the smaller limit ends the run; at least one must be set
  /// Consecutive ranges that cover the store; empty = every document once per epoch. A range of n documents and weight
  /// w cycles through its documents, in a new seeded order each time (in file order without shuffle); epoch e takes
  /// documents floor(w n e) .. floor(w n (e + 1)) - 1 of that sequence. So at any time, the documents of a range have
  /// been used equally often, give or take one.
  std::vector<WeightedRange> ranges;
  std::int64_t world_size = 1, rank = 0;  ///< do not affect which documents are in a step
  /// Cost of one squared token (attention) relative to one token (everything else) of a document, for dealing rows to
  /// ranks. About 1 / (12 hidden_size); the default is for hidden_size 1,365.
  double attention_cost = 1.0 / 16384;
};

/// The order of all documents in an epoch: 0..n-1 shuffled by Fisher-Yates with Philox numbers from (seed, epoch).
std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle);

/// Number of documents that an epoch (from 0) sees, counting repeats.
std::size_t num_documents_in_epoch(const PlanOptions& options, std::size_t num_documents, int epoch);

/// The documents that an epoch sees, in order.
std::vector<std::uint32_t> documents_of_epoch(const PlanOptions& options, std::size_t num_documents, int epoch);

/// Packs documents in this order into rows as the options say; lengths[d] = tokens of document d. `number`, of an epoch
/// or a step, seeds the shuffling of rows. The only place that chooses a packing method.
Rows pack_rows(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
               const PlanOptions& options, std::uint64_t number);

/// The rows of an epoch, as in plan_rows().
Rows rows_of_epoch(std::span<const std::uint32_t> lengths, const PlanOptions& options, int epoch);

/// Deals items 0..n-1 to num_bins bins: each gets floor or ceil(n / num_bins) items, and total costs are about equal
/// ("longest processing time first": the most expensive item first, each to the cheapest bin with room; ties by
/// number). Returns the items of each bin, ascending. A pure function of its arguments, so every rank computes the same
/// result. O(n log n).
std::vector<std::vector<std::uint32_t>> deal_evenly(std::span<const double> costs, std::size_t num_bins);

}  // namespace lora_train::data

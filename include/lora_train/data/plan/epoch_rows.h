// The rows of an epoch: documents chosen by weight, shuffled, packed into rows, and dealt to the ranks. Documents in a row stay
// isolated from each other (attention and positions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"
#include "lora_train/config/keys/profile.h"

namespace lora_train::data {

/// Rows one after another, each with the documents that it holds (indices into the DocumentStore). 4 bytes a document
/// and 4 a row.
class Rows {
 public:
  std::size_t size() const { return begins_.size() - 1; }
  /// Documents of row r, 0 <= r < size(), in order. Valid until the next add.
  std::span<const std::uint32_t> operator[](std::size_t r) const {
    return std::span(documents_).subspan(begins_[r], begins_[r + 1] - begins_[r]);
  }
  std::size_t num_documents() const { return documents_.size(); }

  void reserve(std::size_t num_documents) { documents_.reserve(num_documents); }
  void add(std::span<const std::uint32_t> documents);

 private:
  std::vector<std::uint32_t> documents_, begins_{0};
};

/// Documents that first-fit-decreasing looks at together. Documents of 50, 200 and 1,500 tokens on average fill rows of
/// 4,096 to 99.5, 99.9 and 99.9%; windows of 2,048 to 98.1, 99.5 and 99.8%, and larger ones gain little more and cost
/// more a document (bench/data_bench, packing_efficiency).
inline constexpr std::size_t kPackingWindow = 8192;

/// Rows of one document each, in order.
Rows one_document_a_row(std::span<const std::uint32_t> order);

/// In order: a document that does not fit into the open row opens the next. For data whose order is to be kept.
/// lengths[d] = tokens of document d, each in [1, max_seq_len]; the same below.
Rows pack_next_fit(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                   std::int64_t max_seq_len);

/// First-fit-decreasing inside windows of the order: the order is cut into windows of at most `window` documents, as
/// equal as they go; in a window documents are taken longest first (ties in order), each into the first row with room;
/// then the rows of the window are shuffled by `key`, so that what is in a row says nothing about when it is trained.
/// A document is in exactly one row for each time it occurs in the order, and never split; no row holds more than
/// max_seq_len tokens. O(log window) a document.
Rows pack_first_fit_decreasing(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                               std::int64_t max_seq_len, PhiloxKey key, std::size_t window = kPackingWindow);

/// 0..n-1 shuffled by Fisher-Yates; swap i draws the numbers of counter i in the given stream of the key. n below 2^32.
std::vector<std::uint32_t> shuffled(std::size_t n, PhiloxKey key, std::uint32_t stream = 0);

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

/// The order of all documents in an epoch: 0..n-1 shuffled by Fisher-Yates with Philox numbers of (seed, epoch).
std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle);

/// How many documents an epoch (from 0) sees, counting those that it sees again.
std::size_t num_documents_in_epoch(const PlanOptions& options, std::size_t num_documents, int epoch);

/// The documents that an epoch sees, in their order.
std::vector<std::uint32_t> documents_of_epoch(const PlanOptions& options, std::size_t num_documents, int epoch);

/// Documents in this order as rows, packed as the options say; lengths[d] = tokens of document d. `number`, of an epoch or a step,
/// decides how rows are shuffled. The one place where a way of packing is chosen.
Rows pack_rows(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
               const PlanOptions& options, std::uint64_t number);

/// The rows of an epoch, as plan_rows() says.
Rows rows_of_epoch(std::span<const std::uint32_t> lengths, const PlanOptions& options, int epoch);

/// Deals items 0..n-1 to num_bins bins: each gets floor or ceil(n / num_bins) of them, and the sums of costs are about
/// equal ("longest processing time first": the most expensive first, each to the cheapest bin that may still take one;
/// ties by number). Returns the items of each bin, ascending. A pure function of its arguments: every rank computes
/// the same. O(n log n).
std::vector<std::vector<std::uint32_t>> deal_evenly(std::span<const double> costs, std::size_t num_bins);

/// Rows begin..end-1 in order, micro_batch_size to a micro-batch; the last may be smaller.
std::vector<MicroBatchPlan> deal_in_order(const Rows& rows, std::size_t begin, std::size_t end,
                                          std::int64_t micro_batch_size);

/// Rows begin..end-1, one step, to options.world_size ranks and the micro-batches of each, both with deal_evenly.
/// Returns those of options.rank. lengths[d] = tokens of document d.
std::vector<MicroBatchPlan> deal_to_rank(const Rows& rows, std::size_t begin, std::size_t end,
                                         const PlanOptions& options, std::span<const std::uint32_t> lengths);

}  // namespace lora_train::data

// The rows of an epoch: documents chosen by weight, shuffled, packed into rows, and dealt to the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/base/ceil_div.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

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

// A step of batch_unit: documents: which documents each rank gets, and how it packs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

struct DocumentStep {
  std::vector<MicroBatchPlan> micro_batches;  ///< of options.rank
  std::int64_t num_rows = 0;                  ///< of all ranks
  std::int64_t most_rows = 0;                 ///< of a rank
};

/// The documents of a step, in the order of the epoch, to options.world_size ranks: each gets as many, give or take one, of about
/// the same cost, and packs its own into rows. (Packed first, a few short documents would fill one row, and one rank alone would
/// have work.) micro_batch_size rows make a micro-batch; every rank has as many micro-batches as the one with the most rows.
/// lengths[d] = tokens of document d.
DocumentStep plan_document_step(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
                                const PlanOptions& options, std::int64_t step);

}  // namespace lora_train::data

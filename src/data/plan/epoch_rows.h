// The rows of an epoch: documents chosen by weight, shuffled, and packed into rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace lora_train::data

// The rows of an epoch: documents chosen by weight, shuffled, and packed into rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lora_train/data/plan.h"

namespace lora_train::data {

/// How many documents an epoch (from 0) sees, counting those that it sees again.
std::size_t num_documents_in_epoch(const PlanOptions& options, std::size_t num_documents, int epoch);

/// The rows of an epoch, as plan_rows() says. lengths[d] = tokens of document d. The one place where a way of packing
/// is chosen.
Rows rows_of_epoch(std::span<const std::uint32_t> lengths, const PlanOptions& options, int epoch);

}  // namespace lora_train::data

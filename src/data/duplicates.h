// Rows that occur more than once.
#pragma once

#include <vector>

#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/ledger.h"

namespace lora_train::data {

/// Counts into `ledger` the training rows that equal an earlier one (kDuplicate) and those that equal a row of an
/// evaluation set (kInValidation). Rows are equal when their ids and labels are, before any cut. Memory: 16 bytes a row.
void count_duplicates(const DocumentStore& train, const std::vector<const DocumentStore*>& evals, Ledger& ledger);

/// The training rows without those that equal an earlier one; counts these into `ledger` (kDroppedDuplicate).
DocumentStore without_duplicates(const DocumentStore& train, Ledger& ledger);

/// The rows of an evaluation set without those that equal a training row; counts these into `ledger` (kDroppedInTraining).
DocumentStore without_training_rows(const DocumentStore& eval, const DocumentStore& train, Ledger& ledger);

}  // namespace lora_train::data

// A micro-batch as flattened documents: what one forward and backward pass sees.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/data/document_store.h"
#include "lora_train/data/plan.h"

namespace lora_train::data {

/// N = tokens of all documents side by side; no padding.
struct MicroBatch {
  std::vector<std::int32_t> ids;               ///< [N]
  std::vector<std::int32_t> positions;         ///< [N], from 0 in each document
  std::vector<std::int32_t> labels;            ///< [N] shifted: the target of token t (ids[t + 1]'s label); -100 = none
  std::vector<std::int32_t> cu_seqlens;        ///< [num_docs + 1], starts with 0, ends with N
  std::vector<std::int32_t> document_in_step;  ///< [num_docs] ordinal of the document in the global step
  std::int64_t max_document_tokens = 0;
  std::int64_t num_supervised = 0;  ///< labels other than -100
};

/// Gathers the documents of a plan. The last label of each document is -100, so nothing is predicted across documents.
MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan);

}  // namespace lora_train::data

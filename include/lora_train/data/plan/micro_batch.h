// A micro-batch as flattened documents: what one forward and backward pass sees.
#pragma once

#include <cstdint>
#include <span>

#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/batch_memory.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

/// N = tokens of all documents side by side; no padding. The parts lie one after another in `storage`, each at a
/// multiple of 64 bytes, so that one copy brings all of them to a device. Whoever built it owns the memory.
struct MicroBatch {
  std::span<const std::int32_t> ids;               ///< [N]
  std::span<const std::int32_t> labels;            ///< [N] shifted: that of token t is ids[t + 1]'s; -100 = none
  std::span<const std::int32_t> positions;         ///< [N], from 0 in each document
  std::span<const std::int32_t> cu_seqlens;        ///< [num_docs + 1], starts with 0, ends with N
  std::span<const std::int32_t> document_in_step;  ///< [num_docs] ordinal of the document in the global step
  std::span<const std::int32_t> storage;           ///< all of these; what lies between the parts is undefined
  std::int64_t max_document_tokens = 0;
  std::int64_t num_supervised = 0;      ///< labels other than -100
  std::span<const float> weights = {};  ///< [N] shifted as labels are: of that token in the loss; empty: all 1
  double weight_sum = 0;                ///< of the supervised tokens
  SoftLabels soft = {};  ///< of the supervised tokens, as wide as the store's; width 0 if the store has none
};

/// Sizes of a micro-batch, and how many micro-batches of the run have them.
struct BatchShape {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;  ///< longest document, in tokens
  std::int64_t count = 1;
};

/// The sizes that build_micro_batch gives this plan. Reads no tokens.
BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& plan);

/// Gathers the documents of a plan into the buffer, which the result points into: valid until the buffer is used again.
/// The last label of each document is -100, so nothing is predicted across documents. An empty plan gives N = 0.
/// Throws ConfigError if N is above 2^31 - 1.
MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan, HostBuffer& buffer);

}  // namespace lora_train::data

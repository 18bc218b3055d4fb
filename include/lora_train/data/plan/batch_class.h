// Batch classes: a few sizes to which a GPU pads the micro-batches of a run, with filler documents that have no target,
// so that the work is captured once per class.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/base/ceil_div.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/micro_batch.h"

namespace lora_train::data {

/// The size to which a class pads its micro-batches. Slots after the last document form filler documents of at most
/// kFillerTokens; any further documents are empty.
struct BatchClass {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;
  bool operator==(const BatchClass&) const = default;
};
constexpr std::int64_t kFillerTokens = 128;
constexpr std::size_t kMaxBatchClasses = 6;
/// A class may enlarge a micro-batch by at most this share plus kFillerTokens; otherwise the micro-batch keeps its own
/// size.
constexpr double kMaxFilledShare = 0.25;

/// Number of documents that fill `num_tokens` slots.
constexpr std::int64_t num_fillers(std::int64_t num_tokens) { return ceil_div(num_tokens, kFillerTokens); }

/// At most kMaxBatchClasses classes, ascending by num_tokens, that minimise the padding of the run's micro-batches.
/// None has more than max_tokens. Depends on the shapes alone, not on their order.
std::vector<BatchClass> choose_batch_classes(const std::vector<BatchShape>& shapes, std::int64_t max_tokens);

/// Index of the smallest class that fits the shape without too much padding; -1 if there is none.
int find_batch_class(const std::vector<BatchClass>& classes, const BatchShape& shape);

/// Number of steps surveyed before step 1 for micro-batch sizes: the whole run, unless it is longer. A later
/// micro-batch of a longer run may be larger than all of them and then fits no class.
constexpr std::int64_t kMaxSurveyedSteps = 1'000'000;
std::int64_t num_surveyed_steps(const RunPlan& plan);

/// The shapes of all micro-batches in the surveyed steps; equal shapes are counted together.
std::vector<BatchShape> batch_shapes(const DocumentStore& store, const RunPlan& plan);
/// As above, for evaluations: plans[i] is the plan of stores[i].
std::vector<BatchShape> batch_shapes(const std::vector<NamedStore>& stores,
                                     const std::vector<std::vector<MicroBatchPlan>>& plans);

}  // namespace lora_train::data

// Few sizes for the micro-batches of a run: a GPU computes every micro-batch in one of them, filled up with documents that
// count for nothing, so that its work can be recorded once for each.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/data/document_store.h"
#include "lora_train/data/plan.h"

namespace lora_train::data {

/// Sizes of a micro-batch, and how many of the run have them.
struct BatchShape {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;  ///< longest document, in tokens
  std::int64_t count = 1;
};

/// What micro-batches of a class are filled up to. Slots behind the last document form filler documents of at most
/// kFillerTokens; documents behind these are empty.
struct BatchClass {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;
  bool operator==(const BatchClass&) const = default;
};
constexpr std::int64_t kFillerTokens = 128;
constexpr std::size_t kMaxBatchClasses = 6;
/// A class may make a micro-batch larger by this share, and by kFillerTokens; else it is computed as it comes.
constexpr double kMaxFilledShare = 0.25;

/// Documents that fill `num_tokens` slots.
constexpr std::int64_t num_fillers(std::int64_t num_tokens) { return (num_tokens + kFillerTokens - 1) / kFillerTokens; }

/// At most kMaxBatchClasses, by num_tokens ascending, that make the run's micro-batches larger by as few tokens as such classes
/// can. None has more than max_tokens. Depends on the shapes alone, not on their order.
std::vector<BatchClass> choose_batch_classes(const std::vector<BatchShape>& shapes, std::int64_t max_tokens);

/// The index of the smallest class that the shape fits into without growing too much; -1: none.
int find_batch_class(const std::vector<BatchClass>& classes, const BatchShape& shape);

BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& micro_batch);

/// Of every micro-batch of the run; equal ones are counted. Goes through the whole plan.
std::vector<BatchShape> batch_shapes(const DocumentStore& store, const RunPlan& plan);

}  // namespace lora_train::data

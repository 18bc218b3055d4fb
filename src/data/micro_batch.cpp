#include "lora_train/data/micro_batch.h"

#include <algorithm>

namespace lora_train::data {
namespace {

void add_document(MicroBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) {
  batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
  batch.labels.insert(batch.labels.end(), labels.begin() + 1, labels.end());
  batch.labels.push_back(kIgnoredLabel);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    batch.positions.push_back(static_cast<std::int32_t>(t));
  }
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
}

}  // namespace

MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan) {
  std::size_t num_tokens = 0;
  for (const std::uint32_t document : plan.documents) {
    num_tokens += store.ids(document).size();
  }
  MicroBatch batch;
  batch.ids.reserve(num_tokens);
  batch.positions.reserve(num_tokens);
  batch.labels.reserve(num_tokens);
  batch.cu_seqlens.reserve(plan.documents.size() + 1);
  batch.cu_seqlens.push_back(0);
  for (const std::uint32_t document : plan.documents) {
    add_document(batch, store.ids(document), store.labels(document));
    batch.max_document_tokens = std::max(batch.max_document_tokens, store.num_tokens(document));
    batch.num_supervised += store.num_supervised(document);
  }
  batch.document_in_step.assign(plan.document_in_step.begin(), plan.document_in_step.end());
  return batch;
}

}  // namespace lora_train::data

#include "document_step.h"

#include <algorithm>

#include "deal.h"
#include "epoch_rows.h"
#include "lora_train/base/ceil_div.h"

namespace lora_train::data {

DocumentStep plan_document_step(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
                                const PlanOptions& options, std::int64_t step) {
  std::vector<std::uint32_t> step_lengths(documents.size());  // by place in the step: weights may repeat a document
  std::vector<double> costs(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    step_lengths[i] = lengths[documents[i]];
    const double length = step_lengths[i];
    costs[i] = length + options.attention_cost * length * length;
  }
  DocumentStep result;
  Rows own;
  const auto places = deal_evenly(costs, static_cast<std::size_t>(options.world_size));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    Rows rows = pack_rows(places[rank], step_lengths, options, static_cast<std::uint64_t>(step));
    result.num_rows += static_cast<std::int64_t>(rows.size());
    result.most_rows = std::max(result.most_rows, static_cast<std::int64_t>(rows.size()));
    if (rank == static_cast<std::size_t>(options.rank)) own = std::move(rows);
  }
  result.micro_batches.resize(static_cast<std::size_t>(ceil_div(result.most_rows, options.micro_batch_size)));
  for (std::size_t r = 0; r < own.size(); ++r) {
    MicroBatchPlan& micro_batch = result.micro_batches[r / static_cast<std::size_t>(options.micro_batch_size)];
    for (const std::uint32_t place : own[r]) {
      micro_batch.documents.push_back(documents[place]);
      micro_batch.document_in_step.push_back(place);
    }
  }
  return result;
}

}  // namespace lora_train::data

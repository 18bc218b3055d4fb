#include "deal.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace lora_train::data {
namespace {

void add_row(MicroBatchPlan& micro_batch, std::span<const std::uint32_t> documents, std::uint32_t first_ordinal) {
  for (const std::uint32_t document : documents) {
    micro_batch.documents.push_back(document);
    micro_batch.document_in_step.push_back(first_ordinal++);
  }
}

}  // namespace

std::vector<std::vector<std::uint32_t>> deal_evenly(std::span<const double> costs, std::size_t num_bins) {
  std::vector<std::uint32_t> most_expensive_first(costs.size());
  std::iota(most_expensive_first.begin(), most_expensive_first.end(), 0U);
  std::stable_sort(most_expensive_first.begin(), most_expensive_first.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return costs[a] > costs[b]; });

  using Load = std::tuple<double, std::size_t>;  // cost so far, bin
  std::priority_queue<Load, std::vector<Load>, std::greater<>> cheapest;
  for (std::size_t bin = 0; bin < num_bins; ++bin) {
    cheapest.emplace(0.0, bin);
  }
  const std::size_t share = costs.size() / num_bins;
  std::size_t num_extra = costs.size() % num_bins;  // bins that may yet take one more than their share
  std::vector<std::vector<std::uint32_t>> bins(num_bins);
  for (const std::uint32_t thing : most_expensive_first) {
    while (bins[std::get<1>(cheapest.top())].size() >= share + (num_extra > 0 ? 1 : 0)) {
      cheapest.pop();
    }
    const auto [cost, bin] = cheapest.top();
    cheapest.pop();
    bins[bin].push_back(thing);
    num_extra -= bins[bin].size() > share ? 1 : 0;
    cheapest.emplace(cost + costs[thing], bin);
  }
  for (auto& bin : bins) {
    std::sort(bin.begin(), bin.end());
  }
  return bins;
}

std::vector<MicroBatchPlan> deal_in_order(const Rows& rows, std::size_t begin, std::size_t end,
                                          std::int64_t micro_batch_size) {
  std::vector<MicroBatchPlan> micro_batches;
  std::uint32_t ordinal = 0;
  for (std::size_t r = begin; r < end; ++r) {
    if ((r - begin) % static_cast<std::size_t>(micro_batch_size) == 0) {
      micro_batches.emplace_back();
    }
    add_row(micro_batches.back(), rows[r], ordinal);
    ordinal += static_cast<std::uint32_t>(rows[r].size());
  }
  return micro_batches;
}

std::vector<MicroBatchPlan> deal_to_rank(const Rows& rows, std::size_t begin, std::size_t end,
                                         const PlanOptions& options, std::span<const std::uint32_t> lengths) {
  std::vector<double> costs(end - begin);
  std::vector<std::uint32_t> first_ordinals(end - begin);
  std::uint32_t ordinal = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    first_ordinals[i] = ordinal;
    ordinal += static_cast<std::uint32_t>(rows[begin + i].size());
    for (const std::uint32_t document : rows[begin + i]) {
      const double length = lengths[document];
      costs[i] += length + options.attention_cost * length * length;
    }
  }
  const auto mine =
      deal_evenly(costs, static_cast<std::size_t>(options.world_size))[static_cast<std::size_t>(options.rank)];
  std::vector<double> my_costs;
  for (const std::uint32_t i : mine) {
    my_costs.push_back(costs[i]);
  }
  const std::int64_t most_rows = ceil_div(static_cast<std::int64_t>(costs.size()), options.world_size);
  const std::int64_t num_micro_batches = ceil_div(most_rows, options.micro_batch_size);
  std::vector<MicroBatchPlan> micro_batches;
  for (const auto& bin : deal_evenly(my_costs, static_cast<std::size_t>(num_micro_batches))) {
    micro_batches.emplace_back();
    for (const std::uint32_t i : bin) {
      add_row(micro_batches.back(), rows[begin + mine[i]], first_ordinals[mine[i]]);
    }
  }
  return micro_batches;
}

}  // namespace lora_train::data

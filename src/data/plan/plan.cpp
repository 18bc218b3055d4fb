#include "lora_train/data/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/plan/epoch_rows.h"

namespace lora_train::data {
namespace {

double cost_of(double length, const PlanOptions& options) { return length + options.attention_cost * length * length; }

/// Adds a row; `first` is the first document of the step, whose documents lie side by side.
void add_row(MicroBatchPlan& micro_batch, std::span<const std::uint32_t> row, const std::uint32_t* first) {
  for (const std::uint32_t& document : row) {
    micro_batch.documents.push_back(document);
    micro_batch.document_in_step.push_back(static_cast<std::uint32_t>(&document - first));
  }
}

/// Groups rows begin..end-1 in order, micro_batch_size per micro-batch; the last may be smaller.
std::vector<MicroBatchPlan> deal_in_order(const Rows& rows, std::size_t begin, std::size_t end,
                                          std::int64_t micro_batch_size) {
  std::vector<MicroBatchPlan> micro_batches;
  for (std::size_t r = begin; r < end; ++r) {
    if ((r - begin) % static_cast<std::size_t>(micro_batch_size) == 0) micro_batches.emplace_back();
    add_row(micro_batches.back(), rows[r], rows[begin].data());
  }
  return micro_batches;
}

/// Deals rows begin..end-1, one step, to options.world_size ranks and each rank's micro-batches, both with
/// deal_evenly(). Returns those of options.rank. lengths[d] = tokens of document d.
std::vector<MicroBatchPlan> deal_to_rank(const Rows& rows, std::size_t begin, std::size_t end,
                                         const PlanOptions& options, std::span<const std::uint32_t> lengths) {
  std::vector<double> costs(end - begin), my_costs;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    for (const std::uint32_t document : rows[begin + i]) costs[i] += cost_of(lengths[document], options);
  }
  const auto mine =
      deal_evenly(costs, static_cast<std::size_t>(options.world_size))[static_cast<std::size_t>(options.rank)];
  for (const std::uint32_t i : mine) my_costs.push_back(costs[i]);
  const std::int64_t most_rows = ceil_div(static_cast<std::int64_t>(costs.size()), options.world_size);
  std::vector<MicroBatchPlan> micro_batches;
  for (const auto& bin :
       deal_evenly(my_costs, static_cast<std::size_t>(ceil_div(most_rows, options.micro_batch_size)))) {
    micro_batches.emplace_back();
    for (const std::uint32_t i : bin) add_row(micro_batches.back(), rows[begin + mine[i]], rows[begin].data());
  }
  return micro_batches;
}

struct DocumentStep {
  std::vector<MicroBatchPlan> micro_batches;  ///< for options.rank
  std::int64_t num_rows = 0;                  ///< over all ranks
  std::int64_t most_rows = 0;                 ///< of any rank
};

/// Splits the documents of a step, in epoch order, across options.world_size ranks: each gets the same number, give or
/// take one, at about the same cost, and packs them into rows. (If packing came first, a few short documents would fill
/// one row, and only one rank would have work.) Each micro-batch has micro_batch_size rows; every rank has as many
/// micro-batches as the rank with the most rows. lengths[d] = tokens of document d.
DocumentStep plan_document_step(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
                                const PlanOptions& options, std::int64_t step) {
  std::vector<std::uint32_t> step_lengths(documents.size());  // by place in the step: weights may repeat a document
  std::vector<double> costs(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    step_lengths[i] = lengths[documents[i]];
    costs[i] = cost_of(step_lengths[i], options);
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

void check_options(const PlanOptions& options, std::size_t num_documents) {
  const auto require = [](bool is_good, const char* key, const char* message) {
    if (!is_good) throw ConfigError(key, message);
  };
  require(options.max_seq_len > 0 && options.max_seq_len <= INT32_MAX, "max_seq_len", "must be in 1..2147483647");
  require(options.global_batch_size > 0, "global_batch_size", "must be above 0");
  // A profile that gets here keeps the rest.
  const auto expect = [](bool is_good, const char* message) {
    if (!is_good) throw ShapeError("PlanOptions", message);
  };
  expect(options.micro_batch_size > 0, "no micro_batch_size");
  expect(options.num_epochs || options.max_steps, "a run without an end");
  expect(options.num_epochs.value_or(1) > 0 && options.max_steps.value_or(1) > 0, "a run without a step");
  expect(options.rank >= 0 && options.rank < options.world_size, "a rank outside the world");
  std::size_t end = 0;
  double documents_per_epoch = 0;
  for (const WeightedRange& range : options.ranges) {
    require(range.weight > 0 && std::isfinite(range.weight), "datasets.weight", "must be above 0");
    expect(range.begin == end && range.end >= range.begin, "ranges do not follow one another");
    end = range.end;
    documents_per_epoch += range.weight * static_cast<double>(range.end - range.begin);
  }
  require(options.ranges.empty() || num_documents == 0 || (documents_per_epoch >= 1 && documents_per_epoch < 4e9),
          "datasets.weight", "the weights give fewer than 1 or more than 4,000,000,000 documents per epoch");
  expect(options.ranges.empty() || end == num_documents, "ranges do not cover the documents");
}

void check_lengths(const DocumentStore& store, std::int64_t max_seq_len) {
  for (std::size_t i = 0; i < store.size(); ++i) {
    if (store.num_tokens(i) > max_seq_len) {
      throw DataError(store.source(i), "the example has {} tokens, more than max_seq_len: {}", store.num_tokens(i),
                      max_seq_len);
    }
  }
}

std::vector<std::uint32_t> lengths_of(const DocumentStore& store) {
  std::vector<std::uint32_t> lengths(store.size());
  for (std::size_t i = 0; i < store.size(); ++i) lengths[i] = static_cast<std::uint32_t>(store.num_tokens(i));
  return lengths;
}

}  // namespace

Rows plan_rows(const DocumentStore& store, const PlanOptions& options, int epoch) {
  check_lengths(store, options.max_seq_len);
  return rows_of_epoch(lengths_of(store), options, epoch);
}

std::vector<MicroBatchPlan> plan_evaluation(const DocumentStore& store, std::int64_t max_seq_len, bool packing,
                                            std::int64_t micro_batch_size) {
  PlanOptions options;
  options.max_seq_len = max_seq_len;
  options.packing = packing;
  options.shuffle = false;
  const Rows rows = plan_rows(store, options, 0);
  return deal_in_order(rows, 0, rows.size(), micro_batch_size);
}

struct RunPlan::State {
  State(const DocumentStore& documents, const PlanOptions& plan_options)
      : store(documents), options(plan_options), lengths(lengths_of(documents)) {}

  const DocumentStore& store;
  PlanOptions options;
  std::vector<std::uint32_t> lengths;
  RunPlan::Epoch first;  // the first epoch that is not empty

  std::mutex count_mutex;  ///< guards first_step; not held while an epoch is packed
  /// Steps before each epoch counted so far and before the next. Unused if is_even().
  std::vector<std::int64_t> first_step{0};

  std::mutex mutex;
  int cached_epoch = -1;
  std::shared_ptr<const Rows> cached;

  // Without shuffling and weights, all epochs are like the first.
  bool epochs_differ() const { return options.shuffle || !options.ranges.empty(); }
  // True if documents are cut into steps before packing.
  bool packs_steps() const { return options.packing && options.batch_unit == BatchUnit::kDocuments; }
  // True if steps can be counted without packing.
  bool counts_documents() const { return !options.packing || packs_steps(); }
  // True if all epochs have the same number of steps.
  bool is_even() const { return !epochs_differ() || (counts_documents() && options.ranges.empty()); }

  // The rows of an epoch, which are cut into steps. If steps are packed, each document is a row here.
  std::shared_ptr<const Rows> plan_of(int epoch) {
    const std::lock_guard lock(mutex);
    const int key = epochs_differ() ? epoch : 0;
    if (key != cached_epoch) {
      cached.reset();  // so that memory never holds two epochs
      cached = std::make_shared<const Rows>(packs_steps()
                                                ? one_document_a_row(documents_of_epoch(options, lengths.size(), key))
                                                : rows_of_epoch(lengths, options, key));
      cached_epoch = key;
    }
    return cached;
  }

  enum class Keep { kRows, kCount };  ///< kRows: step() will need them
  std::int64_t count_steps_of(int epoch, Keep keep) {
    const auto steps = [&](std::size_t n) { return ceil_div(static_cast<std::int64_t>(n), options.global_batch_size); };
    if (counts_documents()) return steps(num_documents_in_epoch(options, lengths.size(), epoch));
    const bool is_kept = keep == Keep::kRows || !epochs_differ();
    return steps(is_kept ? plan_of(epoch)->size() : rows_of_epoch(lengths, options, epoch).size());
  }

  void sum_up_first() {
    int epoch = 0;
    while ((first.steps = count_steps_of(epoch, Keep::kRows)) == 0) {
      if (++epoch >= options.num_epochs.value_or(HUGE_VAL)) return;
    }
    const auto rows = plan_of(epoch);
    first.documents = std::ssize(rows->documents());
    for (const std::uint32_t document : rows->documents()) first.tokens += lengths[document];
    if (packs_steps()) return count_packed_rows(*rows);
    first.rows = static_cast<std::int64_t>(rows->size());
    first.most_rows_of_rank = ceil_div(std::min(first.rows, options.global_batch_size), options.world_size);
  }

  void count_packed_rows(const Rows& epoch) {
    StopPoll stop_poll;
    for (std::int64_t i = 0; i < first.steps; ++i) {
      stop_poll();
      const auto [begin, end] = bounds_of(epoch, i);
      const auto documents = epoch.documents().subspan(begin, end - begin);
      const DocumentStep step = plan_document_step(documents, lengths, options, i);
      first.rows += step.num_rows;
      first.most_rows_of_rank = std::max(first.most_rows_of_rank, step.most_rows);
    }
  }

  // Step i of an epoch, from 0, has the rows begin..end-1.
  std::pair<std::size_t, std::size_t> bounds_of(const Rows& rows, std::int64_t i) const {
    const auto size = static_cast<std::size_t>(options.global_batch_size), begin = static_cast<std::size_t>(i) * size;
    return {begin, std::min(rows.size(), begin + size)};
  }

  StepPlan plan_step(const Rows& rows, std::int64_t i) const {
    const auto [begin, end] = bounds_of(rows, i);
    StepPlan plan;
    if (packs_steps()) {
      DocumentStep packed = plan_document_step(rows.documents().subspan(begin, end - begin), lengths, options, i);
      plan.num_rows = packed.num_rows;
      plan.micro_batches = std::move(packed.micro_batches);
    } else {
      plan.num_rows = static_cast<std::int64_t>(end - begin);
      plan.micro_batches = options.world_size == 1 ? deal_in_order(rows, begin, end, options.micro_batch_size)
                                                   : deal_to_rank(rows, begin, end, options, lengths);
    }
    for (std::size_t r = begin; r < end; ++r) {
      plan.num_documents += std::ssize(rows[r]);
      for (const std::uint32_t document : rows[r]) {
        plan.num_tokens += lengths[document];
        plan.num_supervised += store.num_supervised(document);
        plan.weight_sum += store.weight_sum(document);
      }
    }
    plan.epoch_after = static_cast<double>(end) / static_cast<double>(rows.size());
    return plan;
  }

  // Counts epochs up to the one that step k is in.
  void count_epochs_to(std::int64_t k) {
    for (std::unique_lock lock(count_mutex); first_step.back() < k;) {
      const std::size_t num_counted = first_step.size();
      lock.unlock();
      throw_if_stop_requested();
      const std::int64_t steps = count_steps_of(static_cast<int>(num_counted - 1), Keep::kRows);
      lock.lock();
      if (first_step.size() == num_counted) first_step.push_back(first_step.back() + steps);  // else another thread did
    }
  }

  // Steps of the first `num_epochs` epochs, at most `limit`.
  std::int64_t steps_of_epochs(double num_epochs, std::int64_t limit) {
    const double whole = std::floor(num_epochs);
    const auto part_of = [&](std::int64_t steps) {
      return static_cast<std::int64_t>(std::ceil((num_epochs - whole) * static_cast<double>(steps) - 1e-9));
    };
    if (is_even()) {
      const std::int64_t steps = first.steps;
      const double total = whole * static_cast<double>(steps);
      return total >= static_cast<double>(limit)
                 ? limit
                 : std::min(limit, static_cast<std::int64_t>(whole) * steps + part_of(steps));
    }
    while (static_cast<double>(first_step.size() - 1) < num_epochs && first_step.back() < limit) {
      throw_if_stop_requested();
      const auto epoch = static_cast<int>(first_step.size() - 1);
      const std::int64_t steps = count_steps_of(epoch, epoch == 0 ? Keep::kRows : Keep::kCount);
      first_step.push_back(first_step.back() + (epoch < whole ? steps : part_of(steps)));
    }
    return std::min(limit, first_step.back());
  }

  // Without num_epochs, epochs are counted only when reached: max_steps may be any number.
  std::int64_t count_steps() {
    sum_up_first();
    const std::int64_t limit = options.max_steps.value_or(INT64_MAX);
    std::int64_t total_steps = 0;
    if (first.steps > 0) total_steps = options.num_epochs ? steps_of_epochs(*options.num_epochs, limit) : limit;
    if (total_steps == 0) {
      throw DataError("datasets", "these weights never choose an example; raise them or num_epochs");
    }
    return total_steps;
  }

  bool ends_epoch(std::int64_t k) {
    if (is_even()) return k % first.steps == 0;
    count_epochs_to(k);
    const std::lock_guard lock(count_mutex);
    return std::binary_search(first_step.begin(), first_step.end(), k);
  }

  // The epoch that step k is in, and the steps before it.
  std::pair<int, std::int64_t> epoch_of(std::int64_t k) {
    if (is_even()) {
      const std::int64_t steps = first.steps, epoch = (k - 1) / steps;
      if (epoch > INT32_MAX)
        throw ConfigError("max_steps", "step {} is in epoch {}; 2,147,483,648 is the last", k, epoch + 1);
      return {static_cast<int>(epoch), epoch * steps};
    }
    count_epochs_to(k);
    const std::lock_guard lock(count_mutex);
    const auto next = std::lower_bound(first_step.begin(), first_step.end(), k);
    return {static_cast<int>(next - first_step.begin()) - 1, *(next - 1)};
  }
};

RunPlan::RunPlan(const DocumentStore& store, const PlanOptions& options) {
  check_options(options, store.size());
  if (store.empty()) throw DataError("datasets", "no examples to train on");
  check_lengths(store, options.max_seq_len);
  state_ = std::make_unique<State>(store, options);
  total_steps_ = state_->count_steps();
  first_ = state_->first;
  first_.max_seq_len = options.max_seq_len;
}

RunPlan::~RunPlan() = default;
RunPlan::RunPlan(RunPlan&&) noexcept = default;

std::int64_t RunPlan::steps_of_first_epoch() const {
  return std::min(total_steps_, state_->epoch_of(1).first == 0 ? first_.steps : 0);
}

bool RunPlan::ends_epoch(std::int64_t k) const { return k == total_steps_ || state_->ends_epoch(k); }

StepPlan RunPlan::step(std::int64_t k) const {
  if (k < 1 || k > total_steps_) {
    throw ShapeError("RunPlan::step", "step {} is not in 1..{}", k, total_steps_);
  }
  throw_if_stop_requested();
  const auto [epoch, steps_before] = state_->epoch_of(k);
  StepPlan plan = state_->plan_step(*state_->plan_of(epoch), k - 1 - steps_before);
  plan.step = k;
  plan.epoch = epoch;
  plan.epoch_after += epoch;
  return plan;
}

}  // namespace lora_train::data

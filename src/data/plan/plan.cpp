#include "lora_train/data/plan.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "deal.h"
#include "epoch_rows.h"
#include "lora_train/base/error.h"

namespace lora_train::data {
namespace {

void check_options(const PlanOptions& options, std::size_t num_documents) {
  const auto require = [](bool is_good, const char* key, const char* message) {
    if (!is_good) {
      throw ConfigError(key, message);
    }
  };
  require(options.max_seq_len > 0 && options.max_seq_len <= INT32_MAX, "max_seq_len", "must be in 1..2147483647");
  require(options.global_batch_size > 0, "global_batch_size", "must be above 0");
  require(options.micro_batch_size > 0, "micro_batch_size", "must be above 0");
  require(!options.num_epochs || *options.num_epochs > 0, "num_epochs", "must be above 0");
  require(!options.max_steps || *options.max_steps > 0, "max_steps", "must be above 0");
  require(options.num_epochs || options.max_steps, "num_epochs", "set num_epochs or max_steps, or the run never ends");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw ShapeError("PlanOptions::rank",
                     "rank " + std::to_string(options.rank) + " of a world of " + std::to_string(options.world_size));
  }
  std::size_t end = 0;
  double documents_per_epoch = 0;
  for (const WeightedRange& range : options.ranges) {
    require(range.weight > 0 && std::isfinite(range.weight), "datasets.weight", "must be above 0");
    if (range.begin != end || range.end < range.begin) {
      throw ShapeError("PlanOptions::ranges", "ranges do not follow one another");
    }
    end = range.end;
    documents_per_epoch += range.weight * static_cast<double>(range.end - range.begin);
  }
  require(options.ranges.empty() || num_documents == 0 || (documents_per_epoch >= 1 && documents_per_epoch < 4e9),
          "datasets.weight", "the weights make less than 1 or more than 4,000,000,000 rows an epoch");
  if (!options.ranges.empty() && end != num_documents) {
    throw ShapeError("PlanOptions::ranges", "ranges do not cover the " + std::to_string(num_documents) + " documents");
  }
}

void check_lengths(const DocumentStore& store, std::int64_t max_seq_len) {
  for (std::size_t i = 0; i < store.size(); ++i) {
    if (store.num_tokens(i) > max_seq_len) {
      throw DataError(store.source(i), "the row has " + std::to_string(store.num_tokens(i)) +
                                           " tokens, more than max_seq_len: " + std::to_string(max_seq_len));
    }
  }
}

std::vector<std::uint32_t> lengths_of(const DocumentStore& store) {
  std::vector<std::uint32_t> lengths(store.size());
  for (std::size_t i = 0; i < store.size(); ++i) {
    lengths[i] = static_cast<std::uint32_t>(store.num_tokens(i));
  }
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
  std::vector<std::int64_t> steps_per_epoch;
  std::vector<std::int64_t> first_step;  ///< steps done before each epoch
  std::int64_t total_steps = 0;
  std::int64_t first_rows = 0, first_documents = 0, first_tokens = 0;  ///< of the first epoch that has any

  std::mutex mutex;
  int cached_epoch = -1;
  std::shared_ptr<const Rows> cached_rows;

  // Without shuffling and weights, all epochs are the first.
  bool epochs_differ() const { return options.shuffle || !options.ranges.empty(); }

  std::shared_ptr<const Rows> rows_of(int epoch) {
    const std::lock_guard lock(mutex);
    const int key = epochs_differ() ? epoch : 0;
    if (key != cached_epoch) {
      cached_rows.reset();  // so that two epochs are never in memory together
      cached_rows = std::make_shared<const Rows>(rows_of_epoch(lengths, options, key));
      cached_epoch = key;
    }
    return cached_rows;
  }

  // Keeps epoch 0, with which most runs begin, for step().
  std::int64_t count_rows(int epoch) {
    if (!options.packing) {
      return static_cast<std::int64_t>(num_documents_in_epoch(options, lengths.size(), epoch));
    }
    const bool is_kept = epoch == 0 || !epochs_differ();
    return static_cast<std::int64_t>(is_kept ? rows_of(epoch)->size() : rows_of_epoch(lengths, options, epoch).size());
  }

  void sum_up_first(int epoch, std::int64_t num_rows) {
    first_rows = num_rows;
    const auto rows = rows_of(epoch);
    first_documents = static_cast<std::int64_t>(rows->num_documents());
    for (std::size_t r = 0; r < rows->size(); ++r) {
      for (const std::uint32_t document : (*rows)[r]) {
        first_tokens += lengths[document];
      }
    }
  }

  void count_steps() {
    double epochs_left = options.num_epochs.value_or(HUGE_VAL);
    std::int64_t steps_left = options.max_steps.value_or(INT64_MAX);
    for (int epoch = 0; epochs_left > 0 && steps_left > 0; ++epoch, epochs_left -= 1) {
      const std::int64_t rows = count_rows(epoch);
      if (first_rows == 0 && rows > 0) {
        sum_up_first(epoch, rows);
      }
      std::int64_t steps = divide_up(rows, options.global_batch_size);
      if (epochs_left < 1) {
        steps = static_cast<std::int64_t>(std::ceil(epochs_left * static_cast<double>(steps) - 1e-9));
      }
      steps = std::min(steps, steps_left);
      first_step.push_back(total_steps);
      steps_per_epoch.push_back(steps);
      total_steps += steps;
      steps_left -= steps;
    }
    if (total_steps == 0) {
      throw DataError("datasets", "with these weights no row is ever chosen; raise them, or num_epochs");
    }
  }

  double steps_of_first_epoch() const { return static_cast<double>(divide_up(first_rows, options.global_batch_size)); }
};

RunPlan::RunPlan(const DocumentStore& store, const PlanOptions& options) {
  check_options(options, store.size());
  if (store.empty()) {
    throw DataError("datasets", "no row to train on");
  }
  check_lengths(store, options.max_seq_len);
  state_ = std::make_unique<State>(store, options);
  state_->count_steps();
}

RunPlan::~RunPlan() = default;
RunPlan::RunPlan(RunPlan&&) noexcept = default;

std::int64_t RunPlan::total_steps() const { return state_->total_steps; }

const std::vector<std::int64_t>& RunPlan::steps_per_epoch() const { return state_->steps_per_epoch; }

std::int64_t RunPlan::rows_per_epoch() const { return state_->first_rows; }

double RunPlan::documents_per_step() const {
  return static_cast<double>(state_->first_documents) / state_->steps_of_first_epoch();
}

double RunPlan::tokens_per_step() const {
  return static_cast<double>(state_->first_tokens) / state_->steps_of_first_epoch();
}

double RunPlan::packing_efficiency() const {
  return static_cast<double>(state_->first_tokens) /
         (static_cast<double>(state_->first_rows) * static_cast<double>(state_->options.max_seq_len));
}

StepPlan RunPlan::step(std::int64_t k) const {
  const PlanOptions& options = state_->options;
  if (k < 1 || k > state_->total_steps) {
    throw ShapeError("RunPlan::step",
                     "step " + std::to_string(k) + " is not in 1.." + std::to_string(state_->total_steps));
  }
  const auto next = std::lower_bound(state_->first_step.begin(), state_->first_step.end(), k);
  const auto epoch = static_cast<std::size_t>(next - state_->first_step.begin()) - 1;
  const auto rows = state_->rows_of(static_cast<int>(epoch));
  const auto begin = static_cast<std::size_t>((k - 1 - state_->first_step[epoch]) * options.global_batch_size);
  const std::size_t end = std::min(rows->size(), begin + static_cast<std::size_t>(options.global_batch_size));

  StepPlan plan;
  plan.step = k;
  plan.epoch = static_cast<int>(epoch);
  plan.num_rows = static_cast<std::int64_t>(end - begin);
  plan.epoch_after = static_cast<double>(epoch) + static_cast<double>(end) / static_cast<double>(rows->size());
  for (std::size_t r = begin; r < end; ++r) {
    plan.num_documents += static_cast<std::int64_t>((*rows)[r].size());
    for (const std::uint32_t document : (*rows)[r]) {
      plan.num_tokens += state_->lengths[document];
      plan.num_supervised += state_->store.num_supervised(document);
      plan.weight_sum += state_->store.weight_sum(document);
    }
  }
  plan.micro_batches = options.world_size == 1 ? deal_in_order(*rows, begin, end, options.micro_batch_size)
                                               : deal_to_rank(*rows, begin, end, options, state_->lengths);
  return plan;
}

}  // namespace lora_train::data

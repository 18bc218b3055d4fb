#include "lora_train/data/plan.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"
#include "shuffle.h"

namespace lora_train::data {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void check_options(const PlanOptions& options) {
  const auto require = [](bool is_good, const char* key, const char* message) {
    if (!is_good) {
      throw ConfigError(key, message);
    }
  };
  require(options.max_seq_len > 0, "max_seq_len", "must be above 0");
  require(options.global_batch_size > 0, "global_batch_size", "must be above 0");
  require(options.micro_batch_size > 0, "micro_batch_size", "must be above 0");
  require(!options.num_epochs || *options.num_epochs > 0, "num_epochs", "must be above 0");
  require(!options.max_steps || *options.max_steps > 0, "max_steps", "must be above 0");
  require(options.num_epochs || options.max_steps, "num_epochs", "set num_epochs or max_steps, so that the run ends");
}

}  // namespace

std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle) {
  if (shuffle) {
    return shuffled(n, philox_key(seed, RandomPurpose::kDataOrder, {}, static_cast<std::uint64_t>(epoch)));
  }
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::vector<MicroBatchPlan> deal_rows(const std::vector<Row>& rows, std::int64_t micro_batch_size) {
  std::vector<MicroBatchPlan> micro_batches;
  std::uint32_t ordinal = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r % static_cast<std::size_t>(micro_batch_size) == 0) {
      micro_batches.emplace_back();
    }
    for (const std::uint32_t document : rows[r].documents) {
      micro_batches.back().documents.push_back(document);
      micro_batches.back().document_in_step.push_back(ordinal++);
    }
  }
  return micro_batches;
}

namespace {

std::vector<std::int64_t> lengths_of(const DocumentStore& store) {
  std::vector<std::int64_t> lengths(store.size());
  for (std::size_t i = 0; i < store.size(); ++i) {
    lengths[i] = store.num_tokens(i);
  }
  return lengths;
}

void check_lengths(const DocumentStore& store, std::int64_t max_seq_len) {
  for (std::size_t i = 0; i < store.size(); ++i) {
    if (store.num_tokens(i) > max_seq_len) {
      throw DataError(store.source(i), "the row has " + std::to_string(store.num_tokens(i)) +
                                           " tokens, more than max_seq_len: " + std::to_string(max_seq_len));
    }
  }
}

PackingMethod method_of(bool packing) { return packing ? PackingMethod::kNextFit : PackingMethod::kNone; }

}  // namespace

std::vector<MicroBatchPlan> plan_evaluation(const DocumentStore& store, std::int64_t max_seq_len, bool packing,
                                            std::int64_t micro_batch_size) {
  check_lengths(store, max_seq_len);
  const auto order = epoch_order(store.size(), 0, 0, /*shuffle=*/false);
  return deal_rows(pack(order, lengths_of(store), max_seq_len, method_of(packing)), micro_batch_size);
}

struct RunPlan::State {
  State(const DocumentStore& documents, const PlanOptions& plan_options)
      : store(documents), options(plan_options), lengths(lengths_of(documents)) {}

  const DocumentStore& store;
  PlanOptions options;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> steps_per_epoch;
  std::vector<std::int64_t> first_step;  ///< steps done before each epoch
  std::int64_t total_steps = 0;
  std::int64_t rows_per_epoch = 0;

  std::mutex mutex;
  int cached_epoch = -1;
  std::shared_ptr<const std::vector<Row>> cached_rows;

  std::shared_ptr<const std::vector<Row>> rows_of(int epoch) {
    const std::lock_guard lock(mutex);
    const int key = options.shuffle ? epoch : 0;  // without shuffling all epochs are the first
    if (key != cached_epoch) {
      const auto order = epoch_order(store.size(), options.seed, epoch, options.shuffle);
      cached_rows = std::make_shared<const std::vector<Row>>(
          pack(order, lengths, options.max_seq_len, method_of(options.packing)));
      cached_epoch = key;
    }
    return cached_rows;
  }

  void count_steps() {
    double epochs_left = options.num_epochs.value_or(HUGE_VAL);
    std::int64_t steps_left = options.max_steps.value_or(INT64_MAX);
    for (int epoch = 0; epochs_left > 0 && steps_left > 0; ++epoch, epochs_left -= 1) {
      // Only packing makes the number of rows depend on the order.
      const bool is_known = epoch > 0 && (!options.packing || !options.shuffle);
      const std::int64_t rows = is_known ? rows_per_epoch : static_cast<std::int64_t>(rows_of(epoch)->size());
      rows_per_epoch = epoch == 0 ? rows : rows_per_epoch;
      std::int64_t steps = divide_up(rows, options.global_batch_size);
      if (epochs_left < 1) {
        steps = static_cast<std::int64_t>(std::ceil(epochs_left * static_cast<double>(steps) - 1e-9));
      }
      steps = std::min(steps, steps_left);
      if (steps == 0) {
        break;
      }
      first_step.push_back(total_steps);
      steps_per_epoch.push_back(steps);
      total_steps += steps;
      steps_left -= steps;
    }
  }
};

RunPlan::RunPlan(const DocumentStore& store, const PlanOptions& options) {
  check_options(options);
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

std::int64_t RunPlan::rows_per_epoch() const { return state_->rows_per_epoch; }

double RunPlan::documents_per_step() const {
  const auto steps = divide_up(state_->rows_per_epoch, state_->options.global_batch_size);
  return static_cast<double>(state_->store.size()) / static_cast<double>(steps);
}

double RunPlan::tokens_per_step() const {
  const auto steps = divide_up(state_->rows_per_epoch, state_->options.global_batch_size);
  return static_cast<double>(state_->store.total_tokens()) / static_cast<double>(steps);
}

double RunPlan::packing_efficiency() const {
  return static_cast<double>(state_->store.total_tokens()) /
         (static_cast<double>(state_->rows_per_epoch) * static_cast<double>(state_->options.max_seq_len));
}

StepPlan RunPlan::step(std::int64_t k) const {
  if (k < 1 || k > state_->total_steps) {
    throw ShapeError("RunPlan::step",
                     "step " + std::to_string(k) + " is not in 1.." + std::to_string(state_->total_steps));
  }
  const auto next = std::lower_bound(state_->first_step.begin(), state_->first_step.end(), k);
  const auto epoch = static_cast<std::size_t>(next - state_->first_step.begin()) - 1;
  const auto all_rows = state_->rows_of(static_cast<int>(epoch));
  const auto num_rows = static_cast<std::int64_t>(all_rows->size());
  const std::int64_t begin = (k - 1 - state_->first_step[epoch]) * state_->options.global_batch_size;
  const std::int64_t end = std::min(num_rows, begin + state_->options.global_batch_size);

  StepPlan plan;
  plan.step = k;
  plan.epoch = static_cast<int>(epoch);
  plan.num_rows = end - begin;
  plan.epoch_after = static_cast<double>(epoch) + static_cast<double>(end) / static_cast<double>(num_rows);
  plan.micro_batches =
      deal_rows({all_rows->begin() + begin, all_rows->begin() + end}, state_->options.micro_batch_size);
  for (const MicroBatchPlan& micro_batch : plan.micro_batches) {
    plan.num_documents += static_cast<std::int64_t>(micro_batch.documents.size());
    for (const std::uint32_t document : micro_batch.documents) {
      plan.num_tokens += state_->store.num_tokens(document);
      plan.num_supervised += state_->store.num_supervised(document);
    }
  }
  return plan;
}

}  // namespace lora_train::data

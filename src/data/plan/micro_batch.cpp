#include "lora_train/data/plan/micro_batch.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kPartAlignment = 64 / sizeof(std::int32_t);

// The writable parts of a micro-batch, cut from one buffer.
struct Parts {
  std::span<std::int32_t> ids, labels, positions, cu_seqlens, document_in_step;
  std::span<float> weights;
  std::span<std::int32_t> soft_ids;
  std::span<float> soft_log_probs;
};

static_assert(sizeof(float) == sizeof(std::int32_t));

/// Each part that is not empty begins at a multiple of kPartAlignment.
Parts cut(HostBuffer& buffer, std::size_t num_tokens, std::size_t num_docs, std::size_t num_soft, bool has_weights) {
  std::size_t end = 0;
  const auto place = [&](std::size_t count) {  // where a part begins
    if (count == 0) return end;
    const std::size_t begin = (end + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    end = begin + count;
    return begin;
  };
  const std::size_t num_weights = has_weights ? num_tokens : 0;
  const std::size_t ids = place(num_tokens), labels = place(num_tokens), positions = place(num_tokens);
  const std::size_t offsets = place(num_docs + 1), ordinals = place(num_docs), weights = place(num_weights);
  const std::size_t soft_ids = place(num_soft), log_probs = place(num_soft);
  const std::span<std::int32_t> all = buffer.resize(end);
  const auto floats = [&](std::size_t begin, std::size_t count) {
    return std::span(reinterpret_cast<float*>(all.data() + begin), count);
  };
  return {all.subspan(ids, num_tokens),       all.subspan(labels, num_tokens), all.subspan(positions, num_tokens),
          all.subspan(offsets, num_docs + 1), all.subspan(ordinals, num_docs), floats(weights, num_weights),
          all.subspan(soft_ids, num_soft),    floats(log_probs, num_soft)};
}

// Documents are scattered across the store: brings one into the cache while another is copied.
void prefetch(std::span<const std::int32_t> values) {
  constexpr std::size_t kMaxValues = 1024;  // beyond this, the hardware prefetcher takes over
  for (std::size_t i = 0; i < std::min(values.size(), kMaxValues); i += kPartAlignment) {
    __builtin_prefetch(&values[i]);
  }
}

void put_document(const Parts& parts, std::size_t at, std::span<const std::int32_t> ids,
                  std::span<const std::int32_t> labels) {
  std::ranges::copy(ids, parts.ids.subspan(at).begin());
  std::ranges::copy(labels.subspan(1), parts.labels.subspan(at).begin());
  parts.labels[at + ids.size() - 1] = kIgnoredLabel;
  const auto positions = parts.positions.subspan(at, ids.size());
  std::iota(positions.begin(), positions.end(), 0);
}

/// `weights` may be empty: all 1.
void put_weights(std::span<float> part, std::span<const float> weights) {
  const std::size_t num_shifted = part.size() - 1;
  if (weights.empty()) {
    std::fill_n(part.begin(), num_shifted, 1.0F);
  } else {
    std::copy_n(weights.begin() + 1, num_shifted, part.begin());
  }
  part.back() = 0;
}

/// `from` may be narrower than the parts, or empty.
void put_soft_labels(const Parts& parts, std::size_t begin, std::size_t num_supervised, const SoftLabels& from,
                     std::int64_t width) {
  const auto wide = static_cast<std::size_t>(width), narrow = static_cast<std::size_t>(from.width);
  const auto ids = parts.soft_ids.subspan(begin * wide, num_supervised * wide);
  const auto log_probs = parts.soft_log_probs.subspan(begin * wide, num_supervised * wide);
  std::ranges::fill(ids, SoftLabels::kNone);
  std::ranges::fill(log_probs, 0.0F);
  for (std::size_t s = 0; narrow > 0 && s < num_supervised; ++s) {
    std::ranges::copy(from.ids.subspan(s * narrow, narrow), ids.subspan(s * wide).begin());
    std::ranges::copy(from.log_probs.subspan(s * narrow, narrow), log_probs.subspan(s * wide).begin());
  }
}

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookForStops{100};

// Unused buffers. Shared with the micro-batches handed out.
class FreeBuffers {
 public:
  explicit FreeBuffers(std::pmr::memory_resource* memory) : memory_(memory) {}

  HostBuffer take() {
    const std::lock_guard lock(mutex_);
    if (buffers_.empty()) return HostBuffer(memory_);
    HostBuffer buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  void give_back(HostBuffer buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  std::pmr::memory_resource* memory_;
  std::mutex mutex_;
  std::vector<HostBuffer> buffers_;
};

// A micro-batch and the memory that holds it.
struct OwnedMicroBatch : MicroBatch {
  explicit OwnedMicroBatch(std::shared_ptr<FreeBuffers> buffers) : home(std::move(buffers)), buffer(home->take()) {}
  ~OwnedMicroBatch() { home->give_back(std::move(buffer)); }
  OwnedMicroBatch(const OwnedMicroBatch&) = delete;
  OwnedMicroBatch& operator=(const OwnedMicroBatch&) = delete;

  std::shared_ptr<FreeBuffers> home;
  HostBuffer buffer;
};

// A micro-batch in preparation: claimed, then with a plan, then ready or failed.
struct Item {
  std::int64_t step = 0;
  std::size_t index = 0;                 ///< index of the micro-batch in its step
  std::shared_ptr<const StepPlan> plan;  ///< null until it is made
  std::shared_ptr<const MicroBatch> micro_batch;
  std::exception_ptr error;
};

}  // namespace

std::span<std::int32_t> HostBuffer::resize(std::size_t count) {
  const std::size_t num_lines = count / std::size(Line{}.values) + 1;
  if (num_lines > lines_.size()) {
    lines_.clear();
    lines_.shrink_to_fit();  // so that memory never holds both
    // Micro-batches vary little in size: with a quarter extra, a buffer soon stops growing.
    lines_.resize(num_lines + num_lines / 4);
  }
  return {reinterpret_cast<std::int32_t*>(lines_.data()), count};
}

BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& plan) {
  BatchShape shape;
  for (const std::uint32_t document : plan.documents) {
    ++shape.num_docs;
    shape.num_tokens += store.num_tokens(document);
    shape.longest = std::max(shape.longest, store.num_tokens(document));
  }
  return shape;
}

MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan, HostBuffer& buffer) {
  const BatchShape shape = shape_of(store, plan);
  if (shape.num_tokens > INT32_MAX) {
    throw ConfigError("micro_batch_size",
                      "a micro-batch has {} tokens; expected at most 2147483647: lower it, or max_seq_len",
                      shape.num_tokens);
  }
  const bool has_weights = std::any_of(plan.documents.begin(), plan.documents.end(),
                                       [&](std::uint32_t document) { return !store.weights(document).empty(); });
  std::int64_t num_supervised = 0;
  for (const std::uint32_t document : plan.documents) num_supervised += store.num_supervised(document);
  const std::int64_t width = store.soft_width();
  const Parts parts = cut(buffer, static_cast<std::size_t>(shape.num_tokens), plan.documents.size(),
                          static_cast<std::size_t>(num_supervised * width), has_weights);
  MicroBatch batch{parts.ids, parts.labels, parts.positions, parts.cu_seqlens, parts.document_in_step};
  batch.weights = parts.weights;
  batch.soft = {width, parts.soft_ids, parts.soft_log_probs};
  batch.max_document_tokens = shape.longest;
  std::size_t at = 0;
  parts.cu_seqlens[0] = 0;
  for (std::size_t i = 0; i < plan.documents.size(); ++i) {
    const std::uint32_t document = plan.documents[i];
    const auto ids = store.ids(document);
    if (i + 1 < plan.documents.size()) {
      prefetch(store.ids(plan.documents[i + 1]));
      prefetch(store.labels(plan.documents[i + 1]));
    }
    put_document(parts, at, ids, store.labels(document));
    if (has_weights) put_weights(parts.weights.subspan(at, ids.size()), store.weights(document));
    at += ids.size();
    parts.document_in_step[i] = static_cast<std::int32_t>(plan.document_in_step[i]);
    parts.cu_seqlens[i + 1] = static_cast<std::int32_t>(at);
    if (width > 0) {
      put_soft_labels(parts, static_cast<std::size_t>(batch.num_supervised),
                      static_cast<std::size_t>(store.num_supervised(document)), store.soft_labels(document), width);
    }
    batch.num_supervised += store.num_supervised(document);
    batch.weight_sum += store.weight_sum(document);
  }
  return batch;
}

class BatchPrefetcher::State {
 public:
  State(const DocumentStore& store, const RunPlan& plan, std::int64_t first_step, std::int64_t last_step,
        const PrefetchOptions& options)
      : store_(store),
        plan_(plan),
        options_(options),
        last_step_(last_step),
        depth_(static_cast<std::size_t>(std::max<std::int64_t>(1, options.num_workers * options.prefetch_factor))),
        buffers_(std::make_shared<FreeBuffers>(options.memory)),
        claim_step_(first_step),
        consumer_step_(first_step) {}

  void start_workers() {
    try {
      while (static_cast<std::int64_t>(workers_.size()) < options_.num_workers) {
        workers_.emplace_back([this] {
          while (prepare_one()) {
          }
        });
      }
    } catch (const std::system_error& error) {
      throw IoError("dataloader_num_workers", "cannot start thread {} of {}; lower it: {}", workers_.size() + 1,
                    options_.num_workers, error.code().message());
    }
  }

  ~State() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    has_room_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  std::shared_ptr<const StepPlan> next_step() {
    if (step_plan_ != nullptr && num_taken_ < step_plan_->micro_batches.size()) {
      throw ShapeError("BatchPrefetcher::next_step", "micro-batches of step {} are left", step_plan_->step);
    }
    if (consumer_step_ > last_step_) {
      throw ShapeError("BatchPrefetcher::next_step", "step {} was the last", last_step_);
    }
    wait_ms_ = 0;
    std::unique_lock lock(mutex_);
    const Item& item = wait_for_front(lock, [](const Item& front) { return front.plan != nullptr; });
    step_plan_ = item.plan;
    ++consumer_step_;
    num_taken_ = 0;
    return step_plan_;
  }

  std::shared_ptr<const MicroBatch> next_micro_batch() {
    if (step_plan_ == nullptr || num_taken_ >= step_plan_->micro_batches.size()) {
      throw ShapeError("BatchPrefetcher::next_micro_batch",
                       "all micro-batches of the step were taken; next_step() comes first");
    }
    std::unique_lock lock(mutex_);
    const Item& item = wait_for_front(lock, [](const Item& front) { return front.micro_batch != nullptr; });
    const auto micro_batch = item.micro_batch;
    items_.pop_front();
    lock.unlock();
    has_room_.notify_one();
    ++num_taken_;
    return micro_batch;
  }

  double data_wait_ms() const { return wait_ms_; }

 private:
  // False if nothing is left to prepare or the prefetcher is ending.
  bool prepare_one() {
    Item* const item = claim();
    if (item == nullptr) return false;
    std::shared_ptr<OwnedMicroBatch> made;
    std::exception_ptr error;
    try {
      made = std::make_shared<OwnedMicroBatch>(buffers_);
      static_cast<MicroBatch&>(*made) = build_micro_batch(store_, item->plan->micro_batches[item->index], made->buffer);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      if (error != nullptr) {
        fail(*item, error);
      } else {
        item->micro_batch = std::move(made);
      }
    }
    changed_.notify_one();
    return error == nullptr;
  }

  // The next unclaimed micro-batch. Items stay in place until the consumer takes them.
  Item* claim() {
    const std::lock_guard one_at_a_time(claim_mutex_);
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [this] { return is_stopping_ || items_.size() < depth_; });
    if (is_stopping_ || claim_step_ > last_step_) return nullptr;
    Item& item = items_.emplace_back();
    item.step = claim_step_;
    item.index = claim_index_;
    if (claim_index_ == 0 && !plan_step(item, lock)) return nullptr;
    item.plan = claim_plan_;
    if (++claim_index_ == claim_plan_->micro_batches.size()) {
      ++claim_step_;
      claim_index_ = 0;
    }
    lock.unlock();
    changed_.notify_one();
    return &item;
  }

  // Planning the first step of an epoch takes a while, so this releases the lock to let the consumer take ready items.
  bool plan_step(Item& item, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::exception_ptr error;
    try {
      claim_plan_ = std::make_shared<const StepPlan>(plan_.step(claim_step_));
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      fail(item, error);
      changed_.notify_one();
    }
    return error == nullptr;
  }

  // Starts nothing new after a failure; finishes and delivers what was started before it.
  void fail(Item& item, std::exception_ptr error) {
    item.error = std::move(error);
    is_stopping_ = true;
    has_room_.notify_all();
  }

  // The first item, once it is as far as the consumer needs. Throws its error if it fails.
  template <class IsFarEnough>
  const Item& wait_for_front(std::unique_lock<std::mutex>& lock, const IsFarEnough& is_far_enough) {
    const auto start = Clock::now();
    if (workers_.empty() && items_.empty()) {
      lock.unlock();
      prepare_one();
      lock.lock();
    }
    const auto is_there = [&] {
      return !items_.empty() && (items_.front().error != nullptr || is_far_enough(items_.front()));
    };
    int reports = 1;
    while (!changed_.wait_for(lock, std::min(kLookForStops, options_.stall_after), is_there)) {
      throw_if_stop_requested();
      if (Clock::now() - start < reports * options_.stall_after) continue;
      const std::string report = describe_wait(reports++ * options_.stall_after);
      lock.unlock();
      options_.report_stall ? options_.report_stall(report) : log_warning(report);
      lock.lock();
    }
    wait_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (!is_far_enough(items_.front())) {
      std::rethrow_exception(items_.front().error);
    }
    return items_.front();
  }

  // Call with the lock held, while the first item is not ready.
  std::string describe_wait(Clock::duration waited) const {
    const std::string time = format_duration(std::chrono::duration<double>(waited).count());
    if (items_.empty() || items_.front().plan == nullptr) {
      return fmt::format(
          "training has waited {} for data: the rows of step {} are being chosen (the first step of an epoch waits "
          "until all its rows are packed). It continues after that",
          time, items_.empty() ? consumer_step_ : items_.front().step);
    }
    const Item& item = items_.front();
    const MicroBatchPlan& plan = item.plan->micro_batches[item.index];
    return fmt::format(
        "training has waited {} for data: step {}, micro-batch {} of {}, {} documents{}. It continues once they are "
        "read. A slow disk is the usual cause; stage_dir puts the data on a local one",
        time, item.step, item.index + 1, item.plan->micro_batches.size(), plan.documents.size(),
        plan.documents.empty() ? "" : ", the first is " + store_.source(plan.documents[0]));
  }

  const DocumentStore& store_;
  const RunPlan& plan_;
  const PrefetchOptions options_;
  const std::int64_t last_step_;
  const std::size_t depth_;
  const std::shared_ptr<FreeBuffers> buffers_;

  std::mutex claim_mutex_;  ///< taken before mutex_; guards the three below
  std::int64_t claim_step_;
  std::size_t claim_index_ = 0;
  std::shared_ptr<const StepPlan> claim_plan_;

  std::mutex mutex_;  ///< guards the three below and what items hold
  std::condition_variable has_room_, changed_;
  std::deque<Item> items_;  ///< claimed but not taken, in order
  bool is_stopping_ = false;

  // Used by the consumer's thread only.
  std::int64_t consumer_step_;
  std::shared_ptr<const StepPlan> step_plan_;
  std::size_t num_taken_ = 0;
  double wait_ms_ = 0;

  std::vector<std::thread> workers_;
};

BatchPrefetcher::BatchPrefetcher(const DocumentStore& store, const RunPlan& plan, std::int64_t first_step,
                                 std::int64_t last_step, const PrefetchOptions& options)
    : state_(std::make_unique<State>(store, plan, first_step, last_step, options)) {
  state_->start_workers();
}

BatchPrefetcher::~BatchPrefetcher() = default;

std::shared_ptr<const StepPlan> BatchPrefetcher::next_step() { return state_->next_step(); }

std::shared_ptr<const MicroBatch> BatchPrefetcher::next_micro_batch() { return state_->next_micro_batch(); }

double BatchPrefetcher::data_wait_ms() const { return state_->data_wait_ms(); }

}  // namespace lora_train::data

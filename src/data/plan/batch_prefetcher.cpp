#include "lora_train/data/plan/batch_prefetcher.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"

namespace lora_train::data {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookForStops{100};

// Buffers that no micro-batch uses. Shared with the micro-batches that were handed out.
class FreeBuffers {
 public:
  explicit FreeBuffers(HostMemory& memory) : memory_(memory) {}

  HostBuffer take() {
    const std::lock_guard lock(mutex_);
    if (buffers_.empty()) {
      return HostBuffer(memory_);
    }
    HostBuffer buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  void give_back(HostBuffer buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  HostMemory& memory_;
  std::mutex mutex_;
  std::vector<HostBuffer> buffers_;
};

// A micro-batch with the memory it lies in.
struct OwnedMicroBatch : MicroBatch {
  explicit OwnedMicroBatch(std::shared_ptr<FreeBuffers> buffers) : home(std::move(buffers)), buffer(home->take()) {}
  ~OwnedMicroBatch() { home->give_back(std::move(buffer)); }
  OwnedMicroBatch(const OwnedMicroBatch&) = delete;
  OwnedMicroBatch& operator=(const OwnedMicroBatch&) = delete;

  std::shared_ptr<FreeBuffers> home;
  HostBuffer buffer;
};

// One micro-batch on its way: claimed, then with a plan, then ready or failed.
struct Item {
  std::int64_t step = 0;
  std::size_t index = 0;                 ///< of the micro-batch in its step
  std::shared_ptr<const StepPlan> plan;  ///< null while it is made
  std::shared_ptr<const MicroBatch> micro_batch;
  std::exception_ptr error;
};

}  // namespace

class BatchPrefetcher::State {
 public:
  State(const DocumentStore& store, const RunPlan& plan, std::int64_t first_step, std::int64_t last_step,
        const PrefetchOptions& options)
      : store_(store),
        plan_(plan),
        options_(options),
        last_step_(last_step),
        depth_(static_cast<std::size_t>(std::max<std::int64_t>(1, options.num_workers * options.prefetch_factor))),
        buffers_(std::make_shared<FreeBuffers>(*options.memory)),
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
      throw IoError("dataloader_num_workers", "cannot start thread " + std::to_string(workers_.size() + 1) + " of " +
                                                  std::to_string(options_.num_workers) +
                                                  "; lower it: " + error.code().message());
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
      throw ShapeError("BatchPrefetcher::next_step",
                       "micro-batches of step " + std::to_string(step_plan_->step) + " are left");
    }
    if (consumer_step_ > last_step_) {
      throw ShapeError("BatchPrefetcher::next_step", "step " + std::to_string(last_step_) + " was the last");
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
  // False when nothing is left to prepare, or the prefetcher ends.
  bool prepare_one() {
    Item* const item = claim();
    if (item == nullptr) {
      return false;
    }
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

  // The next micro-batch that nobody prepares yet. Items stay where they are until the consumer takes them.
  Item* claim() {
    const std::lock_guard one_at_a_time(claim_mutex_);
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [this] { return is_stopping_ || items_.size() < depth_; });
    if (is_stopping_ || claim_step_ > last_step_) {
      return nullptr;
    }
    Item& item = items_.emplace_back();
    item.step = claim_step_;
    item.index = claim_index_;
    if (claim_index_ == 0 && !plan_step(item, lock)) {
      return nullptr;
    }
    item.plan = claim_plan_;
    if (++claim_index_ == claim_plan_->micro_batches.size()) {
      ++claim_step_;
      claim_index_ = 0;
    }
    lock.unlock();
    changed_.notify_one();
    return &item;
  }

  // Planning the first step of an epoch takes a while: without the lock, so that what is ready can be taken.
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

  // Nothing is begun after a failure; what was begun before it is finished and delivered.
  void fail(Item& item, std::exception_ptr error) {
    item.error = std::move(error);
    is_stopping_ = true;
    has_room_.notify_all();
  }

  // The first item, when it is as far as the consumer wants it. Throws its error when it does not get there.
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

  // With the lock held, while the first item is not ready.
  std::string describe_wait(Clock::duration waited) const {
    const std::string time = format_duration(std::chrono::duration<double>(waited).count());
    if (items_.empty() || items_.front().plan == nullptr) {
      return "training has waited " + time + " for data: the rows of step " +
             std::to_string(items_.empty() ? consumer_step_ : items_.front().step) +
             " are being chosen (the first step of an epoch waits until all its rows are packed). It continues after "
             "that";
    }
    const Item& item = items_.front();
    const MicroBatchPlan& plan = item.plan->micro_batches[item.index];
    return "training has waited " + time + " for data: step " + std::to_string(item.step) + ", micro-batch " +
           std::to_string(item.index + 1) + " of " + std::to_string(item.plan->micro_batches.size()) + ", " +
           std::to_string(plan.documents.size()) + " documents" +
           (plan.documents.empty() ? "" : ", the first is " + store_.source(plan.documents[0])) +
           ". It continues once they are read. A slow disk is the usual cause; stage_dir puts the data on a local one";
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
  std::deque<Item> items_;  ///< claimed and not taken, in order
  bool is_stopping_ = false;

  // Of the consumer's thread.
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

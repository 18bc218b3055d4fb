// A pipeline: produces items one at a time, maps them in several threads, and consumes them in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lora_train::data {

/// One thread at a time calls produce() -> optional<Item> until it returns nullopt; several threads call map(Item) ->
/// Result; the calling thread calls consume(Result) -> bool, in item order, until it returns false. At most 2 x
/// num_threads items are in flight. An exception from produce or map reaches the caller in order, after all earlier
/// items were consumed, so that the caller sees the first error in item order. With num_threads <= 1 the calling thread
/// does everything.
template <typename Item, typename Result>
class OrderedMap {
 public:
  OrderedMap(std::function<std::optional<Item>()> produce, std::function<Result(Item&&)> map)
      : produce_(std::move(produce)), map_(std::move(map)) {}

  void run(std::size_t num_threads, const std::function<bool(Result&&)>& consume) {
    if (num_threads <= 1) {
      for (auto item = produce_(); item && consume(map_(std::move(*item)));) {
        item = produce_();
      }
      return;
    }
    max_under_way_ = 2 * num_threads;
    // Destroyed last to first: requests the stop before the threads are joined, even if consume throws.
    std::vector<std::jthread> threads;
    const struct Stop {
      OrderedMap& map;
      ~Stop() { map.stop(); }
    } stop_at_end{*this};
    for (std::size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([this] { work(); });
    }
    while (auto result = take()) {
      if (!consume(std::move(*result))) return;
    }
  }

 private:
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr error;
  };

  void stop() {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }

  void work() {
    while (auto item = next_item()) {
      Slot slot;
      try {
        slot.result = map_(std::move(item->second));
      } catch (...) {
        slot.error = std::current_exception();
      }
      put(item->first, std::move(slot));
    }
  }

  std::optional<std::pair<std::size_t, Item>> next_item() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_ended_ || num_produced_ - num_consumed_ < max_under_way_; });
    if (is_ended_) return std::nullopt;
    try {
      if (auto item = produce_()) return std::pair(num_produced_++, std::move(*item));
    } catch (...) {
      slots_[num_produced_++].error = std::current_exception();
    }
    is_ended_ = true;
    changed_.notify_all();
    return std::nullopt;
  }

  void put(std::size_t number, Slot&& slot) {
    const std::lock_guard lock(mutex_);
    slots_[number] = std::move(slot);
    changed_.notify_all();
  }

  std::optional<Result> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return slots_.contains(num_consumed_) || (is_ended_ && num_consumed_ == num_produced_); });
    if (!slots_.contains(num_consumed_)) return std::nullopt;
    Slot slot = std::move(slots_.extract(num_consumed_++).mapped());
    changed_.notify_all();
    if (slot.error) {
      std::rethrow_exception(slot.error);
    }
    return std::move(slot.result);
  }

  std::function<std::optional<Item>()> produce_;
  std::function<Result(Item&&)> map_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, Slot> slots_;  // finished, not yet consumed
  std::size_t max_under_way_ = 0, num_produced_ = 0, num_consumed_ = 0;
  bool is_ended_ = false;  // no more items
};

}  // namespace lora_train::data

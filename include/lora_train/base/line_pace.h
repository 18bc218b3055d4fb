// When slow work says how far it is.
#pragma once

#include <atomic>
#include <chrono>

namespace lora_train {

/// For log lines about work that may take long: none for what takes less than 2 s, the first one then, and one every 10 s from there.
/// Thread-safe.
class LinePace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LinePace(Clock::duration first = std::chrono::seconds(2), Clock::duration next = std::chrono::seconds(10))
      : next_(next), due_(Clock::now() + first) {}

  /// Whether the caller is to log a line now. Of several threads, one is.
  bool is_due() {
    Clock::time_point due = due_;
    const Clock::time_point now = Clock::now();
    return now >= due && due_.compare_exchange_strong(due, now + next_);
  }

 private:
  const Clock::duration next_;
  std::atomic<Clock::time_point> due_;
};

}  // namespace lora_train

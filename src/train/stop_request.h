// Requests to stop: signals and --max-time. The training loop looks after every micro-batch.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace lora_train::train {

/// While it lives, SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless inherited as ignored) are recorded; a second one ends
/// the process at once with 128 + n. One object at a time.
class StopRequests {
 public:
  /// max_time_s counts from construction, by the monotonic clock.
  explicit StopRequests(std::optional<double> max_time_s);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Why to stop ("SIGTERM", "max_time"), or empty.
  std::string reason() const;

 private:
  std::chrono::steady_clock::time_point start_;
  std::optional<double> max_time_s_;
};

}  // namespace lora_train::train

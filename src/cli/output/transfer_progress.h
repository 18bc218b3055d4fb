// Progress of a download or an upload in bytes, and of a command that writes tensors.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lora_train/base/log.h"
#include "lora_train/report/progress_bar.h"

namespace lora_train::cli {

/// Shows nothing until the first update(). Not thread-safe.
class TransferProgress {
 public:
  explicit TransferProgress(bool quiet) : quiet_(quiet) {}
  /// `doing` in place of the rate; empty: the rate. What was there at the first call does not count in it.
  void update(std::uint64_t num_bytes, std::uint64_t total_bytes, const std::string& doing = {});

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_;
  std::unique_ptr<report::ProgressBar> bar_;
  Clock::time_point start_;
  std::uint64_t start_bytes_ = 0;
};

class TensorProgress {
 public:
  explicit TensorProgress(std::string doing) : doing_(std::move(doing)) {}
  void operator()(std::int64_t num_done, std::int64_t num_tensors, std::string_view name) {
    const auto now = std::chrono::steady_clock::now();
    if (num_done > 0 && now < next_) return;
    next_ = now + std::chrono::seconds(1);
    log_info(doing_ + ": " + std::to_string(num_done) + " of " + std::to_string(num_tensors) + " tensors, " +
             std::string(name));
  }

 private:
  std::string doing_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace lora_train::cli

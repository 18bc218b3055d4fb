// Progress of a download or an upload, in bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace lora_train::cli

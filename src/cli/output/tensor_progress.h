// Progress of a command that writes tensors.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "lora_train/base/log.h"

namespace lora_train::cli {

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

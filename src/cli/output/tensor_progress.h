// Progress of a command that writes tensors.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "lora_train/base/log.h"

namespace lora_train::cli {

/// Logs at most one line a second: "merging: 3 of 12 tensors, lm_head.weight".
inline auto tensor_progress(const std::string& doing) {
  return [doing, next = std::chrono::steady_clock::time_point()](std::int64_t num_done, std::int64_t num_tensors,
                                                                 std::string_view name) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (num_done > 0 && now < next) return;
    next = now + std::chrono::seconds(1);
    log_info("{}: {} of {} tensors, {}", doing, num_done, num_tensors, name);
  };
}

}  // namespace lora_train::cli

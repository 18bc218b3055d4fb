// How far `teach` is: answers and tokens per second, cost, time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "lora_train/report/progress_bar.h"
#include "lora_train/teach/teacher.h"

namespace lora_train::cli {

/// USD per million tokens.
struct TokenPrices {
  std::optional<double> prompt = {}, completion = {};
};

struct TeachTotals {
  std::int64_t answers = 0, prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;
  std::optional<double> cost_usd = {};
};

/// Thread-safe.
class TeachProgress {
 public:
  TeachProgress(std::size_t num_answers, TokenPrices prices, bool is_quiet);
  void add(const teach::Answer& answer);
  TeachTotals totals() const;

 private:
  using Clock = std::chrono::steady_clock;
  TeachTotals totals_locked() const;

  TokenPrices prices_;
  Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  TeachTotals totals_;
  report::ProgressState state_;
  report::ProgressBar bar_;
};

}  // namespace lora_train::cli

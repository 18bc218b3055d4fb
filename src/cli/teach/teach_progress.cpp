#include "teach_progress.h"

#include <algorithm>

namespace lora_train::cli {

TeachProgress::TeachProgress(std::size_t num_answers, TokenPrices prices, bool is_quiet)
    : prices_(prices), bar_({.quiet = is_quiet}) {
  state_.total_steps = static_cast<long long>(num_answers);
  state_.unit = "answer";
}

void TeachProgress::add(const teach::Answer& answer) {
  const std::lock_guard lock(mutex_);
  ++totals_.answers;
  totals_.prompt_tokens += answer.prompt_tokens;
  totals_.completion_tokens += answer.completion_tokens;
  const TeachTotals now = totals_locked();
  state_.step = now.answers;
  state_.steps_per_s = static_cast<double>(now.answers) / now.seconds;
  state_.tokens_per_s = static_cast<double>(now.completion_tokens) / now.seconds;
  state_.eta_s = static_cast<double>(state_.total_steps - state_.step) / state_.steps_per_s;
  state_.elapsed_s = now.seconds;
  state_.cost_usd = now.cost_usd;
  bar_.update(state_);
}

TeachTotals TeachProgress::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_locked();
}

TeachTotals TeachProgress::totals_locked() const {
  TeachTotals now = totals_;
  now.seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
  if (prices_.prompt || prices_.completion) {
    now.cost_usd = (static_cast<double>(now.prompt_tokens) * prices_.prompt.value_or(0) +
                    static_cast<double>(now.completion_tokens) * prices_.completion.value_or(0)) /
                   1e6;
  }
  return now;
}

}  // namespace lora_train::cli

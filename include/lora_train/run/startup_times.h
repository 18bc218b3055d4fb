// How the time up to the end of the first step was spent.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace lora_train::run {

/// Seconds per startup phase, in order. Not thread-safe.
class StartupTimes {
 public:
  using Clock = std::chrono::steady_clock;
  /// Ends `phase`, which began at the previous call or at construction, and returns its seconds. Phases with the same name add up.
  /// Does nothing after finish().
  double end_phase(const std::string& phase) {
    if (is_finished_) return 0;
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    add(phase, seconds);
    last_ = now;
    return seconds;
  }
  void finish() { is_finished_ = true; }
  bool is_finished() const { return is_finished_; }

  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }
  double total_s() const;
  /// "7.8 s (open model 0.1, data 1.9, step 1.0)"
  std::string in_words() const;

 private:
  void add(const std::string& phase, double seconds);

  Clock::time_point last_ = Clock::now();
  std::vector<std::pair<std::string, double>> phases_;
  bool is_finished_ = false;
};

}  // namespace lora_train::run

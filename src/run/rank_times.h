// Where the time of several ranks goes: each step takes as long as its slowest rank.
#pragma once

#include <string>
#include <vector>

#include "lora_train/report/metrics_writer.h"
#include "lora_train/run/step_scalars.h"

namespace lora_train::run {

/// Warns of the slowest rank, once for each, when it costs more than 5% of the step time over 50 steps. Not thread-safe.
class RankTimes {
 public:
  /// The figures of a finished step, by rank, and its time. Figures without compute_ms, as the first ones of a GPU, do not count.
  void add(const std::vector<RankFigures>& figures, double step_ms);
  /// The means of the steps since the last call; empty if there was none.
  report::RankRecord take();
  /// "ranks: computing takes 210.0 to 240.0 ms of a step of 260.0 ms; rank 3 is the slowest and costs 2.1% of the time"
  std::string in_words() const;

 private:
  struct Sums {
    std::vector<RankFigures> ranks;  ///< sums over steps; memory: the last
    double step_ms = 0;
    double num_steps = 0;

    void add(const std::vector<RankFigures>& figures, double step_milliseconds);
  };
  struct Slowest {
    std::size_t rank = 0;
    double ms = 0;     ///< per step, computing and waiting for data
    double other = 0;  ///< the median of the others
    double share = 0;  ///< of the step time that it costs
  };
  static Slowest slowest_of(const Sums& sums);
  void warn();

  Sums since_record_, since_warning_, all_;
  std::vector<bool> is_named_;
};

}  // namespace lora_train::run

#include "rank_times.h"

#include <algorithm>
#include <cstdio>

#include "lora_train/base/log.h"

namespace lora_train::run {
namespace {

constexpr double kNoticeableShare = 0.05;
constexpr double kStepsToJudgeRanks = 50;

double busy_ms(const RankFigures& figures) { return figures.compute_ms + figures.data_wait_ms; }

}  // namespace

void RankTimes::Sums::add(const std::vector<RankFigures>& figures, double step_milliseconds) {
  ranks.resize(figures.size());
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    ranks[rank].compute_ms += figures[rank].compute_ms;
    ranks[rank].data_wait_ms += figures[rank].data_wait_ms;
    ranks[rank].memory_gib = figures[rank].memory_gib;
  }
  step_ms += step_milliseconds;
  ++num_steps;
}

void RankTimes::add(const std::vector<RankFigures>& figures, double step_ms) {
  if (std::any_of(figures.begin(), figures.end(), [](const RankFigures& rank) { return rank.compute_ms <= 0; })) return;
  for (Sums* sums : {&since_record_, &since_warning_, &all_}) sums->add(figures, step_ms);
  if (since_warning_.num_steps < kStepsToJudgeRanks) return;
  warn();
  since_warning_ = {};
}

report::RankRecord RankTimes::take() {
  report::RankRecord record;
  for (const RankFigures& rank : since_record_.ranks) {
    record.compute_ms.push_back(rank.compute_ms / since_record_.num_steps);
    record.data_wait_ms.push_back(rank.data_wait_ms / since_record_.num_steps);
    record.memory_gib.push_back(rank.memory_gib);
  }
  since_record_ = {};
  return record;
}

RankTimes::Slowest RankTimes::slowest_of(const Sums& sums) {
  const auto slower = [](const RankFigures& a, const RankFigures& b) { return busy_ms(a) < busy_ms(b); };
  Slowest slowest;
  slowest.rank =
      static_cast<std::size_t>(std::max_element(sums.ranks.begin(), sums.ranks.end(), slower) - sums.ranks.begin());
  std::vector<double> others;
  for (const RankFigures& rank : sums.ranks) others.push_back(busy_ms(rank) / sums.num_steps);
  slowest.ms = others[slowest.rank];
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(slowest.rank));
  std::sort(others.begin(), others.end());
  slowest.other = others[others.size() / 2];
  slowest.share = (slowest.ms - slowest.other) / (sums.step_ms / sums.num_steps);
  return slowest;
}

void RankTimes::warn() {
  is_named_.resize(since_warning_.ranks.size());
  const Slowest slowest = slowest_of(since_warning_);
  if (slowest.share <= kNoticeableShare || is_named_[slowest.rank]) return;
  is_named_[slowest.rank] = true;
  const double wait_ms = since_warning_.ranks[slowest.rank].data_wait_ms / since_warning_.num_steps;
  char line[300];
  std::snprintf(
      line, sizeof line,
      "rank %zu is the slowest: it needs %.1f ms a step (%.1f ms of it waiting for data), half of the others %.1f ms "
      "or less. The others wait for it, which costs %.0f%% of the time. Look at its device, and at what else "
      "runs on its host",
      slowest.rank, slowest.ms, wait_ms, slowest.other, 100 * slowest.share);
  log_warning(line);
}

std::string RankTimes::in_words() const {
  if (all_.num_steps == 0) return "ranks: no step was timed";
  const Slowest slowest = slowest_of(all_);
  const auto faster = [](const RankFigures& a, const RankFigures& b) { return busy_ms(a) < busy_ms(b); };
  const double least = busy_ms(*std::min_element(all_.ranks.begin(), all_.ranks.end(), faster)) / all_.num_steps;
  char line[200];
  std::snprintf(line, sizeof line,
                "ranks: computing and waiting for data takes %.1f to %.1f ms of a step of %.1f ms; rank %zu is the "
                "slowest and costs %.1f%% of the time",
                least, slowest.ms, all_.step_ms / all_.num_steps, slowest.rank, 100 * slowest.share);
  return line;
}

}  // namespace lora_train::run

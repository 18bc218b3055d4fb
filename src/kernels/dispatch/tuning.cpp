#include "lora_train/kernels/dispatch/tuning.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::kernels {
namespace {

constexpr int kRoundsForAll = 2, kRounds = 5;
constexpr double kHopeless = 1.25;  // dropped after kRoundsForAll if this much slower than another's slower run

/// A candidate under measurement.
struct Runner {
  const TuningCandidate* candidate;
  std::vector<double> ms = {};
  bool is_hopeless = false;  ///< no longer measured, but still eligible

  double best() const { return *std::min_element(ms.begin(), ms.end()); }
  double worst() const { return *std::max_element(ms.begin(), ms.end()); }
  double median() const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

std::string shortened(const std::string& text, std::size_t length) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() <= length ? line : line.substr(0, length) + "...";
}

/// Runs `work` for a candidate. Logs a failure and returns false.
template <class Work>
bool survives(const std::string& key, const TuningCandidate& candidate, const Work& work) {
  throw_if_stop_requested();
  std::string reason;
  try {
    reason = work();
  } catch (const StopError&) {
    throw;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (reason.empty()) return true;
  log_info("tuning: {}: dropped {}: {}", key, shortened(candidate.choice, 24), shortened(reason, 200));
  return false;
}

/// Times each candidate once more; drops those that fail.
void run_round(const std::string& key, const Stopwatch& stopwatch, std::vector<Runner>& runners) {
  std::erase_if(runners, [&](Runner& runner) {
    return !runner.is_hopeless && !survives(key, *runner.candidate, [&] {
      runner.ms.push_back(stopwatch(runner.candidate->run) * runner.candidate->weight);
      return std::string();
    });
  });
}

/// Compares best with worst runs, so that one outlier does not drop a candidate.
void find_hopeless(std::vector<Runner>& runners) {
  double bound = std::numeric_limits<double>::infinity();
  for (const Runner& runner : runners) bound = std::min(bound, kHopeless * runner.worst());
  for (Runner& runner : runners) runner.is_hopeless = runner.best() > bound;
}

bool is_faster(const Runner& a, const Runner& b) {
  return a.is_hopeless != b.is_hopeless ? b.is_hopeless : a.median() < b.median();
}

/// Warm-up: the first run also compiles and allocates.
std::vector<Runner> warm_up(const std::string& key, const std::vector<TuningCandidate>& candidates) {
  std::vector<Runner> runners;
  for (const TuningCandidate& candidate : candidates) {
    const bool works = survives(key, candidate, [&] {
      candidate.run();
      return candidate.check ? candidate.check() : std::string();
    });
    if (works) runners.push_back({&candidate});
  }
  return runners;
}

}  // namespace

Tuner::Tuner(TuningTable checkpoint, TuningTable cache, Stopwatch stopwatch)
    : checkpoint_(std::move(checkpoint)),
      cache_(std::move(cache)),
      table_(checkpoint_),
      stopwatch_(std::move(stopwatch)) {}

std::optional<Tuned> Tuner::find(const TuningCase& tuning_case) {
  for (auto [table, count] :
       {std::pair(&checkpoint_, &counts_.from_checkpoint), std::pair(&cache_, &counts_.from_cache)}) {
    auto entry = table->find(tuning_case.key);
    if (entry == table->end() && table == &checkpoint_ && !tuning_case.of_run.empty()) {
      entry = table->lower_bound(tuning_case.of_run);
      if (entry != table->end() && !entry->first.starts_with(tuning_case.of_run)) entry = table->end();
    }
    if (entry == table->end()) continue;
    if (tuning_case.accepts(entry->second.choice)) {
      ++*count;
      return entry->second;
    }
    log_info("tuning: {}: {} was chosen before and cannot be used here", tuning_case.key,
             shortened(entry->second.choice, 24));
  }
  return {};
}

std::optional<Tuned> Tuner::measure(const TuningCase& tuning_case) {
  if (!stopwatch_) return {};
  const std::vector<TuningCandidate> candidates = tuning_case.candidates();
  if (candidates.size() < 2) return {};
  std::vector<Runner> runners = warm_up(tuning_case.key, candidates);
  for (int round = 0; round < kRounds; ++round) {
    run_round(tuning_case.key, stopwatch_, runners);
    if (round + 1 == kRoundsForAll) find_hopeless(runners);
  }
  if (runners.empty()) return {};
  const Runner& fastest = *std::min_element(runners.begin(), runners.end(), &is_faster);
  const bool has_default = runners.front().candidate == &candidates.front();
  return Tuned{fastest.candidate->choice, fastest.median(), has_default ? runners.front().median() : 0,
               static_cast<int>(candidates.size())};
}

std::optional<std::string> Tuner::choose(const TuningCase& tuning_case) {
  const auto [entry, is_new] = decided_.try_emplace(tuning_case.key);
  if (!is_new) return entry->second;
  std::optional<Tuned> tuned = find(tuning_case);
  if (!tuned) {
    const auto start = std::chrono::steady_clock::now();
    const double before = seconds_;
    tuned = measure(tuning_case);  // may make nested choices, within this time
    seconds_ = before + std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (tuned) measured_[tuning_case.key] = *tuned;
    ++(tuned ? counts_.measured : counts_.left_to_heuristics);
  }
  if (!tuned) {
    table_.erase(tuning_case.key);
    return {};
  }
  table_[tuning_case.key] = *tuned;
  return entry->second = tuned->choice;
}

std::string Tuner::describe() const {
  return fmt::format(
      "tuning: {} choices, {} from the checkpoint, {} from the cache, {} measured in {:.1f} s, {} left to heuristics",
      counts_.total(), counts_.from_checkpoint, counts_.from_cache, counts_.measured, seconds_,
      counts_.left_to_heuristics);
}

}  // namespace lora_train::kernels

// Autotuning: measures which of several equivalent candidates is fastest on this machine. Each process measures once,
// before step 1; the results are text, kept in the checkpoint and in a disk cache (plan/tuning/tuning.h). No torch.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::kernels {

/// The winner of a measurement, and its time.
struct Tuned {
  std::string choice;
  double ms = 0, default_ms = 0;  ///< medians of the winner and of the heuristic's choice (0: it failed)
  int num_candidates = 0;

  bool operator==(const Tuned&) const = default;
};

/// Results by key. A key holds the operation and everything that the choice depends on.
using TuningTable = std::map<std::string, Tuned>;

/// One implementation to measure.
struct TuningCandidate {
  std::string choice;
  std::function<void()> run;
  std::function<std::string()> check =
      {};             ///< returns why its result is wrong, or an empty string; called once, after the first run
  double weight = 1;  ///< how many runs make up the same work
};

/// One choice to make.
struct TuningCase {
  std::string key;
  /// True when a stored choice can be used here.
  std::function<bool(const std::string& choice)> accepts;
  /// The heuristic's choice first. Called only when a measurement is needed.
  std::function<std::vector<TuningCandidate>()> candidates;
  /// The prefix of the key that stays the same for a whole run. If the checkpoint has no entry for the key, its first
  /// entry with this prefix applies, whatever sizes it was measured for. Empty: only an exact match applies.
  std::string of_run = {};
};

/// Returns the milliseconds that one call takes on the device.
using Stopwatch = std::function<double(const std::function<void()>& run)>;

/// Makes each choice once: from the checkpoint's table, else from the cache, else by measuring. Not thread-safe.
class Tuner {
 public:
  /// Without a stopwatch, the heuristic decides whatever the tables lack.
  Tuner(TuningTable checkpoint, TuningTable cache, Stopwatch stopwatch);

  /// Returns nothing if there is no choice to make or every candidate failed; the heuristic then decides. A candidate
  /// that throws or computes a wrong result is dropped and logged. Measures in rounds over all candidates, so that
  /// clock drift favours none; the lowest median wins, ties go to the earlier candidate. Throws StopError.
  std::optional<std::string> choose(const TuningCase& tuning_case);

  /// All choices, including unused ones of the checkpoint.
  const TuningTable& table() const { return table_; }
  /// The choices measured by this process.
  const TuningTable& measured() const { return measured_; }

  struct Counts {
    int from_checkpoint = 0, from_cache = 0, measured = 0, left_to_heuristics = 0;
    int total() const { return from_checkpoint + from_cache + measured + left_to_heuristics; }
  };
  const Counts& counts() const { return counts_; }
  double seconds() const { return seconds_; }  ///< spent measuring
  /// "tuning: 12 choices, 10 from the checkpoint, 2 from the cache, 0 measured in 0.0 s, 0 left to heuristics"
  std::string describe() const;

 private:
  std::optional<Tuned> find(const TuningCase& tuning_case);
  std::optional<Tuned> measure(const TuningCase& tuning_case);

  TuningTable checkpoint_, cache_, table_, measured_;
  std::map<std::string, std::optional<std::string>> decided_;
  Stopwatch stopwatch_;
  Counts counts_;
  double seconds_ = 0;
};

}  // namespace lora_train::kernels

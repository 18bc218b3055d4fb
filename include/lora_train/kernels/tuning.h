// Choices made by measuring: which of several ways to compute the same thing is the fastest here. Made once, before step 1,
// by one process; kept as text in checkpoint and disk cache (train/tuning_store.h), and sent to others as that. No torch.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lora_train::kernels {

/// What was chosen, and what the measurement said.
struct Tuned {
  std::string choice;
  double ms = 0, default_ms = 0;  ///< median of the choice, and of what heuristics would have taken (0: that failed)
  int num_candidates = 0;

  bool operator==(const Tuned&) const = default;
};

/// By key: what is computed, and all that the choice depends on.
using TuningTable = std::map<std::string, Tuned>;

/// One way to compute.
struct TuningCandidate {
  std::string choice;
  std::function<void()> run;
  std::function<std::string()> check = {};  ///< why its result is wrong, or empty; asked once, after the first run
  double weight = 1;                        ///< how often it would run for the same work
};

/// One choice to make.
struct TuningCase {
  std::string key;
  /// Whether a choice that was made elsewhere can be used here.
  std::function<bool(const std::string& choice)> accepts;
  /// What heuristics would take comes first. Asked for only where it has to be measured.
  std::function<std::vector<TuningCandidate>()> candidates;
  /// A part of the key, from its begin, that is the same as long as a run lasts: without an entry for the key, the first of
  /// the checkpoint's that begins with it stands, whatever sizes it was made for. Empty: only an entry for the key does.
  std::string of_run = {};
};

/// Milliseconds that one call takes on the device.
using Stopwatch = std::function<double(const std::function<void()>& run)>;

/// Makes each choice once: from the checkpoint's table, else the cache's, else by measuring. Not thread-safe.
class Tuner {
 public:
  Tuner(TuningTable checkpoint, TuningTable cache, Stopwatch stopwatch);

  /// Nothing where there is no choice to make or every candidate failed: heuristics decide. A candidate that throws, or whose
  /// result is wrong, is out, with a line in the log. Measured is in rounds over all candidates, so that a clock that drifts
  /// favours none; the lowest median wins, the earlier one of equal ones. Throws StopError.
  std::optional<std::string> choose(const TuningCase& tuning_case);

  /// All choices, those of the checkpoint that were not asked for included.
  const TuningTable& table() const { return table_; }
  /// Those that were measured here.
  const TuningTable& measured() const { return measured_; }

  struct Counts {
    int from_checkpoint = 0, from_cache = 0, measured = 0, left_to_heuristics = 0;
    int total() const { return from_checkpoint + from_cache + measured + left_to_heuristics; }
  };
  const Counts& counts() const { return counts_; }
  double seconds() const { return seconds_; }  ///< that measuring took
  /// "tuning: 12 choices, 10 of the checkpoint, 2 of the cache, 0 measured in 0.0 s, 0 left to heuristics"
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

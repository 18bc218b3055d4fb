// Shows progress on stderr: one line, redrawn, on a terminal; plain lines elsewhere. Never writes to stdout.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace lora_train::metrics {

struct ProgressState {
  long long step = 0;  ///< finished steps
  long long total_steps = 0;
  std::optional<double> loss = {};  ///< mean since the last logged step, or of the step; empty: the work has no loss
  double steps_per_s = 0;
  double tokens_per_s = 0;
  double eta_s = 0;  ///< time left
  std::optional<double> cost_usd =
      {};                     ///< so far; empty: not known, and not shown. The bar leaves it out where it has no room
  const char* unit = "step";  ///< the unit of `step`, in the plain line
};

struct ProgressOptions {
  bool quiet = false;                    ///< no bar; the plain lines then reach run.log only, not stderr
  std::optional<bool> is_terminal = {};  ///< default: stderr is a terminal and TERM is not "dumb"
  std::optional<int> width = {};         ///< columns; default: the terminal's, read at each draw
  std::optional<bool> use_color = {};    ///< default: on a terminal, unless NO_COLOR is set and not empty
  int fd = 2;                            ///< for tests: the bar is drawn there
};

/// The text of the plain line, and of the bar with at most `width` columns: "step 12/100 (12%) loss 1.2346 3.21 it/s ...".
std::string format_progress_line(const ProgressState& state);
std::string format_progress_bar(const ProgressState& state, int width, bool use_color);

/// Registers itself with the log (set_log_bar), so that log lines are printed intact above the bar; only one bar may exist at a
/// time. Ignores write errors: a closed terminal never ends a run. Thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(const ProgressOptions& options = {});
  ~ProgressBar();  ///< leaves the last state on the terminal and unregisters
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Call it after every step. Draws at most 10 times a second; does nothing if stderr is not a terminal.
  void update(const ProgressState& state);

  /// Call it after every logged step: without a bar, logs format_progress_line(state); with one, calls update(state).
  void log_step(const ProgressState& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lora_train::metrics

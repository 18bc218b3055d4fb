// Shows progress on stderr: one line, redrawn, on a terminal; plain lines at a pace for log readers elsewhere. Never writes to
// stdout.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace lora_train::report {

/// Empty values are not known and not shown.
struct ProgressState {
  long long step = 0;  ///< finished steps
  long long total_steps = 0;
  std::optional<double> loss = {};  ///< mean since the last logged step, or of the step; empty: the work has no loss
  double steps_per_s = 0;
  double tokens_per_s = 0;
  double eta_s = 0;                      ///< time left
  std::optional<double> cost_usd = {};   ///< so far
  const char* unit = "step";             ///< the unit of `step`, in the plain line
  std::optional<double> elapsed_s = {};  ///< so far
  std::optional<double> learning_rate = {}, epoch = {};
  std::optional<double> eval_loss = {};                     ///< of the last evaluation
  std::optional<double> gpu_utilization = {};               ///< 0 to 100
  std::optional<long long> next_eval = {}, next_save = {};  ///< after which step
  std::string activity = {};  ///< what goes on between steps, "evaluating val 3/12"; then no rates are shown
};

struct ProgressOptions {
  bool quiet = false;                    ///< no bar; the plain lines then reach run.log only, not stderr
  std::optional<bool> is_terminal = {};  ///< default: stderr is a terminal and TERM is not "dumb"
  std::optional<int> width = {};         ///< columns; default: the terminal's, read at each draw, else COLUMNS, else 80
  std::optional<bool> use_color = {};    ///< default: on a terminal, unless NO_COLOR is set and not empty
  int fd = 2;                            ///< for tests: the bar is drawn there
  std::chrono::milliseconds tick{
      1000};  ///< a bar that was not drawn for so long is drawn again, with the time that has passed
  std::chrono::milliseconds line_interval{10000};  ///< see log_step()
};

/// The text of the plain line: "step 12/100 (12%) loss 1.2346 ... 3.21 it/s 1,234 tok/s gpu 97%, 2m 05s elapsed, 1m 05s left".
std::string format_progress_line(const ProgressState& state);

/// The text of the bar with at most `width` columns: " 12% [###-----] 12/100 02:05<01:05 loss 1.2346 ...", with time as
/// elapsed<left. What a reader needs least leaves first where there is no room: cost, epoch, the bar itself, next_save, next_eval,
/// learning rate, it/s, evaluation loss, GPU, tok/s, time, loss.
std::string format_progress_bar(const ProgressState& state, int width, bool use_color);

/// Registers itself with the log (set_log_bar), so that log lines are printed intact above the bar; only one bar may exist at a
/// time. The cursor rests at the start of the bar: a terminal that becomes narrower and wraps it loses nothing above, and the next
/// draw (within `tick`) removes what was wrapped. Ignores write errors: a closed terminal never ends a run. Thread-safe; a bar on a
/// terminal has a thread that draws it again while nothing happens.
class ProgressBar {
 public:
  explicit ProgressBar(const ProgressOptions& options = {});
  ~ProgressBar();  ///< leaves the last state on the terminal, or logs the line that log_step() held back; unregisters
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Call it after every step. Draws at most 10 times a second; without a terminal, logs format_progress_line(state) if the last
  /// line is older than line_interval.
  void update(const ProgressState& state);

  /// Call it after every logged step: as update(), but without a terminal it also logs the first and the last step, and those that
  /// are 1% further than the last line: about a hundred lines, and more in a long run. (line_interval grows to a thousandth of the
  /// time of the work, at most to six times itself.)
  void log_step(const ProgressState& state);

  /// Between steps: step, total_steps, activity, and what `now` has of elapsed_s and eval_loss, replace those that are shown.
  void show_activity(const ProgressState& now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lora_train::report

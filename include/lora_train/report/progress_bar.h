// Shows progress on stderr: on a terminal, one line that is redrawn; elsewhere, occasional plain lines for log readers.
// Never writes to stdout.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace lora_train::report {

/// Empty values are unknown and not shown.
struct ProgressState {
  long long step = 0;  ///< finished steps
  long long total_steps = 0;
  std::optional<double> loss = {};  ///< mean since the last logged step, or of the step; empty: this work has no loss
  double steps_per_s = 0;
  double tokens_per_s = 0;
  double eta_s = 0;                      ///< time left
  std::optional<double> cost_usd = {};   ///< so far
  const char* unit = "step";             ///< the unit of `step`, in the plain line
  std::optional<double> elapsed_s = {};  ///< so far
  std::optional<double> learning_rate = {}, epoch = {};
  std::optional<double> eval_loss = {};                     ///< from the last evaluation
  std::optional<double> gpu_utilization = {};               ///< 0 to 100
  std::optional<long long> next_eval = {}, next_save = {};  ///< number of the step after which it happens
  std::string activity = {};  ///< work between steps, "evaluating val 3/12"; hides the rates
};

struct ProgressOptions {
  bool quiet = false;                    ///< no bar; plain lines go to run.log only, not to stderr
  std::optional<bool> is_terminal = {};  ///< default: stderr is a terminal and TERM is not "dumb"
  std::optional<int> width = {};         ///< columns; default: the terminal's, read at each draw, else COLUMNS, else 80
  std::optional<bool> use_color = {};    ///< default: on a terminal, unless NO_COLOR is set and not empty
  int fd = 2;                            ///< where to draw the bar; for tests
  std::chrono::milliseconds tick{1000};  ///< redraws the bar, with the elapsed time, if it was not drawn for this long
  std::chrono::milliseconds line_interval{10000};  ///< see log_step()
};

/// The plain line: "step 12/100 (12%) loss 1.2346 ... 3.21 it/s 1,234 tok/s gpu 97%, 2m 05s elapsed, 1m 05s left".
std::string format_progress_line(const ProgressState& state);

/// The text of the bar in at most `width` columns: " 12% [###-----] 12/100 02:05<01:05 loss 1.2346 ...", with time as
/// elapsed<left. If there is no room, drops the least important parts first: cost, epoch, the bar itself, next_save,
/// next_eval, learning rate, it/s, evaluation loss, GPU, tok/s, time, loss.
std::string format_progress_bar(const ProgressState& state, int width, bool use_color);

/// Registers itself with the log (set_log_bar), so that log lines appear intact above the bar; only one bar may exist
/// at a time. The cursor rests at the start of the bar: if the terminal becomes narrower and wraps it, nothing above is
/// lost, and the next draw (within `tick`) removes the wrapped lines. Ignores write errors: a closed terminal never
/// ends a run. Thread-safe. On a terminal, a thread redraws the bar while nothing happens.
class ProgressBar {
 public:
  explicit ProgressBar(const ProgressOptions& options = {});
  ~ProgressBar();  ///< leaves the last state on the terminal, or logs the line that log_step() held back; unregisters
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Call after every step. Draws at most 10 times per second; without a terminal, logs format_progress_line(state) if
  /// the last line is older than line_interval.
  void update(const ProgressState& state);

  /// Call after every logged step. As update(), but without a terminal it also logs the first and the last step, and
  /// any step 1% further than the last line: about a hundred lines, and more in a long run. (line_interval grows to a
  /// thousandth of the total time, up to six times its value.)
  void log_step(const ProgressState& state);

  /// Call between steps. step, total_steps, activity, and elapsed_s and eval_loss if set, replace the values shown.
  void show_activity(const ProgressState& now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A bar for work without steps of its own: counts what is done, and the tokens.
class CountProgress {
 public:
  CountProgress(const char* unit, std::size_t total, bool quiet);
  /// The time counts from here, instead of from the construction.
  void start() { start_ = std::chrono::steady_clock::now(); }
  void count(long long num_done, long long num_tokens);

 private:
  ProgressBar bar_;
  ProgressState state_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  long long num_tokens_ = 0;
};

}  // namespace lora_train::report

// How far a run is, for a person: one line redrawn on a terminal, plain lines elsewhere. Always stderr, never stdout.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace lora_train::metrics {

struct ProgressState {
  long long step = 0;  ///< finished steps
  long long total_steps = 0;
  std::optional<double> loss = {};  ///< mean since the last logged step, or of the step; none: what is done has no loss
  double steps_per_s = 0;
  double tokens_per_s = 0;
  double eta_s = 0;           ///< time left
  const char* unit = "step";  ///< what is counted, in the plain line
};

struct ProgressOptions {
  bool quiet = false;                    ///< no bar; plain lines, which the log level then keeps out of stderr
  std::optional<bool> is_terminal = {};  ///< default: whether stderr is one (and TERM is not "dumb")
  std::optional<int> width = {};         ///< columns; default: of the terminal, asked at each draw
  std::optional<bool> use_color = {};    ///< default: terminal, and NO_COLOR unset or empty
  int fd = 2;                            ///< where the bar is drawn; tests only
};

/// Text of the plain line and of the bar, at most `width` columns: "step 12/100 (12%) loss 1.2346 3.21 it/s ...".
std::string format_progress_line(const ProgressState& state);
std::string format_progress_bar(const ProgressState& state, int width, bool use_color);

/// Registers itself with the log (set_log_bar), so that log lines come out whole above the bar; one bar at a time.
/// Errors of writing are ignored: a closed terminal never ends a run. Thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(const ProgressOptions& options = {});
  ~ProgressBar();  ///< leaves the last state on the terminal and unregisters
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// After every step. Draws at most 10 times a second; does nothing when stderr is no terminal.
  void update(const ProgressState& state);

  /// After every logged step: log_info(format_progress_line) where no bar is drawn, else update(state).
  void log_step(const ProgressState& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lora_train::metrics

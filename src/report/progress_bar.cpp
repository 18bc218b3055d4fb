#include "lora_train/report/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::string_view kClear =
    "\r\x1b[J";  ///< clears to the end of the screen, including what a narrower terminal has wrapped
constexpr int kDefaultWidth = 80;
constexpr double kShareOfALine = 0.01;

bool stderr_is_terminal() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (kind == nullptr || std::strcmp(kind, "dumb") != 0);
}

int terminal_width(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* const text = std::getenv("COLUMNS");
  const int columns = whole_number<int>(text != nullptr ? text : "").value_or(0);
  return columns > 0 ? columns : kDefaultWidth;
}

bool wants_color() {
  const char* const no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 5;
constexpr int kBrackets = 2;

double share_done(const ProgressState& state) {
  if (state.total_steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total_steps), 0.0, 1.0);
}

int percent(const ProgressState& state) { return static_cast<int>(100 * share_done(state)); }  // 100 only when done

std::string steps(const ProgressState& state) { return fmt::format("{}/{}", state.step, state.total_steps); }

/// "loss 1.2346"; empty without a value.
std::string named(const char* name, const char* format, const std::optional<double>& value) {
  return value ? name + fmt::format(fmt::runtime(format), *value) : std::string();
}

std::string rate(const ProgressState& state) {
  return fmt::format("{:.{}f} it/s", state.steps_per_s, state.steps_per_s < 10 ? 2 : 1);
}

std::string token_rate(const ProgressState& state) {
  return format_count(static_cast<long long>(state.tokens_per_s)) + " tok/s";
}

/// "02:05", "1:02:05"
std::string clock(double seconds) {
  const auto whole = static_cast<long long>(std::max(seconds, 0.0));
  if (whole < 3600) return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string times(const ProgressState& state) {
  if (!state.elapsed_s) return state.steps_per_s > 0 ? clock(std::round(state.eta_s)) + " left" : "";
  return fmt::format("{}<{}", clock(*state.elapsed_s), state.steps_per_s > 0 ? clock(std::round(state.eta_s)) : "?");
}

/// A part of the bar, and its drop order: the highest number goes first.
struct Part {
  int leaves = 0;
  std::string text;
  bool is_bar = false;
};

/// From left to right.
std::vector<Part> parts_of(const ProgressState& state) {
  const auto at = [](const char* what, const std::optional<long long>& step) {
    return step ? fmt::format("{}@{}", what, *step) : std::string();
  };
  const bool has_rates = state.activity.empty();
  return {{0, fmt::format("{:3}%", percent(state))},
          {11, std::string(kNarrowestBar + kBrackets, ' '), true},
          {1, steps(state)},
          {2, state.activity},
          {4, times(state)},
          {3, named("loss ", "{:.4f}", state.loss)},
          {7, named("eval ", "{:.4f}", state.eval_loss)},
          {9, named("lr ", "{:.1e}", state.learning_rate)},
          {8, has_rates ? rate(state) : ""},
          {5, has_rates ? token_rate(state) : ""},
          {6, named("gpu ", "{:.0f}%", state.gpu_utilization)},
          {12, named("epoch ", "{:.2f}", state.epoch)},
          {10, at("eval", state.next_eval)},
          {10, at("save", state.next_save)},
          {13, state.cost_usd ? format_dollars(*state.cost_usd) : ""}};
}

/// Drops parts until the rest fits, keeping the most important that do.
std::vector<Part> those_with_room(std::vector<Part> parts, int width) {
  std::vector<const Part*> by_need;
  for (const Part& part : parts) by_need.push_back(&part);
  std::ranges::stable_sort(by_need, {}, &Part::leaves);
  std::vector<bool> is_kept(parts.size());
  int used = -1;  // no space before the first
  for (const Part* part : by_need) {
    const int needed = 1 + static_cast<int>(part->text.size());
    if (part->text.empty() || used + needed > width) continue;
    used += needed;
    is_kept[static_cast<std::size_t>(part - parts.data())] = true;
  }
  std::vector<Part> kept;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_kept[i]) kept.push_back(std::move(parts[i]));
  }
  return kept;
}

std::string draw_bar(double share, int columns, bool use_color) {
  const int full = static_cast<int>(columns * share);
  const std::string done(static_cast<std::size_t>(full), '#');
  const std::string open(static_cast<std::size_t>(columns - full), '-');
  return fmt::format("[{}{}]", use_color ? "\x1b[32m" + done + "\x1b[0m" : done, open);
}

}  // namespace

struct ProgressBar::Impl {
  ProgressOptions options;
  bool has_bar = false;  ///< else plain lines
  bool is_drawn = false, is_hidden = false, has_state = false;
  ProgressState state;
  Clock::time_point state_time{}, last_draw{};
  // For plain lines:
  Clock::time_point last_line = Clock::now();
  std::optional<double> share_of_last_line;
  bool logs_steps = false;
  std::optional<ProgressState> held_back;  ///< the last step, if its line was not due
  std::mutex mutex;
  std::condition_variable ends;
  bool is_ending = false;
  std::thread ticker;

  // A closed terminal must not end a run, so errors of write() are ignored.
  void put(std::string_view bytes) const {
    if (!can_write_to_stderr()) return;
    while (!bytes.empty()) {
      const ssize_t written = ::write(options.fd, bytes.data(), bytes.size());
      if (written <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  /// The state, advanced by the time since it was set.
  ProgressState state_now() const {
    ProgressState now = state;
    const double passed_s = seconds_between(state_time, Clock::now());
    if (now.step >= now.total_steps) return now;
    if (now.elapsed_s) *now.elapsed_s += passed_s;
    if (now.activity.empty()) now.eta_s = std::max(0.0, now.eta_s - passed_s);
    return now;
  }

  void draw() {
    const int width = options.width.value_or(terminal_width(options.fd));
    // One column less: a full line would wrap on some terminals.
    put(fmt::format("{}{}\r", kClear, format_progress_bar(state_now(), width - 1, *options.use_color)));
    is_drawn = true;
    last_draw = Clock::now();
  }

  // While the log writes a line, no thread may draw the bar.
  void hide() {
    const std::lock_guard lock(mutex);
    if (is_drawn) put(kClear);
    is_hidden = true;
  }

  void show_again() {
    const std::lock_guard lock(mutex);
    is_hidden = false;
    if (is_drawn) draw();
  }

  void tick() {
    std::unique_lock lock(mutex);
    while (!ends.wait_for(lock, options.tick, [this] { return is_ending; })) {
      if (is_drawn && !is_hidden && Clock::now() - last_draw >= options.tick) draw();
    }
  }

  void start_ticker() {
    try {
      ticker = std::thread([this] { tick(); });
    } catch (const std::system_error&) {  // the bar is then as old as the last step
    }
  }

  /// Shows what `change` makes of the state: in the bar, or as a plain line if one is due.
  void show(bool is_logged, const auto& change, bool may_log = true) {
    std::string line;
    {
      const std::lock_guard lock(mutex);
      state = change(*this);
      state_time = Clock::now();
      has_state = true;
      if (has_bar && !is_hidden && Clock::now() - last_draw >= kRedrawInterval) draw();
      if (!has_bar && may_log && (is_logged || !options.quiet)) line = line_when_due(is_logged);
    }
    if (!line.empty()) log_info(line);  // the log has a mutex of its own
  }

  /// The plain line; empty: none is due.
  std::string line_when_due(bool is_logged) {
    const double interval_s = std::chrono::duration<double>(options.line_interval).count();
    const double whole_s = state.elapsed_s.value_or(0) + state.eta_s;
    const bool is_old =
        seconds_between(last_line, Clock::now()) >= std::clamp(whole_s / 1000, interval_s, 6 * interval_s);
    const double share = share_done(state);
    // Half a step of tolerance: 0.29 - 0.28 is less than 0.01.
    const bool is_further = !share_of_last_line || share - *share_of_last_line > kShareOfALine * (1 - 1e-9);
    logs_steps = logs_steps || is_logged;
    if (!is_old && !(is_logged && (is_further || state.step == state.total_steps))) {
      if (logs_steps && state.activity.empty()) held_back = state;
      return {};
    }
    held_back.reset();
    last_line = Clock::now();
    share_of_last_line = share;
    return format_progress_line(state);
  }
};

ProgressBar::ProgressBar(const ProgressOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  const bool is_terminal = options.is_terminal.value_or(stderr_is_terminal());
  if (!options.use_color) impl_->options.use_color = is_terminal && wants_color();
  impl_->has_bar = is_terminal && !options.quiet;
  if (!impl_->has_bar) return;
  set_log_bar([bar = impl_.get()] { bar->hide(); }, [bar = impl_.get()] { bar->show_again(); });
  impl_->start_ticker();
}

ProgressBar::~ProgressBar() {
  if (!impl_->has_bar) {
    if (impl_->held_back) log_info(format_progress_line(*impl_->held_back));
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->is_ending = true;
    impl_->ends.notify_all();
  }
  if (impl_->ticker.joinable()) impl_->ticker.join();
  set_log_bar({}, {});
  if (!impl_->has_state) return;
  impl_->draw();
  impl_->put("\n");
}

void ProgressBar::update(const ProgressState& state) {
  impl_->show(/*is_logged=*/false, [&](const Impl&) { return state; });
}

void ProgressBar::log_step(const ProgressState& state) {
  impl_->show(/*is_logged=*/true, [&](const Impl&) { return state; });
}

void ProgressBar::show_activity(const ProgressState& now) {
  const auto change = [&](const Impl& bar) {
    ProgressState next = bar.state_now();
    next.step = now.step;
    next.total_steps = now.total_steps;
    if (now.elapsed_s) next.elapsed_s = now.elapsed_s;
    if (now.eval_loss) next.eval_loss = now.eval_loss;
    next.activity = now.activity;
    return next;
  };
  impl_->show(/*is_logged=*/false, change, !now.activity.empty());
}

std::string format_progress_line(const ProgressState& state) {
  std::string text = fmt::format("{} {} ({}%)", state.unit, steps(state), percent(state));
  if (!state.activity.empty()) return fmt::format("{}: {}", text, state.activity);
  for (const std::string& part : {named("loss ", "{:.4f}", state.loss), named("eval_loss ", "{:.4f}", state.eval_loss),
                                  named("lr ", "{:.2e}", state.learning_rate), named("epoch ", "{:.2f}", state.epoch),
                                  rate(state), token_rate(state), named("gpu ", "{:.0f}%", state.gpu_utilization)}) {
    if (!part.empty()) text += " " + part;
  }
  if (state.elapsed_s) text += fmt::format(", {} elapsed", format_duration(*state.elapsed_s));
  text += fmt::format(", {} left", format_duration(state.eta_s));
  return text + (state.cost_usd ? ", " + format_dollars(*state.cost_usd) : "");
}

std::string format_progress_bar(const ProgressState& state, int width, bool use_color) {
  const std::vector<Part> parts = those_with_room(parts_of(state), width);
  int used = static_cast<int>(parts.size()) - 1;
  for (const Part& part : parts) used += static_cast<int>(part.text.size());
  std::string line;
  for (const Part& part : parts) {
    if (!line.empty()) line += " ";
    const int columns = std::min(kWidestBar, kNarrowestBar + width - used);
    line += part.is_bar ? draw_bar(share_done(state), columns, use_color) : part.text;
  }
  return line;
}

CountProgress::CountProgress(const char* unit, std::size_t total, bool quiet) : bar_({.quiet = quiet}) {
  state_.total_steps = static_cast<long long>(total);
  state_.unit = unit;
}

void CountProgress::count(long long num_done, long long num_tokens) {
  state_.step += num_done;
  num_tokens_ += num_tokens;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double seconds = std::max(elapsed.count(), 1e-9);
  state_.steps_per_s = static_cast<double>(state_.step) / seconds;
  state_.tokens_per_s = static_cast<double>(num_tokens_) / seconds;
  state_.eta_s = state_.step == 0 ? 0 : static_cast<double>(state_.total_steps - state_.step) / state_.steps_per_s;
  bar_.update(state_);
}

}  // namespace lora_train::report

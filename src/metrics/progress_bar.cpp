#include "lora_train/metrics/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "lora_train/base/console.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/metrics/run_times.h"

namespace lora_train::metrics {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr int kDefaultWidth = 80;
constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 5;

double share_done(const ProgressState& state) {
  if (state.total_steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total_steps), 0.0, 1.0);
}

int percent(const ProgressState& state) { return static_cast<int>(100 * share_done(state)); }  // 100 only when done

std::string steps(const ProgressState& state) {
  return std::to_string(state.step) + "/" + std::to_string(state.total_steps);
}

std::string loss(const ProgressState& state) {
  return state.loss ? "loss " + string_printf("%.4f", *state.loss) + " " : "";
}

std::string rate(const ProgressState& state) {
  return string_printf(state.steps_per_s < 10 ? "%.2f it/s" : "%.1f it/s", state.steps_per_s);
}

std::string token_rate(const ProgressState& state) {
  return format_count(static_cast<long long>(state.tokens_per_s)) + " tok/s";
}

bool stderr_is_terminal() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (kind == nullptr || std::strcmp(kind, "dumb") != 0);
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultWidth;
}

bool wants_color() {
  const char* const no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

}  // namespace

std::string format_progress_line(const ProgressState& state) {
  return state.unit + (" " + steps(state)) + " (" + std::to_string(percent(state)) + "%) " + loss(state) + rate(state) +
         " " + token_rate(state) + ", " + format_duration(state.eta_s) + " left" +
         (state.cost_usd ? ", " + format_dollars(*state.cost_usd) : "");
}

std::string format_progress_bar(const ProgressState& state, int width, bool use_color) {
  const std::string head = string_printf("%3d%% ", percent(state));
  std::string tail = " " + steps(state) + " " + loss(state) + rate(state) + " " + token_rate(state) + " " +
                     format_duration(state.eta_s) + " left";
  const std::string cost = state.cost_usd ? " " + format_dollars(*state.cost_usd) : "";
  if (static_cast<int>(head.size() + tail.size() + cost.size()) + 2 + kNarrowestBar <= width) tail += cost;
  const int room = width - static_cast<int>(head.size() + tail.size()) - 2;
  if (room < kNarrowestBar) return (head + tail.substr(1)).substr(0, static_cast<std::size_t>(std::max(width, 0)));
  const int columns = std::min(room, kWidestBar);
  const int full = static_cast<int>(columns * share_done(state));
  const std::string done(static_cast<std::size_t>(full), '#');
  const std::string open(static_cast<std::size_t>(columns - full), '-');
  return head + "[" + (use_color ? "\x1b[32m" + done + "\x1b[0m" : done) + open + "]" + tail;
}

struct ProgressBar::Impl {
  ProgressOptions options;
  bool is_drawn = false, is_hidden = false, has_state = false;
  ProgressState state;
  std::chrono::steady_clock::time_point last_draw{};
  std::mutex mutex;

  // A closed terminal must not end a run, so errors of write() are ignored.
  void put(std::string_view bytes) const {
    if (!can_write_to_stderr()) return;
    while (!bytes.empty()) {
      const ssize_t written = ::write(options.fd, bytes.data(), bytes.size());
      if (written <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void draw() {
    const int width = options.width.value_or(terminal_width(options.fd));
    // One column less: a full line would wrap on some terminals.
    put(std::string(kClearLine) + format_progress_bar(state, width - 1, *options.use_color));
    is_drawn = true;
    last_draw = std::chrono::steady_clock::now();
  }

  // While the log writes a line, no thread may draw the bar.
  void hide() {
    const std::lock_guard lock(mutex);
    if (is_drawn) put(kClearLine);
    is_hidden = true;
  }

  void show() {
    const std::lock_guard lock(mutex);
    is_hidden = false;
    if (is_drawn) draw();
  }
};

ProgressBar::ProgressBar(const ProgressOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  if (!impl_->options.is_terminal) impl_->options.is_terminal = stderr_is_terminal();
  if (!impl_->options.use_color) impl_->options.use_color = *impl_->options.is_terminal && wants_color();
  if (options.quiet || !*impl_->options.is_terminal) return;
  set_log_bar([bar = impl_.get()] { bar->hide(); }, [bar = impl_.get()] { bar->show(); });
}

ProgressBar::~ProgressBar() {
  if (impl_->options.quiet || !*impl_->options.is_terminal) return;
  set_log_bar({}, {});
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->has_state) return;
  impl_->draw();
  impl_->put("\n");
}

void ProgressBar::update(const ProgressState& state) {
  const std::lock_guard lock(impl_->mutex);
  impl_->state = state;
  impl_->has_state = true;
  if (impl_->options.quiet || !*impl_->options.is_terminal || impl_->is_hidden) return;
  if (std::chrono::steady_clock::now() - impl_->last_draw >= kRedrawInterval) impl_->draw();
}

void ProgressBar::log_step(const ProgressState& state) {
  update(state);
  // Without the bar's mutex: the log holds its own while it calls hide() and show().
  if (impl_->options.quiet || !*impl_->options.is_terminal) log_info(format_progress_line(state));
}

}  // namespace lora_train::metrics

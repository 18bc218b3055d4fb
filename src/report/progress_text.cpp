// The texts of lora_train/metrics/progress_bar.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lora_train/base/text.h"
#include "lora_train/report/progress_bar.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {
namespace {

constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 5;
constexpr int kBrackets = 2;

double share_done(const ProgressState& state) {
  if (state.total_steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total_steps), 0.0, 1.0);
}

int percent(const ProgressState& state) { return static_cast<int>(100 * share_done(state)); }  // 100 only when done

std::string steps(const ProgressState& state) {
  return std::to_string(state.step) + "/" + std::to_string(state.total_steps);
}

/// "loss 1.2346"; empty without a value.
std::string named(const char* name, const char* format, const std::optional<double>& value) {
  return value ? name + string_printf(format, *value) : std::string();
}

std::string rate(const ProgressState& state) {
  return string_printf(state.steps_per_s < 10 ? "%.2f it/s" : "%.1f it/s", state.steps_per_s);
}

std::string token_rate(const ProgressState& state) {
  return format_count(static_cast<long long>(state.tokens_per_s)) + " tok/s";
}

/// "02:05", "1:02:05"
std::string clock(double seconds) {
  const auto whole = static_cast<long long>(std::max(seconds, 0.0));
  if (whole < 3600) return string_printf("%02lld:%02lld", whole / 60, whole % 60);
  return string_printf("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string times(const ProgressState& state) {
  if (!state.elapsed_s) return state.steps_per_s > 0 ? clock(std::round(state.eta_s)) + " left" : "";
  return clock(*state.elapsed_s) + "<" + (state.steps_per_s > 0 ? clock(std::round(state.eta_s)) : "?");
}

/// A part of the bar, and how early it leaves: those of the highest number first.
struct Part {
  int leaves = 0;
  std::string text;
  bool is_bar = false;
};

/// From left to right.
std::vector<Part> parts_of(const ProgressState& state) {
  const auto at = [](const char* what, const std::optional<long long>& step) {
    return step ? what + std::string("@") + std::to_string(*step) : std::string();
  };
  const bool has_rates = state.activity.empty();
  return {{0, string_printf("%3d%%", percent(state))},
          {11, std::string(kNarrowestBar + kBrackets, ' '), true},
          {1, steps(state)},
          {2, state.activity},
          {4, times(state)},
          {3, named("loss ", "%.4f", state.loss)},
          {7, named("eval ", "%.4f", state.eval_loss)},
          {9, named("lr ", "%.1e", state.learning_rate)},
          {8, has_rates ? rate(state) : ""},
          {5, has_rates ? token_rate(state) : ""},
          {6, named("gpu ", "%.0f%%", state.gpu_utilization)},
          {12, named("epoch ", "%.2f", state.epoch)},
          {10, at("eval", state.next_eval)},
          {10, at("save", state.next_save)},
          {13, state.cost_usd ? format_dollars(*state.cost_usd) : ""}};
}

/// Drops parts until the rest fits: the most needed ones that do.
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
  return "[" + (use_color ? "\x1b[32m" + done + "\x1b[0m" : done) + open + "]";
}

}  // namespace

std::string format_progress_line(const ProgressState& state) {
  std::string text = state.unit + (" " + steps(state)) + " (" + std::to_string(percent(state)) + "%)";
  if (!state.activity.empty()) return text + ": " + state.activity;
  for (const std::string& part : {named("loss ", "%.4f", state.loss), named("eval_loss ", "%.4f", state.eval_loss),
                                  named("lr ", "%.2e", state.learning_rate), named("epoch ", "%.2f", state.epoch),
                                  rate(state), token_rate(state), named("gpu ", "%.0f%%", state.gpu_utilization)}) {
    if (!part.empty()) text += " " + part;
  }
  if (state.elapsed_s) text += ", " + format_duration(*state.elapsed_s) + " elapsed";
  text += ", " + format_duration(state.eta_s) + " left";
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

}  // namespace lora_train::report

#include "figures.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

bool is_known(const Figure& figure, const std::vector<RunRecord>& runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const RunRecord& run) { return (run.figures.*figure.value).has_value(); });
}

}  // namespace

const std::vector<Figure>& figures() {
  using F = RunFigures;
  using enum FigureKind;
  static const std::vector<Figure> table = {
      {"step", &F::step, kCount, true},
      {"total_steps", &F::total_steps, kCount, false, true},
      {"epoch", &F::epoch, kRate, false},
      {"last_train_loss", &F::last_train_loss, kLoss, true},
      {"best_train_loss", &F::best_train_loss, kLoss, true},
      {"train_loss", &F::train_loss, kLoss, false, true},
      {"eval_loss", &F::eval_loss, kLoss, true, true},
      {"best_eval_loss", &F::best_eval_loss, kLoss, true, true},
      {"best_step", &F::best_step, kCount, false, true},
      {"perplexity", &F::perplexity, kLoss, false},
      {"token_accuracy", &F::token_accuracy, kAccuracy, false},
      {"tokens", &F::tokens, kCount, false},
      {"tokens_per_s", &F::tokens_per_s, kCount, true},
      {"peak_memory_gib", &F::peak_memory_gib, kGib, true, true},
      {"peak_host_memory_gib", &F::peak_host_memory_gib, kGib, true, true},
      {"wall_s", &F::wall_s, kSeconds, true, true},
      {"train_s", &F::train_s, kSeconds, false, true},
      {"cost_usd", &F::cost_usd, kMoney, true, true},
  };
  return table;
}

const Figure* find_figure(const std::string& name) {
  const auto found = std::ranges::find_if(figures(), [&](const Figure& figure) { return name == figure.name; });
  return found == figures().end() ? nullptr : &*found;
}

std::vector<Figure> table_figures(const std::vector<RunRecord>& runs) {
  std::vector<Figure> shown;
  bool has_device = false;
  for (const auto& figure : figures()) {
    if (!figure.is_in_table || !is_known(figure, runs)) continue;
    if (std::strcmp(figure.name, "peak_memory_gib") == 0) has_device = true;
    if (std::strcmp(figure.name, "peak_host_memory_gib") == 0 && has_device) continue;
    shown.push_back(figure);
  }
  return shown;
}

std::string format_figure(double value, FigureKind kind) {
  if (!std::isfinite(value)) return "-";
  switch (kind) {
    case FigureKind::kCount:
      return std::abs(value) < 1e15 ? format_count(std::llround(value)) : fmt::format("{:.6g}", value);
    case FigureKind::kLoss:
      return std::abs(value) >= 1e-4 || value == 0 ? fmt::format("{:.4f}", value) : fmt::format("{:.2e}", value);
    case FigureKind::kAccuracy: return fmt::format("{:.4f}", value);
    case FigureKind::kRate:
    case FigureKind::kGib: return fmt::format("{:.2f}", value);
    case FigureKind::kSeconds:
      return value < 10 ? fmt::format("{:.1f}s", value) : format_duration(std::min(value, 1e9));
    case FigureKind::kMoney: return fmt::format("{:.{}f}", value, value < 0.1 && value > 0 ? 4 : 2);
  }
  return "-";
}

const char* name_of(FigureKind kind) {
  constexpr const char* kNames[] = {"count", "loss", "rate", "gib", "seconds", "money", "accuracy"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace lora_train::report

#include "pictures.h"

#include <algorithm>

#include "figures.h"
#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

constexpr std::size_t kMaxPicturePoints = 500;  ///< of a curve; a panel has 540 pixels
constexpr std::size_t kManySteps = 50;          ///< from here on the train loss is smoothed
constexpr std::size_t kSmoothing = 25;          ///< a mean is over this part of the points

using Points = std::vector<Point>;

/// Averages neighbours, so that at most kMaxPicturePoints are left.
Points thinned(const Points& points) {
  const std::size_t group = (points.size() + kMaxPicturePoints - 1) / kMaxPicturePoints;
  Points out;
  for (std::size_t begin = 0; begin < points.size(); begin += group) {
    const std::size_t end = std::min(points.size(), begin + group);
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].y;
    out.push_back({points[end - 1].x, sum / static_cast<double>(end - begin)});
  }
  return out;
}

Points points_of(const RunRecord& run, std::optional<double> LoggedStep::*value) {
  Points points;
  for (const LoggedStep& step : run.steps) {
    if (step.*value) points.push_back({static_cast<double>(step.step), *(step.*value)});
  }
  return thinned(points);
}

Points points_of(const RunRecord& run, const std::string& name, std::optional<double> LoggedEval::*value) {
  Points points;
  for (const LoggedEval& eval : run.evals) {
    if (eval.name == name && eval.*value) points.push_back({static_cast<double>(eval.step), *(eval.*value)});
  }
  return points;
}

/// The mean over a window of points before each.
Points smoothed(const Points& points) {
  const std::size_t window = std::max<std::size_t>(1, points.size() / kSmoothing);
  Points out;
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sum += points[i].y;
    if (i >= window) sum -= points[i - window].y;
    out.push_back({points[i].x, sum / static_cast<double>(std::min(i + 1, window))});
  }
  return out;
}

/// Of the data sets and tasks, in the order in which they come first.
std::vector<std::string> names_of(const std::vector<LoggedEval>& evals) {
  std::vector<std::string> names;
  for (const LoggedEval& eval : evals) {
    if (std::find(names.begin(), names.end(), eval.name) == names.end()) names.push_back(eval.name);
  }
  return names;
}

void add_evals(const RunRecord& run, const std::string& prefix, std::optional<double> LoggedEval::*value,
               Panel& panel) {
  for (const std::string& name : names_of(run.evals)) {
    const Points points = points_of(run, name, value);
    if (points.empty()) continue;
    panel.curves.push_back(
        {.name = prefix + name, .points = points, .ink = ink_of_curve(panel.curves.size()), .has_dots = true});
  }
}

Panel loss_panel(const RunRecord& run) {
  Panel panel{.title = "Loss"};
  const Points points = points_of(run, &LoggedStep::loss);
  const bool is_smoothed = points.size() >= kManySteps;
  if (!points.empty()) panel.curves.push_back({.name = "train", .points = is_smoothed ? smoothed(points) : points});
  add_evals(run, "eval: ", &LoggedEval::loss, panel);
  if (is_smoothed) panel.curves.push_back({.points = points, .is_faint = true});
  return panel;
}

Panel accuracy_panel(const RunRecord& run) {
  Panel panel{.title = "Accuracy"};
  add_evals(run, "", &LoggedEval::accuracy, panel);
  add_evals(run, "tokens: ", &LoggedEval::token_accuracy, panel);
  return panel;
}

struct Source {
  const char* name;  ///< in the key of a panel of several
  std::optional<double> LoggedStep::*value;
};

Panel panel_of(const RunRecord& run, const char* title, const std::vector<Source>& sources) {
  Panel panel{.title = title, .from_zero = true};
  for (const Source& source : sources) {
    const Points points = points_of(run, source.value);
    if (points.empty()) continue;
    panel.curves.push_back({.name = source.name, .points = points, .ink = ink_of_curve(panel.curves.size())});
  }
  return panel;
}

std::string subtitle_of(const RunRecord& run) {
  std::string text = run.status;
  const auto add = [&](const char* name, const std::optional<double>& value, FigureKind kind) {
    if (value) text += std::string(", ") + name + format_figure(*value, kind);
  };
  add("step ", run.figures.step, FigureKind::kCount);
  add("train loss ", run.figures.last_train_loss, FigureKind::kLoss);
  add("eval loss ", run.figures.eval_loss, FigureKind::kLoss);
  add("tokens per second ", run.figures.tokens_per_s, FigureKind::kCount);
  return text + ". Over steps.";
}

}  // namespace

std::string curves_png(const RunRecord& run) {
  using S = LoggedStep;
  LineCharts charts{.title = run.name, .subtitle = subtitle_of(run)};
  for (Panel& panel : std::vector<Panel>{
           loss_panel(run), accuracy_panel(run), panel_of(run, "Learning rate", {{"", &S::learning_rate}}),
           panel_of(run, "Gradient norm", {{"", &S::grad_norm}}),
           panel_of(run, "Tokens per second", {{"", &S::tokens_per_s}}),
           panel_of(run, "Memory, GiB", {{"GPU", &S::memory_gib}, {"host", &S::host_memory_gib}}),
           panel_of(run, "GPU use, %", {{"", &S::gpu_utilization}}),
           panel_of(run, "CPU use, % of one core", {{"", &S::cpu_percent}})}) {
    if (!panel.curves.empty()) charts.panels.push_back(std::move(panel));
  }
  return to_png(draw(charts), 1);
}

ReliabilityCurve reliability_curve(const std::string& name, const std::vector<ReliabilityBin>& bins, Ink ink) {
  ReliabilityCurve curve{.name = name, .ink = ink};
  for (const ReliabilityBin& bin : bins) {
    const double count = std::max(1.0, bin.count);
    curve.bins.push_back({bin.count, bin.confidence / count, bin.num_right / count});
  }
  return curve;
}

}  // namespace lora_train::report

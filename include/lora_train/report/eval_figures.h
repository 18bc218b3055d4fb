// The figures of a dataset or task, with their names in metrics.jsonl, `eval --json` and metric_for_best_model; and
// calibration: how well stated confidences match the share of right answers. The numbers match numpy and scikit-learn.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::report {

inline constexpr std::size_t kCalibrationBins = 15;

/// One bin of a reliability diagram: sums, not means.
struct CalibrationBin {
  long long count = 0;
  double confidence = 0;
  long long num_right = 0;
  bool operator==(const CalibrationBin&) const = default;
};

/// An answer and its stated probability of being right, 0 to 1.
struct Judged {
  double confidence = 0;
  bool is_right = false;
};

/// 15 bins of equal width: bin i has confidences from i / 15 to below (i + 1) / 15; the last bin includes 1.
std::vector<CalibrationBin> equal_width_bins(std::span<const Judged> answers);

/// 15 bins of equal count: the answers sorted by confidence and cut like numpy.array_split. Equally confident answers
/// keep their order.
std::vector<CalibrationBin> equal_mass_bins(std::span<const Judged> answers);

/// Expected calibration error: the mean over answers of |mean confidence - share right| in their bin
/// (arxiv.org/abs/1706.04599).
double calibration_error(std::span<const CalibrationBin> bins);

/// Brier score: the mean of (confidence - is right)^2.
double brier_score(std::span<const Judged> answers);

/// Area under the ROC curve: the probability that a right answer is more confident than a wrong one; a tie counts as
/// half. Empty if all answers are right, or all wrong.
std::optional<double> auroc(std::span<const Judged> answers);

double mean_confidence(std::span<const Judged> answers);
double share_right(std::span<const Judged> answers);

/// One evaluation of a dataset or of a task. Empty: a dataset or this kind of task has no such figure; auroc is also
/// empty if all answers are right, or all wrong.
struct EvalFigures {
  std::string name = {};
  std::optional<TaskKind> kind = {};  ///< of a task; empty: a dataset
  std::optional<double> loss = {};    ///< per supervised token
  std::optional<double> perplexity = {};
  std::optional<double> token_accuracy = {};  ///< 0..1
  std::optional<double> accuracy = {};        ///< share of right answers
  std::optional<double> ece = {};             ///< calibration error in 15 bins of equal width
  std::optional<double> ece_equal_mass = {};  ///< calibration error in 15 bins of equal count
  std::optional<double> brier = {};
  std::optional<double> auroc = {};
  std::optional<double> mean_confidence = {};
  std::optional<double> over_confidence = {};  ///< mean_confidence - accuracy
  long long num_tokens = 0;                    ///< of a dataset: supervised
  long long num_rows = 0;                      ///< of a task
  std::vector<CalibrationBin> bins = {};       ///< bins of equal width; empty for exact_match
};

struct EvalMetric {
  const char* name;
  std::optional<double> EvalFigures::*value;
  std::optional<bool> greater_is_better;  ///< empty: neither, unless the profile says so
  unsigned owners;                        ///< bits of the datasets and the kinds of tasks that have it
};

/// The metrics of a dataset (no kind) or of a kind of task, in display order.
std::vector<EvalMetric> eval_metrics(std::optional<TaskKind> kind);
/// The metrics of any of them.
std::span<const EvalMetric> all_eval_metrics();

/// Figures for answers to a task of `kind`: confidence, or exact_match, which has no confidences.
EvalFigures task_figures(TaskKind kind, std::span<const Judged> answers);

/// "accuracy 81.50%, ece 0.0342, brier 0.1200, auroc 0.8810"
std::string in_words(const EvalFigures& figures);

/// The text of a figure: "81.50%", "0.0342"; "-" if it is empty.
std::string format_eval_figure(const EvalMetric& metric, const EvalFigures& figures);

/// One line of JSON: name, kind of task, metrics, number of tokens or examples.
std::string to_json(const EvalFigures& figures);

/// The metric that metric_for_best_model names: over all evaluation data, one dataset, or one task.
struct BestMetric {
  std::string name;    ///< as in the profile
  std::string source;  ///< dataset or task; empty: all datasets
  bool is_of_task = false;
  std::string metric;  ///< loss, perplexity, token_accuracy, ece; or one of eval_metrics()
  bool greater_is_better = false;
};

/// `sets`: the names of the evaluation datasets. Throws ConfigError("metric_for_best_model") for a metric that no
/// evaluation of these sets and tasks has, listing those available, and for one without a better direction when
/// greater_is_better is not set. Does not throw for eval_loss, perplexity, token_accuracy or ece if no setting needs a
/// best model.
BestMetric find_best_metric(const RunSection& section, const std::vector<std::string>& sets,
                            const std::vector<EvalTask>& tasks);

}  // namespace lora_train::report

// Compares the profiles and results of runs, as text, CSV and JSON. run_page.h makes the page.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/run_log.h"

namespace lora_train::report {

struct Comparison {
  std::vector<RunRecord> runs;
  /// Profile keys whose values differ between the runs that have a profile, in the order of docs/profile.md. Leaves out
  /// output_dir and run_name, which always differ.
  std::vector<std::string> differing;
  std::string baseline = {};  ///< folder of the run whose evaluation losses are the baseline: the first one given
  /// Columns of table, CSV and JSON in addition to run (and, in files, folder and status); empty: the differing keys,
  /// then the figures.
  std::vector<std::string> columns = {};
};

/// The run's last evaluation minus the baseline's; empty for the baseline itself and if the documents differ.
std::optional<LossDifference> difference_to_baseline(const Comparison& comparison, const RunRecord& run);

/// Reads the runs, in this order. A run without a unique name is named after its folder.
Comparison compare_runs(const std::vector<std::filesystem::path>& folders);

/// The names that sort_runs accepts: run, folder, status, the figures, and the differing keys.
std::vector<std::string> column_names(const Comparison& comparison);

/// Sets the columns: any of column_names(), "reason", any profile key, or another trainer's name for a metric
/// (metric_from). Throws ConfigError("--columns") for an unknown name, with the nearest ones.
void choose_columns(Comparison& comparison, const std::vector<std::string>& names);

/// Sorts by a column, numerically if the values are numbers; "-" before the name means descending order. Runs without a
/// value come last. The sort is stable. Throws ConfigError("--sort") for an unknown name, with the nearest one.
void sort_runs(Comparison& comparison, const std::string& column);

/// The profile's value for a key, as a user would write it; empty if the run has no profile.
std::string profile_text(const RunRecord& run, const std::string& key);

/// A table with one row per run if that fits, else with one column per run, in blocks of as many as fit. Numbers are
/// right-aligned. Values too long for a cell follow the table, with the reasons of runs that are not done. width 0: no
/// limit.
std::string comparison_table(const Comparison& comparison, int width, bool use_color);

/// CSV as in RFC 4180, but with
/// : a header, then one line per run. Figures have full precision; unknown values are empty.
std::string comparison_csv(const Comparison& comparison);
/// True if a file with this start was written by comparison_csv().
bool is_comparison_csv(std::string_view start);

/// JSON Lines, one object per run: run, folder, status, reason, profile (the differing keys), the figures, and
/// eval_loss_difference (baseline, mean, low, high, num_documents, verdict). Null: unknown.
std::string comparison_json(const Comparison& comparison);

}  // namespace lora_train::report

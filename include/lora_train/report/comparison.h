// Compares runs: the differences between their profiles, and their results, as text, CSV and JSON. run_page.h makes the page.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/run_log.h"

namespace lora_train::report {

struct Comparison {
  std::vector<RunRecord> runs;
  /// Profile keys whose values differ between the runs that have a profile, in the order of docs/profile.md. output_dir and
  /// run_name always differ and are left out.
  std::vector<std::string> differing;
  std::string baseline =
      {};  ///< folder of the run that the evaluation losses of the others are compared with: the first one given
  /// What table, CSV and JSON show besides run (and in files folder and status); empty: the differing keys, then the figures.
  std::vector<std::string> columns = {};
};

/// The difference of a run's last evaluation to that of the baseline; empty for the baseline itself and where the documents differ.
std::optional<LossDifference> difference_to_baseline(const Comparison& comparison, const RunRecord& run);

/// Reads the runs, in this order. A run whose name is not unique gets its folder as its name.
Comparison compare_runs(const std::vector<std::filesystem::path>& folders);

/// The names that sort_runs accepts: run, folder, status, the figures, and the differing keys.
std::vector<std::string> column_names(const Comparison& comparison);

/// Sets the columns: any of column_names(), "reason", every key of a profile, and what other trainers call a metric
/// (metric_from). Throws ConfigError("--columns") for an unknown name, with the nearest ones.
void choose_columns(Comparison& comparison, const std::vector<std::string>& names);

/// Sorts by a column, numerically where values are numbers; "-" before the name sorts in descending order. Runs without a value
/// come last. The sort is stable. Throws ConfigError("--sort") for an unknown name, with the nearest one.
void sort_runs(Comparison& comparison, const std::string& column);

/// The profile's value for a key, as a user writes it; empty if the run has no profile.
std::string profile_text(const RunRecord& run, const std::string& key);

/// A table with one row per run if that fits, else with one column per run, in blocks of as many as fit. Numbers are aligned to
/// the right. Below the table come values that are too long for a cell, and why a run is not done. width 0: no limit.
std::string comparison_table(const Comparison& comparison, int width, bool use_color);

/// CSV as in RFC 4180, with \n: a header, then one line per run. Figures have all their digits; unknown values are empty.
std::string comparison_csv(const Comparison& comparison);
/// Whether a file that starts so was written by it.
bool is_comparison_csv(std::string_view start);

/// JSON Lines, one object per run: run, folder, status, reason, profile (the differing keys), the figures, and eval_loss_difference
/// (baseline, mean, low, high, num_documents, verdict); null: unknown.
std::string comparison_json(const Comparison& comparison);

}  // namespace lora_train::report

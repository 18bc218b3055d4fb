// Runs side by side: what differs between their profiles, and what came out. As text, CSV and JSON; run_page.h has the page.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/metrics/run_folder.h"

namespace lora_train::metrics {

struct Comparison {
  std::vector<RunRecord> runs;
  /// Profile keys whose values differ between the runs that have a profile, in the order of docs/profile.md. output_dir and
  /// run_name always differ and are left out.
  std::vector<std::string> differing;
};

/// Reads the runs, in this order. Where names are not unique, the folder is put in their place.
Comparison compare_runs(const std::vector<std::filesystem::path>& folders);

/// Names that sort_runs takes: run, folder, status, the figures, and the differing keys.
std::vector<std::string> column_names(const Comparison& comparison);

/// By a column, numbers as numbers, "-" in front of its name for the largest first. Runs without a value come last. Equal
/// ones keep their order. Throws ConfigError("--sort") with the nearest name.
void sort_runs(Comparison& comparison, const std::string& column);

/// The value that a profile has for the key, as a person writes it; empty when the run has no profile.
std::string profile_text(const RunRecord& run, const std::string& key);

/// One run a row when that fits, else one run a column, in blocks of as many as fit. Numbers stand on the right. Values too
/// long for a cell, and why a run is not done, follow below. width 0: as wide as it gets.
std::string comparison_table(const Comparison& comparison, int width, bool use_color);

/// RFC 4180 with \n: a header, and one line a run; figures with all their digits, what is not known is empty.
std::string comparison_csv(const Comparison& comparison);

/// One object a run and line: run, folder, status, reason, profile (the differing keys), and the figures; null is not known.
std::string comparison_json(const Comparison& comparison);

}  // namespace lora_train::metrics

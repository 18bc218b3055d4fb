// HTML pages. Each is a single file that loads nothing from the network; all text from runs is escaped.
#pragma once

#include <filesystem>
#include <string>

#include "lora_train/report/comparison.h"

namespace lora_train::report {

/// Overlaid curves, a table and the profile differences of several runs.
std::string comparison_page(const Comparison& comparison);
/// True if a file with this start (64 KiB suffice) was written by comparison_page().
bool is_comparison_page(std::string_view start);

/// report.html of one run: curves, evaluations, calibration, answers, times, data ledger, profile, environment.
std::string report_page(const RunRecord& run);

/// A page in the same style without scripts; `body` is HTML.
std::string plain_page(const std::string& title, const std::string& body);

/// Writes report.html, and curves.png if there is a curve, to the folder of a run. Never throws: logs a warning if it
/// fails.
void write_report(const std::filesystem::path& folder) noexcept;

}  // namespace lora_train::report

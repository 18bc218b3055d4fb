// Pages for a browser: one self-contained HTML file each, without a network, and with all text of runs escaped.
#pragma once

#include <filesystem>
#include <string>

#include "lora_train/metrics/comparison.h"

namespace lora_train::metrics {

/// Overlaid curves, a table and the profile differences of several runs.
std::string comparison_page(const Comparison& comparison);

/// report.html of one run: curves, throughput, memory, data ledger, profile.
std::string report_page(const RunRecord& run);

/// Writes report.html into the folder of a run. Never throws: a report that cannot be made is warned of.
void write_report(const std::filesystem::path& folder) noexcept;

}  // namespace lora_train::metrics

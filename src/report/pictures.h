// Pictures of a run as PNG, without a browser: curves.png, and reliability diagrams for TensorBoard.
#pragma once

#include <string>
#include <vector>

#include "chart/charts.h"
#include "lora_train/report/run_log.h"

namespace lora_train::report {

/// Loss, accuracy, learning rate, gradient norm, throughput, memory and use of the device over steps, each where the run has it.
/// Throws std::runtime_error.
std::string curves_png(const RunRecord& run);

/// A curve of a reliability diagram.
ReliabilityCurve reliability_curve(const std::string& name, const std::vector<ReliabilityBin>& bins, Ink ink);

}  // namespace lora_train::report

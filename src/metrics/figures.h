// The figures of a run under the names that tables, files and pages give them.
#pragma once

#include <string>
#include <vector>

#include "lora_train/metrics/run_folder.h"

namespace lora_train::metrics {

enum class FigureKind { kCount, kLoss, kRate, kGib, kSeconds, kMoney };

struct Figure {
  const char* name;
  std::optional<double> RunFigures::*value;
  FigureKind kind;
  bool is_in_table;  ///< the others stand in CSV and JSON only
};

const std::vector<Figure>& figures();

/// Those that the table shows: in it, and known of some run. The memory of the host only where no run used a device.
std::vector<Figure> table_figures(const std::vector<RunRecord>& runs);

/// "2.1345", "12,345", "3m 05s", "$1.20"
std::string format_figure(double value, FigureKind kind);

/// What a page calls it.
const char* name_of(FigureKind kind);

}  // namespace lora_train::metrics

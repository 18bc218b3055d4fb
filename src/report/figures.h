// The figures of a run, with their names in tables, files and pages.
#pragma once

#include <string>
#include <vector>

#include "lora_train/report/run_log.h"

namespace lora_train::report {

enum class FigureKind { kCount, kLoss, kRate, kGib, kSeconds, kMoney, kAccuracy };

struct Figure {
  const char* name;
  std::optional<double> RunFigures::*value;
  FigureKind kind;
  bool is_in_table;            ///< false: in CSV and JSON only
  bool is_of_summary = false;  ///< the value in summary.json counts
};

const std::vector<Figure>& figures();

/// Null if there is no figure of that name.
const Figure* find_figure(const std::string& name);

/// The figures in the table: is_in_table, and known for at least one run. Host memory only if no run used a GPU.
std::vector<Figure> table_figures(const std::vector<RunRecord>& runs);

/// "2.1345", "12,345", "3m 05s", "$1.20"
std::string format_figure(double value, FigureKind kind);

/// The kind's name in a page.
const char* name_of(FigureKind kind);

}  // namespace lora_train::report
